package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestRatesOfDevicesReachTheKernel: the cgroup of a container has the rates and quotas of its flags, also after a restart.
func TestRatesOfDevicesReachTheKernel(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		disk, number := blockDevice(t)
		files := func(v1, v2 string) string {
			if unified() {
				return "cat " + v2
			}
			return "cat " + v1
		}
		const dir = "/sys/fs/cgroup/"
		show := "cd " + dir + "; " + files("blkio/blkio.throttle.read_bps_device blkio/blkio.throttle.write_bps_device blkio/blkio.throttle.read_iops_device blkio/blkio.throttle.write_iops_device", "io.max") +
			"; " + files("cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us", "cpu.max")
		want := fmt.Sprintf("%[1]s 1048576\n%[1]s 2097152\n%[1]s 100\n%[1]s 200\n30000\n60000\n", number)
		if unified() {
			want = fmt.Sprintf("%s rbps=1048576 wbps=2097152 riops=100 wiops=200\n30000 60000\n", number)
		}
		out, err := n.CLI("run", "--name", "slow", "--device-read-bps", disk+":1mb", "--device-write-bps", disk+":2m", "--device-read-iops", disk+":100", "--device-write-iops", disk+":200",
			"--cpu-quota", "30000", "--cpu-period", "60000", image, "/bin/sh", "-c", show)
		if err != nil || out != want {
			t.Errorf("got %q, %v\nwant %q", out, err, want)
		}
		if out, err = n.CLI("start", "-a", "slow"); err != nil || out != want {
			t.Errorf("after a restart: %q, %v\nwant %q", out, err, want)
		}
		shown := fmt.Sprintf("/dev/block/%s 1048576 /dev/block/%[1]s 200 0 private", number)
		if out, err = n.CLI("inspect", "-f", `{{with .HostConfig}}{{range .BlkioDeviceReadBps}}{{.Path}} {{.Rate}} {{end}}{{range .BlkioDeviceWriteIOps}}{{.Path}} {{.Rate}} {{end}}{{.BlkioWeight}} {{.CgroupnsMode}}{{end}}`, "slow"); err != nil || out != shown+"\n" {
			t.Errorf("inspect: %q, %v, want %q", out, err, shown)
		}
		if _, err := n.CLI("update", "--cpu-quota", "40000", "slow"); err != nil {
			t.Error(err)
		}
		changed := strings.Replace(want, "30000", "40000", 1)
		if out, err = n.CLI("start", "-a", "slow"); err != nil || out != changed {
			t.Errorf("after an update: %q, %v\nwant %q", out, err, changed)
		}
		for _, bad := range [][]string{
			{"/dev/null is not a block device", "--device-read-bps", "/dev/null:1m"},
			{"/nothing: no such file", "--device-read-bps", "/nothing:1m"},
			{"not between 10 and 1000", "--blkio-weight", "5"},
			{"not between 10 and 1000", "--blkio-weight-device", disk + ":1001"},
			{"below the least", "--cpu-quota", "10"},
			{"not between 1000 and 1000000", "--cpu-period", "10"},
			{"cannot be combined", "--cpu-quota", "50000", "--cpus", "1"},
			{"is not TYPE MAJOR:MINOR ACCESS", "--device-cgroup-rule", "d 1:3 r"},
		} {
			if _, err := n.CLI(append(append([]string{"run", "--rm", "--name", "bad"}, bad[1:]...), image, "/bin/true")...); err == nil || !strings.Contains(err.Error(), bad[0]) {
				t.Errorf("%q: %v", bad, err)
			}
		}
		weighted(t, n, image)
		if _, err := n.CLI("rm", "slow"); err != nil {
			t.Error(err)
		}
		clean(t, n)
	})
}

// weighted runs a container with weights of block devices, which the kernel has only with the scheduler bfq.
func weighted(t *testing.T, n *nodetest.Node, image string) {
	t.Helper()
	file := "/sys/fs/cgroup/blkio/blkio.bfq.weight"
	want := "77\n"
	if unified() {
		file, want = "/sys/fs/cgroup/io.weight", "default 677\n"
	}
	out, err := n.CLI("run", "--rm", "--blkio-weight", "77", image, "/bin/cat", file)
	switch {
	case err != nil && strings.Contains(err.Error(), "this node has no"):
		t.Log("this kernel has no weights of block devices: ", err)
	case err != nil || out != want:
		t.Errorf("weight: %q, %v", out, err)
	}
}

// TestOtherFlagsReachTheKernel: namespaces, names, devices and memory as the flags say.
func TestOtherFlagsReachTheKernel(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		run := func(want string, args ...string) {
			t.Helper()
			out, err := n.CLI(append([]string{"run", "--rm"}, args...)...)
			if err != nil || out != want {
				t.Errorf("%q: %q, %v, want %q", args, out, err, want)
			}
		}
		host, err := os.Readlink("/proc/self/ns/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		run(host+"\n", "--cgroupns", "host", image, "/bin/readlink", "/proc/self/ns/cgroup")
		run("1\n", "--cgroupns", "private", image, "/bin/sh", "-c", "readlink /proc/self/ns/cgroup | grep -vFc '"+host+"'")
		run("example.org\nhere\n", "--domainname", "example.org", "-h", "here", image, "/bin/sh", "-c", "cat /proc/sys/kernel/domainname; hostname")
		run("example.org\n", "--domainname", "example.org", "--network", "host", image, "/bin/cat", "/proc/sys/kernel/domainname")
		_, number := blockDevice(t)
		open := "mknod /k b " + strings.Replace(number, ":", " ", 1) + "; head -c 0 /k 2>/dev/null && echo open || echo refused"
		run("refused\n", image, "/bin/sh", "-c", open)
		run("refused\n", "--device-cgroup-rule", "c "+number+" rwm", image, "/bin/sh", "-c", open)
		major, _, _ := strings.Cut(number, ":")
		run("open\n", "--device-cgroup-rule", "b "+major+":* rwm", image, "/bin/sh", "-c", open)
		memory := []string{"-m", "64m", "--memory-swappiness", "7", "--oom-kill-disable", image, "/bin/sh", "-c", "cat /sys/fs/cgroup/memory/memory.swappiness; head -n 1 /sys/fs/cgroup/memory/memory.oom_control"}
		if !unified() {
			run("7\noom_kill_disable 1\n", memory...)
		} else if _, err := n.CLI(append([]string{"run", "--rm"}, memory...)...); err == nil || !strings.Contains(err.Error(), "cgroup v2 has no memory swappiness") {
			t.Errorf("memory of cgroup v1: %v", err)
		}
		if _, err := n.CLI("run", "--rm", "--oom-kill-disable", image, "/bin/true"); err == nil {
			t.Error("no OOM killer without a memory limit")
		}
		if _, err := n.CLI("network", "create", "--subnet", "10.88.7.0/24", "--subnet", "fd00:77::/64", "both"); err != nil {
			t.Fatal(err)
		}
		run("10.88.7.9/24\nfd00:77::9/64\n", "--network", "both", "--ip", "10.88.7.9", "--ip6", "fd00:77::9", image, "/bin/sh", "-c", "ip -o addr show eth0 scope global | awk '{print $4}' | sort")
		run("fd00:77::8/64\n", "--network", "name=both,ip=10.88.7.8,ip6=fd00:77::8", image, "/bin/sh", "-c", "ip -6 -o addr show eth0 scope global | awk '{print $4}'")
		if _, err := n.CLI("network", "rm", "both"); err != nil {
			t.Error(err)
		}
		clean(t, n)
	})
}

// TestPartsOfNetworks checks the pool and the reserved addresses of a network, and a range of IPv6.
func TestPartsOfNetworks(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		cli := func(args ...string) string {
			t.Helper()
			out, err := n.CLI(args...)
			if err != nil {
				t.Error(err)
			}
			return out
		}
		refused := func(says string, args ...string) {
			t.Helper()
			if _, err := n.CLI(args...); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%q: %v, want %q", args, err, says)
			}
		}
		const show = "ip -o addr show eth0 scope global | awk '{print $4}' | sort"
		cli("network", "create", "--subnet", "10.88.0.0/16", "--ip-range", "10.88.5.0/30", "--aux-address", "router=10.88.5.0", "--aux-address", "printer=10.88.5.1", "--attachable", "--ipv6", "wide")
		out := cli("run", "--rm", "--network", "wide", image, "/bin/sh", "-c", show)
		if first, second, ok := strings.Cut(out, "\n"); !ok || first != "10.88.5.2/16" || !strings.HasPrefix(second, "fd") || !strings.HasSuffix(second, "/64\n") {
			t.Errorf("addresses: %q", out)
		}
		refused("10.88.5.1: it is reserved", "run", "--rm", "--network", "wide", "--ip", "10.88.5.1", image, "/bin/true")
		if out := cli("run", "--rm", "--network", "wide", "--ip", "10.88.77.7", image, "/bin/sh", "-c", show); !strings.HasPrefix(out, "10.88.77.7/16\n") {
			t.Errorf("an address outside of the pool: %q", out)
		}
		n.Kill()
		n.Up()
		if out := cli("run", "--rm", "--network", "wide", image, "/bin/sh", "-c", show); !strings.HasPrefix(out, "10.88.5.3/16\n") && !strings.HasPrefix(out, "10.88.5.2/16\n") {
			t.Errorf("after the agent's restart: %q", out)
		}
		shown := cli("network", "inspect", "-f", "{{range .IPAM.Config}}{{.IPRange}} {{json .AuxiliaryAddresses}} {{end}}{{.EnableIPv6}}", "wide")
		if !strings.HasPrefix(shown, `10.88.5.0/30 {"printer":"10.88.5.1","router":"10.88.5.0"} `) || !strings.HasSuffix(shown, "true\n") {
			t.Errorf("inspect: %q", shown)
		}
		refused("not a part of", "network", "create", "--subnet", "10.89.0.0/24", "--ip-range", "10.89.0.0/16", "bad")
		refused("a subnet is needed", "network", "create", "--ip-range", "10.89.0.0/16", "bad")
		refused("a subnet is needed", "network", "create", "--subnet", "10.89.0.0/24", "--aux-address", "x=10.90.0.1", "bad")
		refused("is the gateway", "network", "create", "--subnet", "10.89.0.0/24", "--aux-address", "x=10.89.0.1", "bad")
		refused("only true is supported", "network", "create", "--ipv4=false", "bad")
		cli("network", "rm", "-f", "wide", "nosuch")
		clean(t, n)
	})
}

// unified reports whether the machine has cgroup v2.
func unified() bool {
	var fs unix.Statfs_t
	return unix.Statfs("/sys/fs/cgroup", &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC
}

// blockDevice returns a block device of the machine and its numbers.
func blockDevice(t *testing.T) (name, number string) {
	t.Helper()
	disks, err := filepath.Glob("/sys/block/*/dev")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range disks {
		name = "/dev/" + filepath.Base(filepath.Dir(path))
		if _, err := os.Stat(name); err != nil {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return name, strings.TrimSpace(string(b))
	}
	t.Skip("this machine has no block device")
	return "", ""
}
