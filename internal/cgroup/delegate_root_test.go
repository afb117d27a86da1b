package cgroup_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/cgroup"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
)

// dirOf returns a directory of the container's that a workload with delegated cgroups writes to.
func dirOf(t *testing.T, unified string, own map[string]string) string {
	t.Helper()
	switch {
	case unified != "":
		return unified
	case own["systemd"] != "":
		return own["systemd"]
	}
	t.Skip("there is no hierarchy of systemd")
	return ""
}

// TestADelegatedCgroupIsBelowItsLimits: the processes are in a cgroup without limits. The cgroup above it has them.
func TestADelegatedCgroupIsBelowItsLimits(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		tree := cgroup.Delegating{Tree: newTree(t)}
		ref, err := tree.Place(core.Cgroup{}, core.CgroupRef{}, "c"+core.DelegatedSuffix)
		if errdefs.IsFailedPrecondition(err) {
			t.Skip(err)
		}
		if err != nil || !ref.Delegated() {
			t.Fatalf("%+v, %v", ref, err)
		}
		const limit = 64 << 20
		if err := tree.Create(t.Context(), ref, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: ptr(int64(limit))}, Pids: &specs.LinuxPids{Limit: ptr(int64(20))}}); err != nil {
			t.Fatal(err)
		}
		_, unified, own := tree.Dirs(ref)
		dir := dirOf(t, unified, own)
		if tree.Mode() == core.CgroupV2 {
			if want := "/sys/fs/cgroup" + ref.Path + "/delegated"; dir != want {
				t.Errorf("processes are in %s, want %s", dir, want)
			}
			for _, file := range []string{"memory.max", "pids.max"} {
				if b, err := os.ReadFile(filepath.Join(dir, file)); err != nil || strings.TrimSpace(string(b)) != "max" {
					t.Errorf("%s in the delegated cgroup: %q, %v", file, b, err)
				}
			}
			if err := os.MkdirAll(filepath.Join(dir, strings.Repeat("x/", 20)), 0o755); err == nil {
				t.Error("the depth has no bound")
			}
		}
		if now, err := tree.Resources(t.Context(), ref); err != nil || now.Memory == nil || *now.Memory.Limit != limit || *now.Pids.Limit != 20 {
			t.Errorf("limits %+v, %v", now, err)
		}
		if got := tree.ProcessDir(ref, os.Getpid()); got != unified {
			t.Errorf("beside a process that is elsewhere: %q, want %q", got, unified)
		}
		if err := tree.Remove(t.Context(), ref); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", dir, err)
		}
	})
}

// TestCgroupsBeyondThePathLimitAreRemoved: a workload nests its cgroups deeper than a path can be long.
func TestCgroupsBeyondThePathLimitAreRemoved(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		tree := cgroup.Delegating{Tree: newTree(t)}
		ref := place(t, tree.Tree, core.CgroupRef{}, "c")
		create(t, tree.Tree, ref, nil)
		_, unified, own := tree.Dirs(ref)
		dir := dirOf(t, unified, own)
		at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(at) }()
		name := strings.Repeat("n", 200)
		for range 40 {
			for _, beside := range []string{"a", name, "z"} {
				if err := unix.Mkdirat(at, beside, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			next, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			_ = unix.Close(at)
			at = next
		}
		if list, err := tree.List(t.Context()); err != nil || len(list) == 0 {
			t.Errorf("list: %d, %v", len(list), err)
		}
		if err := tree.Remove(t.Context(), ref); err != nil {
			t.Errorf("remove: %v", err)
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", dir, err)
		}
	})
}
