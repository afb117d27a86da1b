package cgroup_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/cgroup"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
)

func ptr[T any](v T) *T { return &v }

func newTree(t *testing.T) *cgroup.Tree {
	t.Helper()
	tree, err := cgroup.New(cgroup.Options{Root: roottest.Cgroup(t)})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func place(t *testing.T, tree *cgroup.Tree, above core.CgroupRef, name string) core.CgroupRef {
	t.Helper()
	ref, err := tree.Place(core.Cgroup{}, above, name)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func create(t *testing.T, tree *cgroup.Tree, ref core.CgroupRef, res *specs.LinuxResources) {
	t.Helper()
	if err := tree.Create(t.Context(), ref, res); err != nil {
		t.Fatal(err)
	}
}

// joinScript is the start of a shell program that moves itself into ref.
func joinScript(tree *cgroup.Tree, ref core.CgroupRef) string {
	if tree.Mode() == core.CgroupV2 {
		return "echo 0 > /sys/fs/cgroup" + ref.Path + "/cgroup.procs || exit 99; "
	}
	return "for c in cpu cpuacct cpuset memory freezer pids blkio devices; do d=/sys/fs/cgroup/$c" + ref.Path +
		"; [ ! -d $d ] || echo 0 > $d/cgroup.procs || exit 99; done; "
}

// run starts a shell program inside ref. It is ready once it has written its
// first line, which run returns.
func run(t *testing.T, tree *cgroup.Tree, ref core.CgroupRef, program string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "/usr/bin/busybox", "sh", "-c", joinScript(tree, ref)+program)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: 0}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 256)
	n, _ := out.Read(line)
	return cmd, strings.TrimSpace(string(line[:n]))
}

func TestLimitsAreReadBack(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		t.Helper()
		tree := newTree(t)
		ref := place(t, tree, core.CgroupRef{}, "limited")
		res := &specs.LinuxResources{
			Memory: &specs.LinuxMemory{Limit: ptr[int64](64 << 20), Swap: ptr[int64](64 << 20)},
			CPU:    &specs.LinuxCPU{Shares: ptr[uint64](512), Quota: ptr[int64](50000), Period: ptr[uint64](100000), Cpus: "0", Mems: "0"},
			Pids:   &specs.LinuxPids{Limit: ptr[int64](17)},
		}
		create(t, tree, ref, res)
		for _, step := range []struct{ memory, quota, pids int64 }{{64 << 20, 50000, 17}, {128 << 20, 20000, -1}, {32 << 20, -1, 5}} {
			res.Memory.Limit, res.Memory.Swap = ptr(step.memory), ptr(step.memory)
			res.CPU.Quota, res.Pids.Limit = ptr(step.quota), ptr(step.pids)
			if err := tree.Update(t.Context(), ref, res); err != nil {
				t.Fatal(err)
			}
			got, err := tree.Resources(t.Context(), ref)
			if err != nil {
				t.Fatal(err)
			}
			want := [...]any{step.memory, step.memory, step.quota, uint64(100000), step.pids, "0"}
			have := [...]any{*got.Memory.Limit, *got.Memory.Swap, *got.CPU.Quota, *got.CPU.Period, *got.Pids.Limit, got.CPU.Cpus}
			if d := cmp.Diff(want, have); d != "" {
				t.Error(d)
			}
			if limit, err := tree.MemoryLimit(t.Context(), ref); limit != uint64(step.memory) {
				t.Errorf("memory limit %d, %v: want %d", limit, err, step.memory)
			}
			if s := *got.CPU.Shares; s < 490 || s > 530 {
				t.Errorf("shares %d", s)
			}
		}
		if err := tree.Update(t.Context(), ref, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: ptr[int64](-1), Swap: ptr[int64](-1)}}); err != nil {
			t.Fatal(err)
		}
		if limit, err := tree.MemoryLimit(t.Context(), ref); err != nil || limit != 0 {
			t.Errorf("memory limit %d, %v: want none", limit, err)
		}
		if list, err := tree.List(t.Context()); err != nil || len(list) != 1 || list[0] != ref.Path {
			t.Errorf("list %v, %v", list, err)
		}
		for range 2 {
			if err := tree.Remove(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
		}
		if list, _ := tree.List(t.Context()); len(list) != 0 {
			t.Errorf("left: %v", list)
		}
		if _, err := tree.Resources(t.Context(), ref); !errdefs.IsNotFound(err) {
			t.Errorf("limits of what is gone: %v", err)
		}
		if _, err := tree.MemoryLimit(t.Context(), ref); !errdefs.IsNotFound(err) {
			t.Errorf("memory limit of what is gone: %v", err)
		}
		if _, err := tree.Stats(t.Context(), ref, core.StatsUsage|core.StatsDetail|core.StatsProcesses); !errdefs.IsNotFound(err) {
			t.Errorf("figures of what is gone: %v", err)
		}
		if err := tree.Update(t.Context(), ref, res); !errdefs.IsNotFound(err) {
			t.Errorf("update of what is gone: %v", err)
		}
		if err := tree.Kill(t.Context(), ref); err != nil {
			t.Errorf("kill of what is gone: %v", err)
		}
	})
}

func TestBadLimitLeavesNothing(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		t.Helper()
		tree := newTree(t)
		ref := place(t, tree, core.CgroupRef{}, "bad")
		err := tree.Create(t.Context(), ref, &specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: "4000"}})
		if !errdefs.IsInvalidArgument(err) {
			t.Errorf("error %v", err)
		}
		if list, _ := tree.List(t.Context()); len(list) != 0 {
			t.Errorf("left: %v", list)
		}
	})
}

func TestKillEndsAForkBombWithinALimit(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		t.Helper()
		tree := newTree(t)
		ref := place(t, tree, core.CgroupRef{}, "bomb")
		create(t, tree, ref, &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: ptr[int64](40)}})
		child := place(t, tree, ref, "child")
		create(t, tree, child, nil)
		cmd, _ := run(t, tree, child, `echo go; f() { f & f & wait; }; while :; do f; done 2>/dev/null`)
		s, err := tree.Stats(t.Context(), ref, core.StatsUsage|core.StatsDetail|core.StatsProcesses)
		if err != nil || !s.Pids.Limit.OK || s.Pids.Limit.N != 40 || s.Pids.Current.N > 40 || s.Pids.Current.N == 0 {
			t.Errorf("pids %+v, %v", s.Pids, err)
		}
		if err := tree.Kill(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		if pids, err := tree.Pids(t.Context(), ref); err != nil || len(pids) != 0 {
			t.Errorf("still there: %v, %v", pids, err)
		}
		_ = cmd.Wait()
		reap()
		if err := tree.Remove(t.Context(), ref); err != nil {
			t.Error(err)
		}
	})
}

// reap collects the orphans of this process, the first of its pid namespace.
func reap() {
	for {
		if pid, err := unix.Wait4(-1, nil, 0, nil); pid <= 0 && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func TestFreezeStopsAndKillReachesTheFrozen(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		t.Helper()
		tree := newTree(t)
		ref := place(t, tree, core.CgroupRef{}, "frozen")
		create(t, tree, ref, nil)
		child := place(t, tree, ref, "child")
		create(t, tree, child, nil)
		cmd, _ := run(t, tree, child, "echo ready; while :; do :; done")
		cpu := func() uint64 {
			s, err := tree.Stats(t.Context(), ref, core.StatsUsage|core.StatsDetail)
			if err != nil || !s.CPU.Usage.OK {
				t.Fatalf("cpu %+v, %v", s.CPU, err)
			}
			return s.CPU.Usage.N
		}
		if err := tree.Freeze(t.Context(), child, true); err != nil {
			t.Fatal(err)
		}
		// A frozen loop uses no time while others do: compare with our own. The kernel may add some
		// ticks of its earlier use later.
		before := cpu()
		var sum [sha256.Size]byte
		for start := own(t); own(t)-start < 200e6; {
			sum = sha256.Sum256(sum[:])
		}
		if after := cpu(); after-before > 50e6 {
			t.Errorf("used %d ns while frozen", after-before)
		}
		if err := tree.Freeze(t.Context(), child, false); err != nil {
			t.Fatal(err)
		}
		start := cpu()
		roottest.Eventually(t, "it runs again", func() bool { return cpu() > start })
		if err := tree.Freeze(t.Context(), child, true); err != nil {
			t.Fatal(err)
		}
		if err := tree.Kill(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Error("was not killed")
		}
		if err := tree.Remove(t.Context(), ref); err != nil {
			t.Error(err)
		}
	})
}

// own is this process's CPU time in nanoseconds.
func own(t *testing.T) int64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		t.Fatal(err)
	}
	return ts.Nano()
}

func TestOOMShowsAtTheLevelThatHitItsLimit(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		for _, c := range []struct {
			name             string
			sandbox, program int64
		}{{"container", 0, 8 << 20}, {"sandbox", 8 << 20, 0}} {
			t.Run(c.name, func(t *testing.T) { oom(t, c.sandbox, c.program) })
		}
	})
}

func oom(t *testing.T, sandboxLimit, containerLimit int64) {
	t.Helper()
	tree := newTree(t)
	limit := func(n int64) *specs.LinuxResources {
		if n == 0 {
			return nil
		}
		// Without a limit of memory+swap: Linux 6.18 does not count its failures.
		return &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &n}}
	}
	sandbox := place(t, tree, core.CgroupRef{}, "sandbox")
	create(t, tree, sandbox, limit(sandboxLimit))
	container := place(t, tree, sandbox, "container")
	create(t, tree, container, limit(containerLimit))
	cmd, _ := run(t, tree, container, `echo go; x=0123456789abcdef; while :; do x=$x$x; done`)
	err := cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("ended with %v", err)
	}
	level, peak := tree.OOMLevel(container)
	text, err := os.ReadFile(level.Path)
	if err != nil || !strings.Contains(string(text), "oom_kill 1\n") {
		t.Errorf("%s: %q, %v", level.Path, text, err)
	}
	p, err := os.ReadFile(peak)
	if n, _ := strconv.ParseUint(strings.TrimSpace(string(p)), 10, 64); err != nil || n == 0 {
		t.Errorf("peak %q, %v", p, err)
	}
	s, err := tree.Stats(t.Context(), container, core.StatsUsage|core.StatsDetail)
	if err != nil || s.Memory.OOMKills != core.Known(1) {
		t.Errorf("figures say %+v, %v", s.Memory.OOMKills, err)
	}
	above, err := tree.Stats(t.Context(), sandbox, core.StatsUsage|core.StatsDetail)
	if err != nil {
		t.Fatal(err)
	}
	// Which level hit its limit: the one that counts failures.
	hitSandbox, hitContainer := above.Memory.FailCount.N > 0, s.Memory.FailCount.N > 0
	if hitSandbox != (sandboxLimit > 0) || hitContainer != (containerLimit > 0) {
		t.Errorf("limit hit at sandbox %v, at container %v", hitSandbox, hitContainer)
	}
	if err := tree.Remove(t.Context(), sandbox); err != nil {
		t.Error(err)
	}
}

func TestAdoptedCgroupsAreUsedAndKept(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		t.Helper()
		tree := newTree(t)
		theirs, err := cgroup.New(cgroup.Options{Root: roottest.Cgroup(t) + "-theirs"})
		if err != nil {
			t.Fatal(err)
		}
		foreign := place(t, theirs, core.CgroupRef{}, "task.scope")
		create(t, theirs, foreign, nil)
		defer func() {
			if err := theirs.Remove(context.WithoutCancel(t.Context()), foreign); err != nil {
				t.Error(err)
			}
			for _, h := range []string{"", "cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd", "unified"} {
				_ = unix.Rmdir("/sys/fs/cgroup/" + h + theirs.Root())
			}
		}()
		adopt := map[string]string{"": "/sys/fs/cgroup" + foreign.Path}
		dir := adopt[""]
		if tree.Mode() != core.CgroupV2 {
			dir = "/sys/fs/cgroup/pids" + foreign.Path
			adopt = map[string]string{"pids": dir}
		}
		ref, err := tree.Place(core.Cgroup{Adopt: adopt}, core.CgroupRef{}, "c1")
		if err != nil {
			t.Fatal(err)
		}
		create(t, tree, ref, &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: ptr[int64](9)}})
		got, err := os.ReadFile(filepath.Join(dir, "pids.max"))
		if err != nil || strings.TrimSpace(string(got)) != "9" {
			t.Errorf("adopted cgroup was not limited: %q, %v", got, err)
		}
		if err := tree.Remove(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("adopted cgroup was removed: %v", err)
		}
		if list, _ := tree.List(t.Context()); len(list) != 0 {
			t.Errorf("left: %v", list)
		}
		adopt["pids"] = "/sys/fs/cgroup/gone"
		adopt[""] = "/sys/fs/cgroup/gone"
		if err := tree.Create(t.Context(), core.CgroupRef{Adopted: adopt}, nil); !errdefs.IsNotFound(err) {
			t.Errorf("adopting what is not there: %v", err)
		}
	})
}

func TestStatsOfALiveContainer(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		t.Helper()
		tree := newTree(t)
		ref := place(t, tree, core.CgroupRef{}, "live")
		create(t, tree, ref, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: ptr[int64](64 << 20)}})
		cmd, _ := run(t, tree, ref, "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; echo ready; read x")
		_ = cmd
		s, err := tree.Stats(t.Context(), ref, core.StatsUsage|core.StatsDetail|core.StatsProcesses)
		if err != nil {
			t.Fatal(err)
		}
		for name, v := range map[string]core.Value{
			"cpu": s.CPU.Usage, "user": s.CPU.User, "memory": s.Memory.Usage, "working set": s.Memory.WorkingSet,
			"rss": s.Memory.RSS, "limit": s.Memory.Limit, "faults": s.Memory.Faults, "pids": s.Pids.Current,
		} {
			if !v.OK {
				t.Errorf("%s was not measured", name)
			}
		}
		if s.Memory.Limit.N != 64<<20 || s.Pids.Limit.OK {
			t.Errorf("limits %+v %+v", s.Memory.Limit, s.Pids.Limit)
		}
		if err := tree.Kill(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if err := tree.Remove(t.Context(), ref); err != nil {
			t.Error(err)
		}
	})
}

func TestACpusetHandsItsOwnOn(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		t.Helper()
		tree := newTree(t)
		if _, err := os.Stat("/sys/fs/cgroup/cpuset/cpuset.cpus"); err != nil {
			t.Skip("cpusets of cgroup v1 only")
		}
		above := place(t, tree, core.CgroupRef{Path: tree.Root()}, "above")
		create(t, tree, above, &specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: "0"}})
		below := place(t, tree, above, "below")
		create(t, tree, below, nil)
		inside := "/sys/fs/cgroup/cpuset" + below.Path + "/inside"
		if err := os.Mkdir(inside, 0o755); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.Remove(inside) }()
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			want, _ := os.ReadFile("/sys/fs/cgroup/cpuset" + above.Path + "/" + file)
			got, err := os.ReadFile(inside + "/" + file)
			if err != nil || string(got) != string(want) || len(strings.TrimSpace(string(got))) == 0 {
				t.Errorf("%s of a bare directory %q, %v; above %q", file, got, err, want)
			}
		}
	})
}

// TestReclaimFreesMemory: the kernel frees the page cache of a frozen cgroup.
func TestReclaimFreesMemory(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		t.Helper()
		tree := newTree(t)
		ref := place(t, tree, core.CgroupRef{}, "reclaimed")
		create(t, tree, ref, nil)
		file := filepath.Join(t.TempDir(), "cached")
		if err := os.WriteFile(file, make([]byte, 32<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tree.Kill(context.Background(), ref) })
		run(t, tree, ref, "cp "+file+" "+file+".copy; sync "+file+".copy; echo ready; read x")
		if err := tree.Freeze(t.Context(), ref, true); err != nil {
			t.Fatal(err)
		}
		freed, err := tree.Reclaim(t.Context(), ref)
		if errors.Is(err, os.ErrNotExist) && tree.Mode() == core.CgroupV2 {
			t.Skip("this kernel has no memory.reclaim")
		}
		if err != nil || freed < 24<<20 {
			t.Errorf("%d bytes of 32 MiB of page cache were freed, %v", freed, err)
		}
		if err := tree.Freeze(t.Context(), ref, false); err != nil {
			t.Fatal(err)
		}
		if _, err := tree.Reclaim(t.Context(), core.CgroupRef{Path: "/elsewhere"}); err == nil {
			t.Error("the memory of a cgroup that is not ours was reclaimed")
		}
	})
}
