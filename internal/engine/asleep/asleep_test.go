package asleep_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/asleep"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/roottest"
)

// rig is a node with a running container.
type rig struct {
	*enginetest.Node
	t  *testing.T
	c  core.Container
	by *engine.Client
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{Node: enginetest.New(t), t: t}
	img := r.AddImage("busybox", ocispec.ImageConfig{}, nil)
	r.by = r.Engine.As("test")
	sb, err := r.by.CreateSandbox(t.Context(), core.SandboxConfig{Key: "s", Namespaces: core.Namespaces{Net: core.Namespace{Mode: core.Shared}}})
	if err != nil {
		t.Fatal(err)
	}
	r.c, err = r.by.CreateContainer(t.Context(), core.ContainerConfig{Key: "c", Sandbox: sb.ID, Root: core.Root{Image: img.ID}, Spec: enginetest.Args("program")})
	if err == nil {
		err = r.by.StartContainer(t.Context(), r.c.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// restart is the death of the agent and the start of the next one.
func (r *rig) restart() {
	r.t.Helper()
	r.Restart()
	r.by = r.Engine.As("test")
}

func (r *rig) now() core.Container {
	r.t.Helper()
	c, err := r.by.Container(r.t.Context(), r.c.ID)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// is asserts a state and a phase.
func (r *rig) is(state core.ContainerState, phase core.RestPhase) {
	r.t.Helper()
	c := r.now()
	if c.Rest == nil {
		c.Rest = &core.Rest{}
	}
	if c.State != state || c.Rest.Phase != phase {
		r.t.Errorf("the container is %s, %q, want %s, %q", c.State, c.Rest.Phase, state, phase)
	}
}

func (r *rig) sleep() {
	r.t.Helper()
	if err := r.by.Rests.Sleep(r.t.Context(), r.c.ID); err != nil {
		r.t.Fatal(err)
	}
}

// notes are the notes of the container's events of a kind.
func (r *rig) notes(kind core.EventKind) (notes []string) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	last, err := r.by.LastSeq(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	for e, err := range r.by.Events(ctx, 0, core.Filter{}) {
		if err != nil {
			r.t.Fatal(err)
		}
		if e.Kind == kind {
			notes = append(notes, e.Note)
		}
		if e.Seq == last {
			break
		}
	}
	return notes
}

func TestSleepAndWake(t *testing.T) {
	r := newRig(t)
	r.sleep()
	r.is(core.ContainerAsleep, core.RestAsleep)
	r.sleep() // it sleeps already
	if got := r.notes(core.EventContainerAsleep); !slices.Equal(got, []string{"1 processes gave back 64 MiB; 1 areas stay: io_uring"}) {
		t.Errorf("events %q", got)
	}
	if err := r.by.PauseContainer(t.Context(), r.c.ID); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a pause of a sleeping container: %v", err)
	}
	if err := r.by.Rests.Wake(t.Context(), r.c.ID, asleep.ByRequest); err != nil {
		t.Fatal(err)
	}
	r.is(core.ContainerRunning, core.RestWaking)
	if err := r.by.Rests.Sleep(t.Context(), r.c.ID); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a sleep before all pages are restored: %v", err)
	}
	r.Sleeper.Back(r.c.ID, core.Woken{Pages: 9, Faults: 2, Took: time.Second})
	r.is(core.ContainerRunning, core.RestOver)
	if rest := r.now().Rest; rest.Pages != 9 || rest.Faults != 2 || rest.Back != time.Second || rest.By != "by a request" {
		t.Errorf("%+v", rest)
	}
	if err := r.by.Rests.Wake(t.Context(), r.c.ID, asleep.ByRequest); err != nil {
		t.Errorf("a wake of a running container: %v", err)
	}
}

// TestReasonsOfAWake wakes a container by each of its users.
func TestReasonsOfAWake(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		by   string
		wake func() error
	}{
		{"for an exec", func() error {
			_, _, err := r.by.Exec(t.Context(), r.c.ID, core.ProcessConfig{ID: "e", Spec: &specs.Process{Args: []string{"true"}}})
			return errors.Join(err, r.by.RemoveProcess(t.Context(), core.Ref{Container: r.c.ID, Process: "e"}, engine.RemoveOptions{Force: true}))
		}},
		{"for a signal", func() error {
			return r.by.Signal(t.Context(), core.Ref{Container: r.c.ID}, 10, core.StopRequest{})
		}},
		{"for a packet", func() error { r.Sleeper.Knock(r.c.ID); return nil }},
	} {
		r.sleep()
		if err := c.wake(); err != nil {
			t.Fatalf("%s: %v", c.by, err)
		}
		r.is(core.ContainerRunning, core.RestWaking)
		if got := r.now().Rest.By; got != c.by {
			t.Errorf("woken %q, want %q", got, c.by)
		}
		r.Sleeper.Back(r.c.ID, core.Woken{})
	}
}

// TestASleepThatFails: the container runs as before.
func TestASleepThatFails(t *testing.T) {
	r := newRig(t)
	for _, call := range []string{"Watch", "Sleep"} {
		r.Sleeper.Fail(func(c string) error {
			if c == call {
				return errdefs.ErrResourceExhausted
			}
			return nil
		})
		if err := r.by.Rests.Sleep(t.Context(), r.c.ID); !errdefs.IsResourceExhausted(err) {
			t.Errorf("%s fails: %v", call, err)
		}
		r.is(core.ContainerRunning, core.RestOver)
	}
	r.Sleeper.Fail(nil)
	_, _, err := r.by.Exec(t.Context(), r.c.ID, core.ProcessConfig{ID: "e", Spec: &specs.Process{Args: []string{"sleep"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.by.Rests.Sleep(t.Context(), r.c.ID); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "an exec runs in it") {
		t.Errorf("with an exec: %v", err)
	}
	r.is(core.ContainerRunning, core.RestOver)
}

// TestLostMemoryEndsTheContainer: its processes must not read empty pages.
func TestLostMemoryEndsTheContainer(t *testing.T) {
	for name, lose := range map[string]func(r *rig){
		"at a wake": func(r *rig) {
			r.Sleeper.Lose(r.c.ID)
			if err := r.by.Rests.Wake(t.Context(), r.c.ID, asleep.ByRequest); !errors.Is(err, core.ErrMemoryLost) {
				r.t.Errorf("a wake without memory: %v", err)
			}
		},
		"at a start of the agent": func(r *rig) {
			r.Sleeper.Lose(r.c.ID)
			r.restart()
		},
		"with its files": func(r *rig) {
			if err := r.Sleeper.Forget(r.t.Context(), r.c.ID); err != nil {
				r.t.Error(err)
			}
			r.restart()
		},
		"in a wake": func(r *rig) {
			if err := r.by.Rests.Wake(t.Context(), r.c.ID, asleep.ByRequest); err != nil {
				r.t.Error(err)
			}
			r.Sleeper.Back(r.c.ID, core.Woken{Err: core.ErrMemoryLost})
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.sleep()
			lose(r)
			a, err := r.by.Wait(t.Context(), core.Ref{Container: r.c.ID})
			if err != nil || a.StopRequest == nil || a.StopRequest.Call != asleep.LostCall {
				t.Errorf("the end: %+v, %v", a, err)
			}
		})
	}
}

// TestAContainerEndsAsItWakes: the end of its process is recorded at each step of the wake. Wake and stop succeed.
func TestAContainerEndsAsItWakes(t *testing.T) {
	for _, step := range []string{"Stage", "Wake"} {
		for verb, call := range map[string]func(*rig) error{
			"wake": func(r *rig) error { return r.by.Rests.Wake(t.Context(), r.c.ID, asleep.ByRequest) },
			"stop": func(r *rig) error { return r.by.StopContainer(t.Context(), r.c.ID, engine.StopOptions{}) },
		} {
			r := newRig(t)
			r.sleep()
			var once sync.Once
			r.Sleeper.Fail(func(call string) error {
				if call == step {
					once.Do(func() {
						r.Supervisor.Exit(core.Ref{Container: r.c.ID}, 7)
						if _, err := r.by.Wait(t.Context(), core.Ref{Container: r.c.ID}); err != nil {
							t.Error(err)
						}
						r.Settle()
					})
				}
				return nil
			})
			if err := call(r); err != nil {
				t.Errorf("%s at its end in %s: %v", verb, step, err)
			}
			r.is(core.ContainerExited, core.RestAsleep)
			// The end is recorded before its files are removed, by another goroutine.
			roottest.Eventually(t, verb+" at its end in "+step+" leaves no files", func() bool {
				left, err := r.Sleeper.Asleep(t.Context())
				return err == nil && len(left) == 0
			})
		}
	}
}

// TestAStopOfALostContainerSucceeds: it has ended afterwards.
func TestAStopOfALostContainerSucceeds(t *testing.T) {
	r := newRig(t)
	r.sleep()
	r.Sleeper.Lose(r.c.ID)
	if err := r.by.StopSandbox(t.Context(), r.c.Sandbox, engine.StopOptions{}); err != nil {
		t.Error(err)
	}
	if c := r.now(); c.State != core.ContainerExited {
		t.Errorf("it is %s", c.State)
	}
}

// TestTheNextAgentContinues restarts the agent at each step.
func TestTheNextAgentContinues(t *testing.T) {
	r := newRig(t)
	r.sleep()
	r.restart()
	r.is(core.ContainerAsleep, core.RestAsleep)
	r.Sleeper.Knock(r.c.ID) // it watches on
	r.is(core.ContainerRunning, core.RestWaking)
	r.restart()
	r.is(core.ContainerRunning, core.RestWaking)
	r.Sleeper.Back(r.c.ID, core.Woken{})
	r.is(core.ContainerRunning, core.RestOver)

	r.sleep()
	if err := r.by.RemoveContainer(t.Context(), r.c.ID, engine.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	if ids, err := r.Sleeper.Asleep(t.Context()); err != nil || len(ids) > 0 {
		t.Errorf("files of a removed container: %v, %v", ids, err)
	}
}

// TestCheckSeesMemoryWithoutASleep: files of a container that does not sleep, and a sleeping container without files.
func TestCheckSeesMemoryWithoutASleep(t *testing.T) {
	r := newRig(t)
	if err := r.by.Rests.Sleep(t.Context(), r.c.ID); err != nil {
		t.Fatal(err)
	}
	r.Clean()
	if err := errors.Join(r.Sleeper.Forget(t.Context(), r.c.ID), stored(t, r, "gone")); err != nil {
		t.Fatal(err)
	}
	found, err := r.Engine.Check(t.Context())
	if err != nil || len(found) != 2 {
		t.Fatalf("%v, %v", found, err)
	}
	for i, want := range []string{"missing container " + string(r.c.ID) + ": it sleeps, and its memory is gone", "orphan memory of container gone: the container does not sleep"} {
		if found[i].String() != want {
			t.Errorf("%q", found[i])
		}
	}
	if _, err := r.Engine.Reclaim(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, err := r.Sleeper.Asleep(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("still stored: %v, %v", left, err)
	}
}

// stored gives the sleeper files of a container.
func stored(t *testing.T, r *rig, id core.ID) error {
	t.Helper()
	_, err := r.Sleeper.Watch(t.Context(), id, "", func() {})
	return err
}
