package native_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// script is a usual container that runs a shell script.
func script(text string) *specs.Spec {
	s := ocispec.New()
	s.Version, s.Root = specs.Version, &specs.Root{Path: "rootfs"}
	s.Process.Args, s.Process.Env = []string{"/bin/sh", "-c", text}, []string{"PATH=/bin"}
	for _, k := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.MountNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.CgroupNamespace} {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: k})
	}
	return s
}

var containers = func() func() core.ID { //nolint:gochecknoglobals // a counter of the tests
	n := 0
	return func() core.ID { n++; return core.ID(fmt.Sprintf("%064x", n)) }
}()

// held starts a container that stays until the test ends. It returns the error of Create or Start.
func (n *node) held(ctx context.Context, t *testing.T, s *specs.Spec) (core.ID, error) {
	t.Helper()
	id, err := n.parked(t, s)
	if err == nil {
		err = n.runtime.Start(ctx, id)
	}
	return id, err
}

// parked is held without the start.
func (n *node) parked(t *testing.T, s *specs.Spec) (core.ID, error) {
	t.Helper()
	return n.create(t.Context(), t, s)
}

func (n *node) create(ctx context.Context, t *testing.T, s *specs.Spec) (core.ID, error) {
	t.Helper()
	id := containers()
	rootfs := filepath.Join(n.dir, string(id), "rootfs")
	if err := os.MkdirAll(rootfs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(n.root, rootfs, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(rootfs, unix.MNT_DETACH) })
	ref, err := n.cgroups.Place(core.Cgroup{}, core.CgroupRef{}, string(id))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.cgroups.Create(ctx, ref, s.Linux.Resources); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.runtime.Delete(context.Background(), id, true); err != nil {
			t.Error(err)
		}
		if err := n.cgroups.Remove(context.Background(), ref); err != nil {
			t.Error(err)
		}
	})
	_, err = n.runtime.Create(ctx, core.RuntimeCreate{ID: id, Bundle: filepath.Dir(rootfs), Spec: s, Cgroup: ref, Levels: []core.CgroupRef{ref}})
	return id, err
}

// TestAContainersLimitsNeverReachTheKeeper: the keeper is not in a container's cgroups, not even
// while it starts one there.
func TestAContainersLimitsNeverReachTheKeeper(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		before, err := n.keeper.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		memory, quota, period, pids := int64(2<<20), int64(1000), uint64(1000000), int64(1)
		for name, c := range map[string]struct {
			res    *specs.LinuxResources
			script string
			frozen bool
		}{
			"killed by memory": {res: &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &memory}}, script: "x=0123456789abcdef; while :; do x=$x$x; done"},
			"frozen":           {script: "while :; do :; done", frozen: true},
			"throttled":        {res: &specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: &quota, Period: &period}}, script: "while :; do :; done"},
			"no forks":         {res: &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &pids}}, script: "while :; do (true); done"},
		} {
			t.Run(name, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
				defer cancel()
				s := script(c.script)
				if c.res != nil {
					s.Linux.Resources = c.res
				}
				id, err := n.held(ctx, t, s)
				// 2 MB may not even do for the start; that is the container's end.
				if err != nil && name != "killed by memory" {
					t.Fatal(err)
				}
				if c.frozen {
					if err := n.runtime.Pause(ctx, id); err != nil {
						t.Fatal(err)
					}
				}
				// Containers start and end beside it.
				for range 5 {
					if out := n.run(ctx, t, n.runtime, containers(), script("echo next")); out != "next\n" {
						t.Errorf("the next container wrote %q", out)
					}
				}
				after, err := n.keeper.Status(ctx)
				if err != nil || after.KeeperPid != before.KeeperPid {
					t.Errorf("keeper %d, was %d, %v", after.KeeperPid, before.KeeperPid, err)
				}
				threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/cgroup", before.KeeperPid))
				if err != nil || len(threads) == 0 {
					t.Fatalf("threads %v, %v", threads, err)
				}
				for _, f := range threads {
					if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), string(id)) {
						t.Errorf("%s is in the container's cgroup:\n%s", f, b)
					}
				}
				if c.frozen {
					if err := n.runtime.Resume(ctx, id); err != nil {
						t.Error(err)
					}
				}
			})
		}
	})
}

// TestABindKeepsWhatItsSourceForbids: a read-only bind of a nosuid mount is
// nosuid still.
func TestABindKeepsWhatItsSourceForbids(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		if err := os.MkdirAll("/run/src", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", "/run/src", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			t.Fatal(err)
		}
		s := script("grep ' /mnt ' /proc/self/mountinfo; stat -c %a:%u /tmp/t")
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/mnt", Type: "bind", Source: "/run/src", Options: []string{"bind", "ro", "rprivate"}},
			specs.Mount{Destination: "/tmp/t", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=1770", "uid=3"}})
		out := n.run(t.Context(), t, n.runtime, containers(), s)
		if !strings.Contains(out, "ro,nosuid,nodev,noexec") || !strings.Contains(out, "1770:3\n") {
			t.Errorf("%q", out)
		}
	})
}

// TestABadChildHarmsNobody: Forget ends a plan with a child that hangs; a crash or a failure is
// reported; the keeper stays.
func TestABadChildHarmsNobody(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
		defer cancel()
		launch := func(name string, build func(b *plan.Builder)) (core.Ref, chan error) {
			var b plan.Builder
			build(&b)
			ref, done := core.Ref{Container: core.ID(name)}, make(chan error, 1)
			go func() {
				_, err := n.keeper.LaunchPlan(ctx, core.PlanLaunch{Launch: core.Launch{Ref: ref}, Plan: b.Encode(), Park: true})
				done <- err
			}()
			return ref, done
		}
		for name, c := range map[string]struct {
			build func(b *plan.Builder)
			text  string
		}{
			"fails": {func(b *plan.Builder) { b.Add("close nothing", unix.SYS_CLOSE, plan.V(9999)) }, "close nothing: bad file descriptor"},
			"dies": {func(b *plan.Builder) {
				b.Add("die", unix.SYS_EXIT_GROUP, plan.V(3))
			}, "died before its program ran"},
			"leaves out its end": {func(*plan.Builder) {}, ""},
		} {
			if _, done := launch("a"+strings.ReplaceAll(name, " ", ""), c.build); true {
				if err := <-done; err == nil || !strings.Contains(err.Error(), c.text) {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		ref, done := launch("hangs", func(b *plan.Builder) {
			b.Add("hang", unix.SYS_READ, plan.S(plan.SlotPark), plan.P(b.Words(0)), plan.V(1))
		})
		roottest.Eventually(t, "a launch that hangs is given up", func() bool {
			// Before the keeper knows of it this does nothing.
			if err := n.keeper.Forget(ctx, ref); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-done:
				if err == nil || ctx.Err() != nil {
					t.Errorf("the launch that was forgotten: %v", err)
				}
				return true
			default:
				return false
			}
		})
		if out := n.run(ctx, t, n.runtime, containers(), script("echo next")); out != "next\n" {
			t.Errorf("the next container wrote %q", out)
		}
	})
}
