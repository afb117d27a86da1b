package engine_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/roottest"
)

// stubborn returns a running container that ignores SIGTERM.
func stubborn(t *testing.T, n *enginetest.Node) core.Container {
	t.Helper()
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	c := n.Running(n.Pod(core.OwnerCRI, "pod"), "c", img, "sleep")
	n.Supervisor.Ignore(core.Ref{Container: c.ID}, 15)
	return c
}

func TestSIGKILLComesAfterTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := enginetest.New(t)
		c := stubborn(t, n)
		ref := core.Ref{Container: c.ID}
		grace := 30 * time.Second
		begin := time.Now()
		if err := n.As(core.OwnerCRI).StopContainer(t.Context(), c.ID, engine.StopOptions{Grace: &grace}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took != grace {
			t.Errorf("it took %v", took)
		}
		a, err := n.As(core.OwnerCRI).Wait(t.Context(), ref)
		if err != nil || a.Exit.Signal != 9 || a.StopRequest == nil || a.StopRequest.Signal != 15 ||
			a.Verdict != "killed by SIGKILL: it did not end by SIGTERM within its grace; asked for by cri StopContainer" {
			t.Errorf("%+v, %v", a, err)
		}
		if got := n.Supervisor.Signals(ref); !slices.Equal(got, []int{15}) {
			t.Errorf("signals %v", got)
		}
	})
}

// TestTheShortestGraceCounts: a second stop with a shorter grace period shortens the first, one
// with a longer does not lengthen it, and a caller that leaves stops nothing.
func TestTheShortestGraceCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := enginetest.New(t)
		c := stubborn(t, n)
		begin := time.Now()
		var wg sync.WaitGroup
		for _, g := range []time.Duration{time.Hour, time.Minute, 2 * time.Hour} {
			wg.Go(func() {
				if err := n.As(core.OwnerCRI).StopContainer(t.Context(), c.ID, engine.StopOptions{Grace: &g}); err != nil {
					t.Error(err)
				}
				if took := time.Since(begin); took != time.Minute {
					t.Errorf("the stop with grace %v took %v", g, took)
				}
			})
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			g := 10 * time.Second
			err := n.As(core.OwnerCRI).StopContainer(ctx, c.ID, engine.StopOptions{Grace: &g})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("err = %v", err)
			}
		})
		wg.Wait()
	})
}

func TestAPausedContainerIsResumedToHearItsSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := enginetest.New(t)
		c := stubborn(t, n)
		n.Supervisor.Ignore(core.Ref{Container: c.ID})
		client := n.As(core.OwnerCRI)
		if err := client.PauseContainer(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
		grace := time.Minute
		if err := client.StopContainer(t.Context(), c.ID, engine.StopOptions{Grace: &grace}); err != nil {
			t.Fatal(err)
		}
		a, err := client.Wait(t.Context(), core.Ref{Container: c.ID})
		if err != nil || a.Exit.Signal != 15 {
			t.Fatalf("%+v, %v", a, err)
		}
		if notes := forced(t, n); len(notes) > 0 { // its owner has stopped it
			t.Errorf("forced changes are recorded: %q", notes)
		}
	})
}

// forced returns the notes of the recorded changes to other owners' objects.
func forced(t *testing.T, n *enginetest.Node) (notes []string) {
	t.Helper()
	err := n.Options.Store.View(func(tx core.Tx) error {
		for ev, err := range tx.Events(0) {
			if err != nil {
				return err
			}
			if ev.Kind == core.EventForced {
				notes = append(notes, ev.Note)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return notes
}

func TestAForcedChangeIsRecordedOfEachVerb(t *testing.T) {
	n := enginetest.New(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	sb := n.Pod(core.OwnerCRI, "pod")
	c := n.Running(sb, "app", img, "wait")
	all := n.Engine.All()
	for verb, do := range map[string]func() error{
		"attach": func() error { return all.Attachments.Attach(t.Context(), sb.ID, core.Attachment{Network: "back"}) },
		"rename": func() error { return all.RenameContainer(t.Context(), c.ID, "front") },
		"pause":  func() error { return all.PauseContainer(t.Context(), c.ID) },
	} {
		before := len(forced(t, n))
		if err := do(); err != nil {
			t.Fatal(err)
		}
		notes := forced(t, n)
		if want := "cli: " + verb + " on an object of cri"; len(notes) != before+1 || notes[before] != want {
			t.Errorf("%s is recorded as %q, want %q", verb, notes[before:], want)
		}
	}
	if err := all.Attachments.Detach(t.Context(), sb.ID, "back"); err != nil {
		t.Fatal(err)
	}
	if notes := forced(t, n); notes[len(notes)-1] != "cli: detach on an object of cri" {
		t.Errorf("a detach is recorded as %q", notes[len(notes)-1])
	}
}

func TestManyWaitForOneEnd(t *testing.T) {
	n := enginetest.New(t)
	c := stubborn(t, n)
	client, ref := n.As(core.OwnerCRI), core.Ref{Container: c.ID}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if a, err := client.Wait(t.Context(), ref); err != nil || a.Exit.Code != 4 {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.Wait(ctx, ref); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	n.Supervisor.Exit(ref, 4)
	wg.Wait()
}

// TestACancelledCreateLeavesNothing cancels a create while its spec is being made.
func TestACancelledCreateLeavesNothing(t *testing.T) {
	n := enginetest.New(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	sb := n.Pod(core.OwnerCRI, "pod")
	before := n.Left()
	ctx, cancel := context.WithCancel(t.Context())
	_, err := n.As(core.OwnerCRI).CreateContainer(ctx, core.ContainerConfig{
		Key: "c", Sandbox: sb.ID, Root: core.Root{Image: img.ID},
		Spec: func(context.Context, core.Rootfs) (*specs.Spec, []byte, error) {
			cancel()
			return &specs.Spec{Process: &specs.Process{Args: []string{"sleep"}}}, nil, nil
		},
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("err = %v", err)
	}
	if left := n.Left(); !slices.Equal(left, before) {
		t.Errorf("left: %v", left)
	}
	n.Clean()
}

// TestAStopDoesNotWaitForCreates: the stop of a sandbox aborts a create that waits for something,
// as for the compilation of its program, and one that waits for that create.
func TestAStopDoesNotWaitForCreates(t *testing.T) {
	for name, end := range map[string]func(ctx context.Context, c *engine.Client, id core.ID) error{
		"stop": func(ctx context.Context, c *engine.Client, id core.ID) error {
			return c.StopSandbox(ctx, id, engine.StopOptions{})
		},
		"remove": func(ctx context.Context, c *engine.Client, id core.ID) error {
			return c.RemoveSandbox(ctx, id, engine.RemoveOptions{Force: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := enginetest.New(t)
			img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
			client, sb := n.As(core.OwnerCRI), n.Pod(core.OwnerCRI, "pod")
			before := n.Left()
			waits := make(chan struct{})
			done := make(chan error, 2)
			create := func(key core.Key, spec core.SpecFunc) {
				_, err := client.CreateContainer(t.Context(), core.ContainerConfig{Key: key, Sandbox: sb.ID, Root: core.Root{Image: img.ID}, Spec: spec})
				done <- err
			}
			go create("waits", func(ctx context.Context, _ core.Rootfs) (*specs.Spec, []byte, error) {
				close(waits)
				<-ctx.Done()
				return nil, nil, context.Cause(ctx)
			})
			<-waits
			go create("next", enginetest.Args("sleep"))
			ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
			defer cancel()
			if err := end(ctx, client, sb.ID); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for range 2 {
				if err := <-done; !errdefs.IsAborted(err) && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
					t.Errorf("a create: %v", err)
				}
			}
			if name == "stop" {
				if err := client.RemoveSandbox(t.Context(), sb.ID, engine.RemoveOptions{}); err != nil {
					t.Error(err)
				}
			}
			if left := n.Left(); len(left) >= len(before) {
				t.Errorf("left: %v, before %v", left, before)
			}
			n.Clean()
		})
	}
}

// TestAStopOfAContainerThatIsBeingCreated gives up its create, and no other one in the sandbox.
func TestAStopOfAContainerThatIsBeingCreated(t *testing.T) {
	for name, end := range map[string]func(ctx context.Context, c *engine.Client, id core.ID) error{
		"stop": func(ctx context.Context, c *engine.Client, id core.ID) error {
			return c.StopContainer(ctx, id, engine.StopOptions{})
		},
		"remove": func(ctx context.Context, c *engine.Client, id core.ID) error {
			return c.RemoveContainer(ctx, id, engine.RemoveOptions{Force: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := enginetest.New(t)
			img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
			client, sb := n.As(core.OwnerCRI), n.Pod(core.OwnerCRI, "pod")
			waits := make(chan struct{})
			create := func(key core.Key, spec core.SpecFunc) <-chan error {
				done := make(chan error, 1)
				go func() {
					_, err := client.CreateContainer(t.Context(), core.ContainerConfig{Key: key, Sandbox: sb.ID, Root: core.Root{Image: img.ID}, Spec: spec})
					done <- err
				}()
				return done
			}
			first := create("waits", func(ctx context.Context, _ core.Rootfs) (*specs.Spec, []byte, error) {
				close(waits)
				<-ctx.Done()
				return nil, nil, context.Cause(ctx)
			})
			<-waits
			next := create("next", enginetest.Args("sleep"))
			all, err := client.Stored.ContainersOf(sb.ID)
			if err != nil || len(all) != 1 {
				t.Fatalf("%d containers, %v", len(all), err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
			defer cancel()
			if err := end(ctx, client, all[0].ID); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if err := <-first; !errdefs.IsAborted(err) {
				t.Errorf("its create: %v", err)
			}
			if err := <-next; err != nil {
				t.Errorf("another create: %v", err)
			}
			n.Clean()
		})
	}
}

func TestASecondCreateAnswersTheFirstObject(t *testing.T) {
	n := enginetest.New(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	sb := n.Pod(core.OwnerCRI, "pod")
	again, err := n.As(core.OwnerCRI).CreateSandbox(t.Context(), core.SandboxConfig{Key: "pod"})
	if !errdefs.IsAlreadyExists(err) || again.ID != sb.ID || again.State != core.SandboxReady {
		t.Fatalf("%+v, %v", again, err)
	}
	// Concurrent creates: one object is made, and all get it.
	var wg sync.WaitGroup
	var mu sync.Mutex
	made, ids := 0, map[core.ID]bool{}
	for range 20 {
		wg.Go(func() {
			c, err := n.As(core.OwnerCRI).CreateContainer(t.Context(), core.ContainerConfig{
				Key: "c", Sandbox: sb.ID, Root: core.Root{Image: img.ID}, Spec: enginetest.Args("sleep"),
			})
			mu.Lock()
			defer mu.Unlock()
			ids[c.ID] = true
			if err == nil {
				made++
			} else if !errdefs.IsAlreadyExists(err) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if made != 1 || len(ids) != 1 {
		t.Errorf("made %d, ids %v", made, ids)
	}
}

func TestEventsAreFollowedFromACursor(t *testing.T) {
	n := enginetest.New(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	sb := n.Pod(core.OwnerCRI, "pod")
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan core.Event)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ev, err := range n.As(core.OwnerCRI).Events(ctx, sb.Rev, core.Filter{Kinds: []core.EventKind{core.EventContainerStarted, core.EventContainerExited}}) {
			if err != nil {
				t.Error(err)
				return
			}
			got <- ev
		}
	}()
	c := n.Running(sb, "c", img, "sleep")
	n.Running(n.Pod(core.OwnerNomad, "other"), "c", img, "sleep")
	if ev := <-got; ev.Container != c.ID || ev.Kind != core.EventContainerStarted {
		t.Errorf("%+v", ev)
	}
	n.Supervisor.Exit(core.Ref{Container: c.ID}, 1)
	if ev := <-got; ev.Container != c.ID || ev.Autopsy == nil || ev.Autopsy.Exit.Code != 1 {
		t.Errorf("%+v", ev)
	}
	cancel()
	<-done
	for _, err := range n.As(core.OwnerCRI).Events(t.Context(), 1<<40, core.Filter{}) {
		if !errdefs.IsOutOfRange(err) {
			t.Errorf("from the future: %v", err)
		}
	}
}

// TestTheReasonIsTheStop: a SIGHUP that the program handled before does not hide a stop by any
// signal, and is not a reason by itself.
func TestTheReasonIsTheStop(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(t *testing.T, n *enginetest.Node, id core.ID)
		want string
	}{
		"by itself": {
			func(_ *testing.T, n *enginetest.Node, id core.ID) { n.Supervisor.Exit(core.Ref{Container: id}, 3) },
			"exited with code 3",
		},
		"out of memory": {
			func(_ *testing.T, n *enginetest.Node, id core.ID) {
				n.Supervisor.ExitAs(core.Ref{Container: id}, core.Exit{Signal: 9})
			},
			"killed by SIGKILL, which nobody here has sent",
		},
		"a stop by SIGINT": {
			func(t *testing.T, n *enginetest.Node, id core.ID) {
				grace := time.Minute
				if err := n.As(core.OwnerCRI).StopContainer(t.Context(), id, engine.StopOptions{Signal: "SIGINT", Grace: &grace}); err != nil {
					t.Error(err)
				}
			},
			"ended by SIGINT, asked for by cri StopContainer",
		},
		"a SIGUSR1 that it does not handle": {
			func(t *testing.T, n *enginetest.Node, id core.ID) {
				if err := n.As(core.OwnerCRI).Signal(t.Context(), core.Ref{Container: id}, 10, core.StopRequest{}); err != nil {
					t.Error(err)
				}
				n.Supervisor.ExitAs(core.Ref{Container: id}, core.Exit{Signal: 10})
			},
			"ended by SIGUSR1, asked for by cri Signal",
		},
		"a SIGTERM that it handles, and a SIGUSR1 before its end": {
			func(t *testing.T, n *enginetest.Node, id core.ID) {
				n.Supervisor.Ignore(core.Ref{Container: id}, 15)
				for _, sig := range []int{15, 10} {
					if err := n.As(core.OwnerCRI).Signal(t.Context(), core.Ref{Container: id}, sig, core.StopRequest{}); err != nil {
						t.Error(err)
					}
				}
				n.Supervisor.Exit(core.Ref{Container: id}, 0)
			},
			"exited with code 0 after SIGTERM, asked for by cri Signal",
		},
		"a stop and a SIGHUP": {
			func(t *testing.T, n *enginetest.Node, id core.ID) {
				n.Supervisor.Ignore(core.Ref{Container: id}, 1, 10)
				grace, client := time.Minute, n.As(core.OwnerCRI)
				var wg sync.WaitGroup
				wg.Go(func() {
					if err := client.StopContainer(t.Context(), id, engine.StopOptions{Signal: "SIGUSR1", Grace: &grace}); err != nil {
						t.Error(err)
					}
				})
				synctest.Wait()
				if err := client.Signal(t.Context(), core.Ref{Container: id}, 1, core.StopRequest{}); err != nil {
					t.Error(err)
				}
				wg.Wait()
			},
			"killed by SIGKILL: it did not end by SIGUSR1 within its grace; asked for by cri StopContainer",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := enginetest.New(t)
				img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
				id := n.Running(n.Pod(core.OwnerCRI, "pod"), "c", img, "sleep").ID
				ref := core.Ref{Container: id}
				n.Supervisor.Ignore(ref, 1)
				if err := n.As(core.OwnerCRI).Signal(t.Context(), ref, 1, core.StopRequest{}); err != nil {
					t.Fatal(err)
				}
				<-time.After(time.Minute)
				c.end(t, n, id)
				a, err := n.As(core.OwnerCRI).Wait(t.Context(), ref)
				if err != nil || a.Verdict != c.want {
					t.Errorf("%q, want %q, %v", a.Verdict, c.want, err)
				}
			})
		})
	}
}
