package node

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// hello is a unit that writes a file.
const hello = "[Service]\nExecStart=/bin/sh -c 'echo hello > /run/hello; exec /bin/sleep 100000'\n"

// startSystemd makes a node with an image of systemd.
func startSystemd(t *testing.T) volumes {
	t.Helper()
	archive := nodetest.SystemdRoot(t, map[string]string{"hello.service": hello})
	v := startVolumes(t)
	v.must(t, "import", "-c", `CMD ["/sbin/init"]`, archive, "systemd:1")
	return v
}

// booted waits until the systemd of a container has started all its units.
func (v volumes) booted(t *testing.T, name string) {
	t.Helper()
	state := ""
	roottest.Eventually(t, "systemd has started its units", func() bool {
		out, _ := v.CLI("exec", name, "systemctl", "is-system-running", "--wait") // fails until systemd listens, or when it is degraded
		state = strings.TrimSpace(out)
		return state == "running" || state == "degraded"
	})
	if state != "running" {
		out, _ := v.CLI("exec", name, "systemctl", "--failed", "--no-pager")
		t.Errorf("systemd is %s: %s", state, out)
	}
}

// TestSystemdAsTheFirstProcess runs Debian's systemd: its units run, each in a cgroup of its own, its own signal ends it well,
// and it starts again.
func TestSystemdAsTheFirstProcess(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		v := startSystemd(t)
		id := strings.TrimSpace(v.must(t, "run", "-d", "--name", "s", "-m", "512m", "--pids-limit", "300", "systemd:1"))
		v.booted(t, "s")
		v.sees(t, "s", "cat /run/hello", "hello")
		v.sees(t, "s", "systemctl show -P ActiveState hello", "active")
		v.sees(t, "s", "for d in /sys/fs/cgroup /sys/fs/cgroup/systemd; do [ ! -d $d/system.slice/hello.service ] || wc -w < $d/system.slice/hello.service/cgroup.procs; done", "1")
		v.sees(t, "s", "echo $container $container_uuid", "longshore "+id[:32])
		v.sees(t, "s", "cat /etc/machine-id", id[:32])
		for place, mode := range map[string]string{"/run": "755", "/run/lock": "1777", "/tmp": "1777", "/var/log/journal": "755"} {
			v.sees(t, "s", "grep -c ' "+place+" tmpfs ' /proc/mounts; stat -c %a "+place+" | grep -o '^[0-7]*755$\\|1777'", "1\n"+mode)
		}
		if got := v.must(t, "inspect", "-f", "{{.Config.StopSignal}}", "s"); strings.TrimSpace(got) != "SIGRTMIN+3" {
			t.Errorf("its stop signal is %q", got)
		}
		for round := range 2 {
			v.must(t, "stop", "-t", "60", "s")
			if got := v.must(t, "inspect", "-f", "{{.State.Status}} {{.State.ExitCode}}", "s"); strings.TrimSpace(got) != "exited 0" {
				t.Errorf("stop %d: %q, %s", round, got, v.must(t, "why", "s"))
			}
			if round == 0 {
				v.must(t, "start", "s")
				v.booted(t, "s")
			}
		}
		v.must(t, "rm", "s")
		v.Check()
	})
}

// TestSystemdInAUserNamespace: systemd runs with ids of its own, and the cgroups that it makes are its own.
func TestSystemdInAUserNamespace(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		v := startSystemd(t)
		v.must(t, "run", "-d", "--name", "s", "--userns", "private", "-m", "512m", "--pids-limit", "300", "systemd:1")
		v.booted(t, "s")
		v.sees(t, "s", "cat /run/hello; systemctl show -P ActiveState hello; wc -l < /proc/self/uid_map", "hello\nactive\n1")
		v.sees(t, "s", "for d in /sys/fs/cgroup /sys/fs/cgroup/systemd; do [ ! -d $d/system.slice/hello.service ] || stat -c %u $d/system.slice/hello.service/cgroup.procs; done", "0")
		v.must(t, "stop", "-t", "60", "s")
		if got := v.must(t, "inspect", "-f", "{{.State.Status}} {{.State.ExitCode}}", "s"); strings.TrimSpace(got) != "exited 0" {
			t.Errorf("stop: %q, %s", got, v.must(t, "why", "s"))
		}
		v.must(t, "rm", "s")
		v.Check()
	})
}

// TestTheLimitsOfAContainerThatDividesItsCgroup attacks them: the workload makes cgroups, and writes to all files in them.
func TestTheLimitsOfAContainerThatDividesItsCgroup(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		withoutNsdelegate(t)
		v := startVolumes(t)
		id := strings.TrimSpace(v.must(t, "run", "-d", "--name", "a", "--systemd=always", "-m", "64m", "--memory-swap", "64m", "--pids-limit", "50", "--cpus", "0.5", v.image, "/bin/sleep", "100000"))
		before := limitsOf(t, id)
		if len(before) == 0 {
			t.Fatal("no limits were found")
		}
		own := "/sys/fs/cgroup"
		if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
			own = "/sys/fs/cgroup/systemd"
		}
		v.sees(t, "a", "mkdir "+own+"/x && echo 0 > "+own+"/x/cgroup.procs && grep -c . "+own+"/x/cgroup.procs && cat "+own+"/x/cgroup.procs > /dev/null", "2")
		// Each file that can be written gets the largest values that there are.
		v.must(t, "exec", "a", "/bin/sh", "-c", `find /sys/fs/cgroup -type f | while read f; do for x in max 'max 100000' 9223372036854771712 -1 '+memory +pids +cpu'; do echo "$x" > $f; done; done 2> /dev/null; true`)
		if own == "/sys/fs/cgroup" { // its own file is the workload's, and holds nothing back
			if plan := v.must(t, "debug", "plan", "a"); !strings.Contains(plan, id+core.DelegatedSuffix+"/delegated") {
				t.Errorf("the plan names no delegated cgroup:\n%s", plan)
			}
			v.sees(t, "a", "echo 9000000000 > "+own+"/memory.max; cat "+own+"/memory.max", "8999997440")
		}
		for file, want := range before {
			if b, err := os.ReadFile(file); err != nil || string(b) != want {
				t.Errorf("%s is %q, was %q: %v", file, b, want, err)
			}
		}
		v.sees(t, "a", "ls -d /sys/fs/cgroup/../"+id+" 2> /dev/null; true", "")
		// Cgroups deeper than a path can be long, or than the bound, are removed with it.
		v.must(t, "exec", "a", "/bin/sh", "-c", `cd `+own+`; n=$(printf %0200d 1); for i in $(seq 60); do mkdir $n && cd -P $n || break; done 2> /dev/null; true`)
		// The limit of memory holds after that: the write ends with an error, or by the kernel's kill.
		out, err := v.CLI("exec", "a", "/bin/sh", "-c", "dd if=/dev/zero of=/tmp/x bs=1M count=200 2> /dev/null; stat -c %s /tmp/x")
		if size, perr := strconv.ParseInt(strings.TrimSpace(out), 10, 64); err == nil && (perr != nil || size > 64<<20) {
			t.Errorf("200 MB were written to a tmpfs of a container with 64 MB: %q", out)
		}
		v.must(t, "rm", "-f", "a")
		v.Check()
	})
}

// withoutNsdelegate mounts the v2 tree without the option nsdelegate. With it the kernel itself protects the limits of a
// namespace's root.
func withoutNsdelegate(t *testing.T) {
	t.Helper()
	const top = "/sys/fs/cgroup"
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if f[1] != top || f[2] != "cgroup2" || !strings.Contains(f[3], "nsdelegate") {
			continue
		}
		var options []string
		for _, o := range strings.Split(f[3], ",") {
			if o == "nsdelegate" || strings.HasPrefix(o, "memory_") || strings.HasPrefix(o, "favordynmods") {
				options = append(options, o)
			}
		}
		const flags = unix.MS_REMOUNT | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
		others := slices.DeleteFunc(slices.Clone(options), func(o string) bool { return o == "nsdelegate" })
		if err := unix.Mount("", top, "", flags, strings.Join(others, ",")); err != nil {
			t.Fatalf("remount %s: %v", top, err)
		}
		t.Cleanup(func() {
			if err := unix.Mount("", top, "", flags, strings.Join(options, ",")); err != nil {
				t.Errorf("remount %s with %q: %v", top, options, err)
			}
		})
	}
}

// limitsOf returns the files of limits of a container on the host, with their content.
func limitsOf(t *testing.T, id string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, top := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/cpu"} {
		dirs, err := filepath.Glob(top + "/*/*/" + id + core.DelegatedSuffix)
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range dirs {
			for _, name := range []string{
				"memory.max", "memory.swap.max", "pids.max", "cpu.max", "cgroup.max.depth", "cgroup.max.descendants",
				"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "cpu.cfs_quota_us",
			} {
				if b, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
					found[filepath.Join(dir, name)] = string(b)
				}
			}
		}
	}
	return found
}

// TestWhichContainersArePreparedForSystemd: by the command, by the flag, and those that cannot be.
func TestWhichContainersArePreparedForSystemd(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		v := startVolumes(t)
		count := []string{"/bin/sh", "-c", "grep -c ' /run tmpfs ' /proc/mounts; true"}
		for _, c := range []struct {
			flags []string
			want  string
		}{
			{nil, "0"}, {[]string{"--systemd=always"}, "1"}, {[]string{"--systemd=false"}, "0"}, {[]string{"--systemd", "always", "-v", "vol:/run"}, "0"},
		} {
			out := v.must(t, append(append(append([]string{"run", "--rm"}, c.flags...), v.image), count...)...)
			if strings.TrimSpace(out) != c.want {
				t.Errorf("%q: %q, want %q", c.flags, out, c.want)
			}
		}
		for _, c := range [][]string{
			{"--cgroupns host", "--cgroupns=host"}, {"--pid", "--pid=host"}, {"crun", "--runtime=crun"},
		} {
			out, err := v.CLI("run", "--rm", "--systemd=always", c[1], v.image, "/bin/true")
			if err == nil {
				t.Errorf("%s: %q", c[1], out)
			}
		}
		if left := strings.TrimSpace(v.must(t, "ps", "-aq")); left != "" {
			t.Errorf("refused ones are left: %q", left)
		}
		v.Check()
	})
}
