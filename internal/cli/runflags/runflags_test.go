package runflags

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// TestFlagsFillTheRequest checks that flags set the request's fields, and that errors name the invalid flag.
func TestFlagsFillTheRequest(t *testing.T) {
	dir := t.TempDir()
	env := filepath.Join(dir, "env")
	if err := os.WriteFile(env, []byte("# a comment\nA=1\n\nB=x y=z\nHOME\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fill := func(args ...string) (*longshorev1.CreateRequest, error) {
		f := New()
		fl := pflag.NewFlagSet("run", pflag.ContinueOnError)
		fl.SetOutput(io.Discard)
		f.Define(fl)
		if err := fl.Parse(args); err != nil {
			return nil, err
		}
		return f.Request, f.Fill(fl, fl.Args(), func(string) string { return "/root" })
	}
	r, err := fill("--env-file", env, "-e", "A=2", "-m", "64m", "--memory-swap", "128m", "--net", "host", "--pids-limit", "7", "-h", "web", "--shm-size", "1g",
		"--mount", "type=tmpfs,target=/t,tmpfs-size=1m,tmpfs-mode=700", "--mount", `type=volume,"source=v",dst=/v,readonly`, "--mount", "type=bind,src=/etc,target=/e,bind-propagation=rslave",
		"--tmpfs", "/run:size=64m,exec", "--ulimit", "nofile=1:2", "--device", "/dev/null", "--gpus", "device=0,1", "--sysctl", "net.core.somaxconn=5",
		"--security-opt", "seccomp=unconfined", "--security-opt", "no-new-privileges:false", "--security-opt", "systempaths=unconfined", "--group-add", "5", "--pid=host", "--ipc=host",
		"--cpuset-cpus", "0", "--cpu-shares", "512", "--oom-score-adj", "10", "--platform", "linux/arm64", "--add-host", "a:1.2.3.4", "--dns", "1.1.1.1", "--dns-search", "x", "--dns-opt", "ndots:1",
		"--annotation", "k=v", "--label-file", env, "--cpu-quota", "-1", "--cpu-period", "50000", "--blkio-weight", "20", "--blkio-weight-device", "/dev/a:b:30", "--device-read-bps", "/dev/a:1kb",
		"--device-write-bps", "/dev/a:2m", "--device-read-iops", "/dev/a:3", "--device-write-iops", "/dev/a:4", "--device-cgroup-rule", "c 1:* r", "--memory-swappiness", "0", "--oom-kill-disable",
		"--cgroupns", "host", "--domainname", "example.org", "--ip", "10.0.0.9", "--ip6", "fd00::9", "-P", "--expose", "9-10", "--log-opt", "max-size=1m", "--log-opt", "max-file=2", "busybox", "--", "ls", "--", "-l")
	if err != nil {
		t.Fatal(err)
	}
	want := &longshorev1.CreateRequest{
		Image: "busybox", Command: []string{"ls", "--", "-l"}, Env: []string{"A=1", "B=x y=z", "HOME=/root", "A=2"}, MemoryBytes: 64 << 20, MemorySwapBytes: 128 << 20,
		Network: "host", Pids: 7, Hostname: "web", ShmBytes: 1 << 30, Pull: "missing",
		Tmpfs:   []*longshorev1.Tmpfs{{Target: "/t", Options: []string{"size=1048576", "mode=700"}}, {Target: "/run", Options: []string{"size=64m", "exec"}}},
		Mounts:  []*longshorev1.Mount{{Source: "v", Target: "/v", ReadOnly: true, ByMount: true}, {Source: "/etc", Target: "/e", Propagation: "rslave", ByMount: true}},
		Ulimits: []string{"nofile=1:2"}, Devices: []string{"/dev/null", "nvidia.com/gpu=0", "nvidia.com/gpu=1"}, Sysctls: map[string]string{"net.core.somaxconn": "5"},
		SeccompUnconfined: true, NewPrivileges: true, Unmasked: true, Groups: []string{"5"}, Pid: "host", Ipc: "host", CpusetCpus: "0", CpuShares: 512, OomScoreAdj: 10,
		Platform: "linux/arm64", Hosts: []string{"a:1.2.3.4"}, Dns: &longshorev1.Dns{Servers: []string{"1.1.1.1"}, Searches: []string{"x"}, Options: []string{"ndots:1"}},
		Labels: map[string]string{"A": "1", "B": "x y=z", "HOME": ""}, CpuQuota: -1, CpuPeriod: 50000, BlkioWeight: 20, BlkioWeightDevices: []*longshorev1.DeviceLimit{{Path: "/dev/a:b", Value: 30}},
		DeviceReadBps: []*longshorev1.DeviceLimit{{Path: "/dev/a", Value: 1024}}, DeviceWriteBps: []*longshorev1.DeviceLimit{{Path: "/dev/a", Value: 2 << 20}},
		DeviceReadIops: []*longshorev1.DeviceLimit{{Path: "/dev/a", Value: 3}}, DeviceWriteIops: []*longshorev1.DeviceLimit{{Path: "/dev/a", Value: 4}},
		DeviceCgroupRules: []string{"c 1:* r"}, MemorySwappiness: proto.Uint64(0), OomKillDisable: true, Cgroupns: "host", Domainname: "example.org",
		Annotations: map[string]string{"k": "v"}, Ip: "10.0.0.9", Ip6: "fd00::9", Systemd: "true", PublishAll: true, Expose: []string{"9-10"}, LogBytes: 1 << 20, LogFiles: 2,
	}
	if !proto.Equal(r, want) {
		t.Errorf("got  %v\nwant %v", r, want)
	}
	for _, bad := range []string{
		"--env-file=/nonexistent", "--mount=type=nothing,target=/x", "--mount=type=image,target=/x", "--mount=type=image,src=a,target=/x,title=y", "--mount=type=artifact,src=a,target=/x,subpath=y", "--mount=type=artifact,src=a,target=/x,rw", "--mount=type=volume,src=a,target=/x,digest=y", "--mount=target=", "--mount=type=bind,source=x,target=/y", "--mount=type=tmpfs,source=x,target=/y", "--mount=color=red,target=/x",
		"--security-opt=nothing", "--security-opt=seccomp=/nonexistent", "--gpus=2", "--userns=keep-id", "--log-opt=tag=x", "--log-opt=max-size=x", "--memory-swap=x", "--shm-size=x",
		"--restart=sometimes", "--restart=always:3", "--restart=on-failure:x", "--memory-swappiness=101", "--device-read-bps=sda:1m", "--device-read-bps=/dev/sda", "--device-write-bps=/dev/sda:x", "--device-read-iops=/dev/sda:1m",
		"--device-write-iops=/dev/sda:-1", "--blkio-weight-device=:5", "--label-file=/nonexistent",
	} {
		if _, err := fill(bad, "busybox"); err == nil || !strings.Contains(err.Error(), strings.SplitN(bad, "=", 2)[0]) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
