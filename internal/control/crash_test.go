package control_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// mortal is a rig with an agent that dies at the point of a Crash.
func mortal(t *testing.T) (*rig, *enginetest.Crash) {
	t.Helper()
	r := newRig(t)
	r.stop()
	r.Stop()
	c := r.Crashes()
	r.Start()
	r.serve(t)
	return r, c
}

// life returns a crash test of a call that changes the container "one".
func (r *rig) life(t *testing.T, c *enginetest.Crash, call func(ctx context.Context) error) enginetest.Life {
	return enginetest.Life{
		Node: r.Node, Crash: c, Call: call,
		Again: func() error { return call(t.Context()) },
		Restart: func() {
			r.stop()
			r.Start()
			r.serve(t)
		},
		Clear: func() error {
			_, err := r.containers.Remove(t.Context(), &longshorev1.RemoveRequest{Name: "one", Force: true})
			if status.Code(err) == codes.NotFound {
				err = nil
			}
			if logs, lerr := os.ReadDir(r.logs); err == nil && (lerr != nil || len(logs) > 0) {
				err = fmt.Errorf("logs left: %v, %w", logs, lerr)
			}
			return err
		},
	}
}

// TestTheAgentDiesInACreate kills the agent after every stage of a create. The repeated create succeeds, or refuses the
// name as in use, and then a container with this name runs or can be started.
func TestTheAgentDiesInACreate(t *testing.T) {
	for _, auto := range []bool{false, true} {
		t.Run(fmt.Sprintf("auto_remove=%v", auto), func(t *testing.T) {
			enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
				r, c := mortal(t)
				create := func(ctx context.Context) error {
					stream, err := r.containers.Create(ctx, &longshorev1.CreateRequest{Name: "one", Image: "busybox", Start: true, AutoRemove: auto})
					if err != nil {
						return err
					}
					for {
						if m, err := stream.Recv(); err != nil || m.GetCreated() != nil {
							return err
						}
					}
				}
				l := r.life(t, c, create)
				l.Again = func() error {
					err := create(t.Context())
					if status.Code(err) != codes.AlreadyExists {
						return err
					}
					resp, err := r.containers.ListContainers(t.Context(), &longshorev1.ListContainersRequest{All: true})
					if err != nil || len(resp.GetContainers()) != 1 {
						return fmt.Errorf("the name is in use by %v, %w", resp.GetContainers(), err)
					}
					switch state := resp.GetContainers()[0].GetState(); state {
					case "running":
						return nil
					case "created":
						_, err := r.containers.Start(t.Context(), &longshorev1.StartRequest{Name: "one"})
						return err
					default:
						return fmt.Errorf("the name is in use by a container that is %s", state)
					}
				}
				return l
			})
		})
	}
}

// TestTheAgentDiesInARemove kills the agent after every stage of a removal. Afterwards the rest can be removed, and the
// name is free.
func TestTheAgentDiesInARemove(t *testing.T) {
	enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
		r, c := mortal(t)
		r.create(t, &longshorev1.CreateRequest{Name: "one", Image: "busybox", Start: true})
		l := r.life(t, c, func(ctx context.Context) error {
			_, err := r.containers.Remove(ctx, &longshorev1.RemoveRequest{Name: "one", Force: true})
			return err
		})
		l.Again = func() error {
			if err := l.Call(t.Context()); err != nil && status.Code(err) != codes.NotFound {
				return err
			}
			_, err := r.tryCreate(t, &longshorev1.CreateRequest{Name: "one", Image: "busybox", Start: true})
			return err
		}
		return l
	})
}

// TestTheAgentDiesInAStop kills the agent after every stage of a stop. A container that still runs can be stopped, and
// ends once.
func TestTheAgentDiesInAStop(t *testing.T) {
	enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
		r, c := mortal(t)
		r.create(t, &longshorev1.CreateRequest{Name: "one", Image: "busybox", Start: true})
		l := r.life(t, c, func(ctx context.Context) error {
			_, err := r.containers.Stop(ctx, &longshorev1.StopRequest{Name: "one"})
			return err
		})
		l.Again = func() error {
			if err := l.Call(t.Context()); err != nil {
				return err
			}
			_, err := r.containers.Wait(t.Context(), &longshorev1.WaitRequest{Name: "one"})
			return err
		}
		return l
	})
}

// flaky is a store that returns errors for a while.
type flaky struct {
	core.Store
	broken atomic.Bool
	failed chan struct{} // gets each failed read that the test waits for
}

func (f *flaky) View(fn func(core.Tx) error) error {
	if !f.broken.Load() {
		return f.Store.View(fn)
	}
	select {
	case f.failed <- struct{}{}:
	default:
	}
	return errors.New("the store cannot be read")
}

// TestAutoRemovalAfterTheLogCouldNotBeRead checks that a container with --rm is removed at its end, also after the
// event log was unreadable for a while.
func TestAutoRemovalAfterTheLogCouldNotBeRead(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.Stop()
	store := &flaky{Store: r.Options.Store, failed: make(chan struct{})}
	r.Options.Store = store
	r.Start()
	r.serve(t)
	c := r.create(t, &longshorev1.CreateRequest{Name: "one", Image: "busybox", Start: true, AutoRemove: true})
	store.broken.Store(true)
	// Now all followers read.
	err := store.Update(func(tx core.Tx) error {
		_, err := tx.Append(core.Event{Kind: core.EventContainerExited, Owner: core.OwnerCLI})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	<-store.failed
	store.broken.Store(false)
	r.Supervisor.Exit(core.Ref{Container: core.ID(c.GetId())}, 0)
	r.waitFor(t, of(core.EventSandboxRemoved, c.GetSandbox()))
}
