package runtimetest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

func life(b *bench) {
	if b.Runtime.Name() == "" {
		b.Error("no name")
	}
	f, err := b.Runtime.Features(b.ctx())
	if err != nil || f.Version == "" || f.OCIVersionMax == "" {
		b.Errorf("features %+v, %v", f, err)
	}
	c := b.container("echo out; echo err >&2; exit 7").start()
	if !c.listed() {
		b.Error("not listed")
	}
	x := c.wait(c.ref)
	b.want("exit code", x.Exit.Code, 7)
	b.want("exit signal", x.Exit.Signal, 0)
	b.want("pid", x.Pid, c.pid)
	out, err := os.ReadFile(c.log)
	if err != nil || !strings.Contains(string(out), "out\n") || !strings.Contains(string(out), "err\n") || len(out) != 8 {
		b.Errorf("output %q, %v", out, err)
	}
	c.delete(false)
	c.delete(false)
	if c.listed() {
		b.Error("still listed")
	}
}

func parked(b *bench) {
	c := b.container("echo ran").create()
	if err := unix.Kill(c.pid, 0); err != nil {
		b.Errorf("the process is not there: %v", err)
	}
	if out, _ := os.ReadFile(c.log); len(out) > 0 {
		b.Errorf("it ran before start: %q", out)
	}
	if pids, err := b.Cgroups.Pids(b.ctx(), c.Cgroup); err != nil || len(pids) != 1 || pids[0] != c.pid {
		b.Errorf("its cgroup has %v, %v, want %d", pids, err, c.pid)
	}
	if err := b.Runtime.Start(b.ctx(), c.ID); err != nil {
		b.Fatal(err)
	}
	b.want("output", c.output(), "ran\n")
	if err := b.Runtime.Start(b.ctx(), c.ID); err == nil {
		b.Error("a second start went through")
	}
	// A container that is never started can be deleted too.
	never := b.container("echo ran").create()
	never.delete(true)
	b.wait(never.ref)
	if out, _ := os.ReadFile(never.log); len(out) > 0 {
		b.Errorf("it ran: %q", out)
	}
}

// startsAgain: an agent that has restarted cannot know whether its start succeeded.
func startsAgain(b *bench) {
	c := b.container("echo ran; echo > /tmp/ready; sleep 1000")
	ready := c.ready()
	c.start()
	ready()
	if err := b.Runtime.Start(b.ctx(), c.ID); err != nil {
		b.Errorf("a second start: %v", err)
	}
	procs, err := b.Supervisor.Processes(b.ctx())
	if i := slices.IndexFunc(procs, func(p core.Supervised) bool { return p.Ref == c.ref }); err != nil || i < 0 || !procs[i].Running || procs[i].Pid != c.pid {
		b.Errorf("%+v, %v, want %d, which runs", procs, err, c.pid)
	}
	if err := b.Supervisor.Signal(b.ctx(), c.ref, int(unix.SIGKILL)); err != nil {
		b.Fatal(err)
	}
	if out := c.output(); out != "ran\n" {
		b.Errorf("it wrote %q", out)
	}
	if err := b.Runtime.Start(b.ctx(), c.ID); !errors.Is(err, core.ErrEnded) || errdefs.IsNotFound(err) {
		b.Errorf("a start after its end: %v", err)
	}
	c.delete(false)
}

func runs(b *bench) {
	c := b.container("echo ran; exit 5")
	c.Run = true
	pid, err := b.Runtime.Create(b.ctx(), c.RuntimeCreate)
	if err != nil || pid == 0 {
		b.Fatalf("pid %d, %v", pid, err)
	}
	if x := b.wait(c.ref); x.Exit.Code != 5 || x.Pid != pid {
		b.Errorf("it ended by %+v as %d, want %d", x.Exit, x.Pid, pid)
	}
	if out, err := os.ReadFile(c.log); string(out) != "ran\n" {
		b.Errorf("it wrote %q, %v", out, err)
	}
	if err := b.Runtime.Start(b.ctx(), c.ID); !errors.Is(err, core.ErrEnded) {
		b.Errorf("a start after it: %v", err)
	}
	c.delete(false)
}

func inside(b *bench) {
	adj := 300
	c := b.container(`grep -E "^(Cap|NoNewPrivs|Seccomp:|Uid|Gid|Groups)" /proc/self/status
echo "adj: $(cat /proc/self/oom_score_adj)"; echo "nofile: $(ulimit -n)"; echo "host: $(hostname)"; echo "cwd: $(pwd)"; echo "var: $VAR"
echo "pid: $$"; touch /ro 2>/dev/null && echo "root: written"; cat /proc/kcore >/dev/null 2>&1; echo "masked: $(wc -c < /proc/timer_list 2>/dev/null)"
echo x 2>/dev/null > /proc/sys/kernel/domainname || echo "sys: read-only"; echo "bind: $(cat /mnt/f)"; (echo > /mnt/g) 2>/dev/null || echo "bindro: yes"`,
		func(s *specs.Spec) {
			s.Root.Readonly = true
			s.Hostname = "inside"
			s.Process.Cwd = "/etc"
			s.Process.Env = append(s.Process.Env, "VAR=some value")
			s.Process.User = specs.User{UID: 7, GID: 8, AdditionalGids: []uint32{9, 10}}
			s.Process.OOMScoreAdj = &adj
			s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 99, Hard: 100}}
			s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: []string{"CAP_CHOWN", "CAP_KILL"}}
			s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchAARCH64}}
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/mnt", Type: "bind", Source: b.Dir + "/bound", Options: []string{"rbind", "ro"}})
		})
	if err := os.MkdirAll(b.Dir+"/bound", 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(b.Dir+"/bound/f", []byte("bound"), 0o644); err != nil {
		b.Fatal(err)
	}
	got := lines(c.start().output())
	for key, want := range map[string]string{
		"CapBnd": "0000000000000021", "CapEff": "0000000000000000", "CapPrm": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2",
		"Uid": "7\t7\t7\t7", "Gid": "8\t8\t8\t8", "adj": "300", "nofile": "99", "host": "inside", "cwd": "/etc", "var": "some value",
		"pid": "1", "root": "", "masked": "0", "sys": "read-only", "bind": "bound", "bindro": "yes",
	} {
		if key == "masked" && got[key] == "" {
			continue // this kernel has no such file
		}
		b.want(key, got[key], want)
	}
	for _, g := range []string{"9", "10"} {
		if !strings.Contains(" "+got["Groups"]+" ", " "+g+" ") {
			b.Errorf("groups %q lack %s", got["Groups"], g)
		}
	}
}

func unprivileged(b *bench) {
	c := b.container("echo one > /dev/stdout; echo two > /proc/self/fd/2; exec 3>/dev/stderr; echo three >&3", func(s *specs.Spec) {
		s.Process.User = specs.User{UID: 1234, GID: 1235}
	})
	out := c.start().output()
	for _, w := range []string{"one\n", "two\n", "three\n"} {
		if !strings.Contains(out, w) {
			b.Errorf("output %q lacks %q", out, w)
		}
	}
}

func signals(b *bench) {
	c := b.container("trap 'exit 5' USR1; echo > /tmp/ready; while :; do sleep 1000 & wait $!; done")
	ready := c.ready()
	c.start()
	ready()
	if err := b.Supervisor.Signal(b.ctx(), c.ref, int(unix.SIGUSR1)); err != nil {
		b.Fatal(err)
	}
	b.want("exit code", c.wait(c.ref).Exit.Code, 5)
	if err := b.Supervisor.Signal(b.ctx(), c.ref, int(unix.SIGKILL)); !errdefs.IsNotFound(err) {
		b.Errorf("signal to what has ended: %v", err)
	}
	k := b.container("echo > /tmp/ready; sleep 1000")
	ready = k.ready()
	k.start()
	ready()
	if err := b.Supervisor.Signal(b.ctx(), k.ref, int(unix.SIGKILL)); err != nil {
		b.Fatal(err)
	}
	b.want("signal", k.wait(k.ref).Exit.Signal, 9)
	// With its pid namespace, its child has gone too.
	if err := b.Cgroups.Kill(b.ctx(), k.Cgroup); err != nil {
		b.Error(err)
	}
	k.delete(false)
}

func force(b *bench) {
	c := b.container("echo > /tmp/ready; sleep 1000")
	ready := c.ready()
	c.start()
	ready()
	if err := b.Runtime.Delete(b.ctx(), c.ID, false); err == nil {
		b.Error("a running container was deleted without force")
	}
	c.delete(true)
	b.want("signal", c.wait(c.ref).Exit.Signal, 9)
	if c.listed() {
		b.Error("still listed")
	}
}

func pause(b *bench) {
	c := b.container("echo > /tmp/ready; while :; do :; done")
	ready := c.ready()
	c.start()
	ready()
	cpu := func() uint64 {
		s, err := b.Cgroups.Stats(b.ctx(), c.Cgroup, core.StatsUsage|core.StatsDetail)
		if err != nil || !s.CPU.Usage.OK {
			b.Fatalf("cpu %+v, %v", s.CPU, err)
		}
		return s.CPU.Usage.N
	}
	if err := b.Runtime.Pause(b.ctx(), c.ID); err != nil {
		b.Fatal(err)
	}
	before := cpu()
	for start := own(b); own(b)-start < 30e6; { // use CPU time of this process
	}
	if used := cpu() - before; used > 5e6 {
		b.Errorf("used %d ns while paused", used)
	}
	if err := b.Runtime.Resume(b.ctx(), c.ID); err != nil {
		b.Fatal(err)
	}
	for start := cpu(); cpu() == start; {
		if b.ctx().Err() != nil {
			b.Fatal("it never went on")
		}
	}
	c.delete(true)
	c.wait(c.ref)
}

// own returns the CPU time of this process, in nanoseconds.
func own(b *bench) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		b.Fatal(err)
	}
	return ts.Nano()
}

func update(b *bench) {
	c := b.container("echo > /tmp/ready; sleep 1000")
	ready := c.ready()
	c.start()
	ready()
	limit, shares, pids := int64(48<<20), uint64(300), int64(33)
	res := &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}, CPU: &specs.LinuxCPU{Shares: &shares}, Pids: &specs.LinuxPids{Limit: &pids}}
	if err := b.Runtime.Update(b.ctx(), c.ID, res); err != nil {
		b.Fatal(err)
	}
	got, err := b.Cgroups.Resources(b.ctx(), c.Cgroup)
	if err != nil {
		b.Fatal(err)
	}
	b.want("memory", *got.Memory.Limit, limit)
	b.want("pids", *got.Pids.Limit, pids)
	if s := *got.CPU.Shares; s < 250 || s > 350 {
		b.Errorf("shares %d", s)
	}
	if entries, err := filepath.Glob(filepath.Join(c.Bundle, "*resources*")); err != nil || len(entries) > 0 {
		b.Errorf("left behind: %v, %v", entries, err)
	}
	c.delete(true)
	c.wait(c.ref)
}

func joins(b *bench) {
	// A process of another container has the namespaces; its files in /proc
	// are as good as pinned ones.
	first := b.container("echo > /tmp/ready; sleep 1000", func(s *specs.Spec) { s.Hostname = "first" })
	ready := first.ready()
	first.start()
	ready()
	second := b.container("hostname; readlink /proc/self/ns/net; readlink /proc/self/ns/pid; ls /proc | grep -c '^[0-9]'", func(s *specs.Spec) {
		for i, n := range s.Linux.Namespaces {
			for kind, file := range map[specs.LinuxNamespaceType]string{specs.UTSNamespace: "uts", specs.NetworkNamespace: "net", specs.IPCNamespace: "ipc", specs.PIDNamespace: "pid"} {
				if n.Type == kind {
					s.Linux.Namespaces[i].Path = fmt.Sprintf("/proc/%d/ns/%s", first.pid, file)
				}
			}
		}
	})
	out := strings.Fields(second.start().output())
	netns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", first.pid))
	if err != nil {
		b.Fatal(err)
	}
	pidns, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", first.pid))
	if len(out) != 4 || out[0] != "first" || out[1] != netns || out[2] != pidns || out[3] == "1" {
		b.Errorf("inside: %q, want first %s %s", out, netns, pidns)
	}
	first.delete(true)
	first.wait(first.ref)
}

// ownNetwork: a container that joins another's namespaces, but for its network, has a network
// without an interface that is up.
func ownNetwork(b *bench) {
	first := b.container("echo > /tmp/ready; sleep 1000", func(s *specs.Spec) { s.Hostname = "first" })
	ready := first.ready()
	first.start()
	ready()
	second := b.container("hostname; readlink /proc/self/ns/net; ls /sys/class/net 2>/dev/null; grep -c : /proc/net/dev; cat /sys/class/net/lo/operstate", func(s *specs.Spec) {
		for i, n := range s.Linux.Namespaces {
			if n.Type == specs.UTSNamespace || n.Type == specs.IPCNamespace {
				s.Linux.Namespaces[i].Path = fmt.Sprintf("/proc/%d/ns/%s", first.pid, n.Type)
			}
		}
	})
	out := strings.Fields(second.start().output())
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", first.pid))
	if err != nil {
		b.Fatal(err)
	}
	host, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		b.Fatal(err)
	}
	if len(out) != 5 || out[0] != "first" || out[1] == theirs || out[1] == host || out[2] != "lo" || out[3] != "1" || out[4] == "up" {
		b.Errorf("inside: %q; the other container's network is %s, the host's %s", out, theirs, host)
	}
	first.delete(true)
	first.wait(first.ref)
}

// adopts: a cgroup that another program made holds the container and its execs, and
// stays when they are gone.
func adopts(b *bench) {
	theirs, err := b.Cgroups.Place(core.Cgroup{}, b.above, "theirs")
	if err != nil {
		b.Fatal(err)
	}
	if err := b.Cgroups.Create(b.ctx(), theirs, nil); err != nil {
		b.Fatal(err)
	}
	const mount = "/sys/fs/cgroup"
	adopt := map[string]string{"": mount + theirs.Path}
	dir := adopt[""]
	if b.Cgroups.Mode() != core.CgroupV2 {
		dir = mount + "/pids" + theirs.Path
		adopt = map[string]string{"pids": dir}
	}
	c := b.container("echo > /tmp/ready; sleep 1000")
	if c.Cgroup, err = b.Cgroups.Place(core.Cgroup{Adopt: adopt}, b.above, c.ID.Short()); err != nil {
		b.Fatal(err)
	}
	c.Spec.Linux.CgroupsPath, c.Levels = c.Cgroup.Path, []core.CgroupRef{c.Cgroup}
	ready := c.ready()
	c.start()
	ready()
	member := func(pid int) {
		var procs []int
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.Name() != "cgroup.procs" {
				return err
			}
			text, err := os.ReadFile(path)
			for _, p := range strings.Fields(string(text)) {
				n, _ := strconv.Atoi(p)
				procs = append(procs, n)
			}
			return err
		})
		if err != nil || !slices.Contains(procs, pid) {
			b.Errorf("%d is not among %v, %v", pid, procs, err)
		}
	}
	member(c.pid)
	e := c.exec("e", "sleep 1000")
	l, err := b.Runtime.Exec(b.ctx(), e)
	if err != nil {
		b.Fatal(err)
	}
	member(l.Pid)
	c.delete(true)
	c.wait(c.ref)
	if err := b.Cgroups.Remove(b.ctx(), c.Cgroup); err != nil {
		b.Error(err)
	}
	if _, err := os.Stat(dir); err != nil {
		b.Errorf("the adopted cgroup is gone: %v", err)
	}
	c.forget(e.Ref)
}

func memory(b *bench) {
	limit := int64(12 << 20)
	c := b.container("x=0123456789abcdef; while :; do x=$x$x; done", func(s *specs.Spec) {
		s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &limit}
	})
	c.start()
	x := c.wait(c.ref)
	b.want("signal", x.Exit.Signal, 9)
	if len(x.OOMKills) != 2 || x.OOMKills[0] != 1 {
		b.Errorf("out-of-memory kills by level: %v", x.OOMKills)
	}
	if x.Peak < uint64(limit)/2 || x.Peak > uint64(limit) {
		b.Errorf("peak %d", x.Peak)
	}
	exec := b.container("echo > /tmp/ready; sleep 1000")
	ready := exec.ready()
	exec.start()
	ready()
	exec.delete(true)
	if x := exec.wait(exec.ref); len(x.OOMKills) != 2 || x.OOMKills[0] != 0 {
		b.Errorf("a kill by us counts as out of memory: %v", x.OOMKills)
	}
}

func unknown(b *bench) {
	const id = core.ID("00000000000000000000000000000000000000000000000000000000000000ff")
	for op, err := range map[string]error{
		"start":  b.Runtime.Start(b.ctx(), id),
		"pause":  b.Runtime.Pause(b.ctx(), id),
		"resume": b.Runtime.Resume(b.ctx(), id),
		"update": b.Runtime.Update(b.ctx(), id, &specs.LinuxResources{}),
	} {
		if !errdefs.IsNotFound(err) {
			b.Errorf("%s of what is not there: %v", op, err)
		} else if !strings.Contains(err.Error(), op) {
			b.Errorf("%v does not tell the operation", err)
		}
	}
	for _, force := range []bool{false, true} {
		if err := b.Runtime.Delete(b.ctx(), id, force); err != nil {
			b.Errorf("delete of what is not there: %v", err)
		}
	}
	for _, bad := range []core.ID{"", "../x", "."} {
		if err := b.Runtime.Delete(b.ctx(), bad, true); !errdefs.IsInvalidArgument(err) {
			b.Errorf("delete of %q: %v", bad, err)
		}
	}
}
