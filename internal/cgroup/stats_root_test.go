package cgroup_test

import (
	"os/exec"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/cgroup"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
)

// TestFiguresAreOfTheCgroupThatIsThere reads stats before and after changes: other limits, another
// cgroup of the same name, and cgroups and processes that come and go below it.
func TestFiguresAreOfTheCgroupThatIsThere(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		t.Helper()
		tree := newTree(t)
		above := place(t, tree, core.CgroupRef{}, "above")
		look := func(ref core.CgroupRef) core.Stats {
			t.Helper()
			var s core.Stats
			for range 2 { // the second time from open files
				var err error
				if s, err = tree.Stats(t.Context(), ref, core.StatsUsage|core.StatsCommon|core.StatsProcessCount|core.StatsLimits); err != nil {
					t.Fatal(err)
				}
				sameLimits(t, tree, ref, s.Limits)
			}
			return s
		}
		count := func(want uint64) {
			t.Helper()
			if got := look(above).Pids.Processes; got != core.Known(want) {
				t.Errorf("%+v processes, want %d", got, want)
			}
		}
		begin := func(name string, limit int64) (core.CgroupRef, *exec.Cmd) {
			t.Helper()
			ref := place(t, tree, above, name)
			create(t, tree, ref, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}})
			cmd, _ := run(t, tree, ref, "echo ready; exec sleep 1000")
			return ref, cmd
		}
		end := func(ref core.CgroupRef, cmd *exec.Cmd) {
			t.Helper()
			stop(t, tree, ref, cmd)
			if _, err := tree.Stats(t.Context(), ref, core.StatsUsage|core.StatsProcessCount); !errdefs.IsNotFound(err) {
				t.Errorf("figures of what is gone: %v", err)
			}
		}
		create(t, tree, above, nil)
		count(0)
		a, first := begin("a", 64<<20)
		b, second := begin("b", 64<<20)
		count(2)
		if s := look(a); s.Memory.Limit != core.Known(64<<20) || s.Memory.Usage.N == 0 || !s.CPU.Usage.OK {
			t.Errorf("%+v", s)
		}
		limit := int64(32 << 20)
		if err := tree.Update(t.Context(), a, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}); err != nil {
			t.Fatal(err)
		}
		if s := look(a); s.Memory.Limit != core.Known(32<<20) {
			t.Errorf("limit %+v after an update", s.Memory.Limit)
		}
		end(a, first)
		count(1)
		a, first = begin("a", 48<<20) // as many as before, and the same names
		count(2)
		if s := look(a); s.Memory.Limit != core.Known(48<<20) {
			t.Errorf("limit %+v of another cgroup of the same name", s.Memory.Limit)
		}
		end(b, second)
		c, third := begin("c", 64<<20) // as many as before
		count(2)
		end(a, first)
		end(c, third)
		count(0)
		if err := tree.Remove(t.Context(), above); err != nil {
			t.Error(err)
		}
	})
}

// sameLimits compares limits with those that Resources reads by paths.
func sameLimits(t *testing.T, tree *cgroup.Tree, ref core.CgroupRef, got *specs.LinuxResources) {
	t.Helper()
	all, err := tree.Resources(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	want := &specs.LinuxResources{
		CPU:     &specs.LinuxCPU{Shares: all.CPU.Shares, Period: all.CPU.Period, Quota: all.CPU.Quota},
		Memory:  &specs.LinuxMemory{Limit: all.Memory.Limit, Swap: all.Memory.Swap, Reservation: all.Memory.Reservation},
		Unified: all.Unified,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("limits of %s: %s", ref.Path, d)
	}
}

func stop(t *testing.T, tree *cgroup.Tree, ref core.CgroupRef, cmd *exec.Cmd) {
	t.Helper()
	if err := tree.Kill(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := tree.Remove(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
}
