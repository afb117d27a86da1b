package survey

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/core"
)

// recorder is a Repairs that records its calls. Methods that no test needs are nil.
type recorder struct {
	Repairs
	stray map[core.Ref]bool
	calls []string
}

func (r *recorder) Stray(ref core.Ref) bool { return r.stray[ref] }

func (r *recorder) Lose(_ context.Context, c *core.Container, p core.ProcessID, agentLived bool) error {
	r.calls = append(r.calls, fmt.Sprintf("lose %s/%s %t", c.ID, p, agentLived))
	return nil
}

func (r *recorder) LoseQuiet(_ context.Context, ref core.Ref) error {
	r.calls = append(r.calls, fmt.Sprintf("lose quiet %s/%s", ref.Container, ref.Process))
	return nil
}

func (r *recorder) EndStray(_ context.Context, ref core.Ref, _ core.Supervised, c *core.Container) error {
	r.calls = append(r.calls, fmt.Sprintf("end %s/%s recorded %t", ref.Container, ref.Process, c != nil))
	return nil
}

func (r *recorder) EndSandbox(_ context.Context, sb *core.Sandbox, _ string) error {
	r.calls = append(r.calls, "end sandbox "+string(sb.ID))
	return nil
}

func (r *recorder) RemoveSandbox(_ context.Context, sb *core.Sandbox) error {
	r.calls = append(r.calls, "remove sandbox "+string(sb.ID))
	return nil
}

func (r *recorder) Unrenew(_ context.Context, c *core.Container) error {
	r.calls = append(r.calls, "unrenew "+string(c.ID))
	return nil
}

func surveyOf(r *recorder, containers []core.Container, sandboxes []core.Sandbox, running ...core.Ref) *Survey {
	s := &Survey{
		n: &Node{Repairs: r}, procs: map[core.Ref]core.Supervised{}, quiet: map[core.Ref]core.Process{},
		sandboxes: map[core.ID]core.Sandbox{}, containers: map[core.ID]core.Container{},
	}
	for _, c := range containers {
		s.containers[c.ID] = c
	}
	for _, sb := range sandboxes {
		s.sandboxes[sb.ID] = sb
	}
	for _, ref := range running {
		s.procs[ref] = core.Supervised{Ref: ref, Running: true}
	}
	return s
}

func container(id, sandbox core.ID, state core.ContainerState) core.Container {
	return core.Container{Meta: core.Meta{ID: id}, Sandbox: sandbox, State: state}
}

func same(t *testing.T, got, want []string) {
	t.Helper()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("repairs:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestReconcileRepairsTheLossOfAKeeper(t *testing.T) {
	kept, gone := container("kept", "s", core.ContainerRunning), container("gone", "s", core.ContainerPaused)
	kept.Execs = []core.Process{{ID: "lost"}, {ID: "known"}, {ID: "over", Autopsy: &core.Autopsy{}}}
	stray := core.Ref{Container: "kept", Process: "stray"}
	r := &recorder{stray: map[core.Ref]bool{stray: true}}
	s := surveyOf(r, []core.Container{kept, gone, container("new", "s", core.ContainerCreating), container("ended", "s", core.ContainerExited)},
		[]core.Sandbox{
			{Meta: core.Meta{ID: "s"}, State: core.SandboxReady},
			{Meta: core.Meta{ID: "without init"}, State: core.SandboxReady, Init: 7},
			{Meta: core.Meta{ID: "with init"}, State: core.SandboxReady, Init: 8},
		},
		core.Ref{Container: "kept"}, core.Ref{Container: "kept", Process: "known"}, core.Ref{Container: "with init"}, stray)
	s.quiet[core.Ref{Container: "kept", Process: "quiet"}] = core.Process{ID: "quiet"}
	if err := s.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	same(t, r.calls, []string{
		"lose kept/lost true", "lose gone/" + string(core.Main) + " true", "lose quiet kept/quiet", "end kept/stray recorded true", "end sandbox without init",
	})
}

func TestDyingAreRunningProcessesWithoutARecord(t *testing.T) {
	c := container("c", "s", core.ContainerRunning)
	c.Execs = []core.Process{{ID: "exec"}}
	unknown, other := core.Ref{Container: "c", Process: "unknown"}, core.Ref{Container: "other"}
	s := surveyOf(&recorder{}, []core.Container{c}, []core.Sandbox{{Meta: core.Meta{ID: "s"}}},
		core.Ref{Container: "c"}, core.Ref{Container: "c", Process: "exec"}, core.Ref{Container: "s"}, core.Ref{Container: "c", Process: "quiet"}, unknown, other)
	s.quiet[core.Ref{Container: "c", Process: "quiet"}] = core.Process{ID: "quiet"}
	ended := core.Ref{Container: "c", Process: "ended"}
	s.procs[ended] = core.Supervised{Ref: ended}
	if d := s.Dying(); len(d) != 2 || !d[unknown] || !d[other] {
		t.Errorf("dying: %v", d)
	}
}

func TestHalvesAreBrokenPairsAndRenewals(t *testing.T) {
	r := &recorder{}
	s := surveyOf(r, []core.Container{container("renewed", "whole", core.ContainerExited), container("ended", "plain", core.ContainerExited), container("runs", "plain", core.ContainerRunning)},
		[]core.Sandbox{
			{Meta: core.Meta{ID: "whole"}, Pair: true, State: core.SandboxReady},
			{Meta: core.Meta{ID: "empty"}, Pair: true, State: core.SandboxReady},
			{Meta: core.Meta{ID: "creating"}, Pair: true, State: core.SandboxCreating},
			{Meta: core.Meta{ID: "plain"}, State: core.SandboxReady},
			{Meta: core.Meta{ID: "no pair"}, State: core.SandboxReady},
		}, core.Ref{Container: "renewed"}, core.Ref{Container: "runs"})
	for _, f := range s.Halves() {
		if err := f.Repair(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	same(t, r.calls, []string{"unrenew renewed", "end sandbox empty", "remove sandbox empty"})
}
