package engine_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// TestARemovalWaitsForTheEndOfTheInit: the keeper may see the end of a killed process later than
// the kernel, and reports it as running until then.
func TestARemovalWaitsForTheEndOfTheInit(t *testing.T) {
	for _, c := range []struct {
		late int // how many answers the keeper gives before it has seen the end
		ok   bool
	}{{0, true}, {1, true}, {20, true}, {1 << 30, false}} {
		t.Run(fmt.Sprint(c.late), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := enginetest.New(t)
				shared := core.Namespace{Mode: core.Shared}
				sb, err := n.As(core.OwnerCRI).CreateSandbox(t.Context(), core.SandboxConfig{Namespaces: core.Namespaces{PID: shared}})
				if err != nil {
					t.Fatal(err)
				}
				var left atomic.Int64
				left.Store(int64(c.late))
				n.Supervisor.Fail(func(call string) error {
					if call != "Forget" || left.Add(-1) < 0 {
						return nil
					}
					return fmt.Errorf("forget %s/main: it runs: %w", sb.ID, errdefs.ErrFailedPrecondition)
				})
				err = n.As(core.OwnerCRI).RemoveSandbox(t.Context(), sb.ID, engine.RemoveOptions{Force: true})
				n.Supervisor.Fail(nil)
				if (err == nil) != c.ok {
					t.Errorf("error %v", err)
				}
				if err != nil && !errdefs.IsFailedPrecondition(err) {
					t.Errorf("class of %v", err)
				}
				// The removal that failed succeeds when it is repeated.
				if err := n.As(core.OwnerCRI).RemoveSandbox(t.Context(), sb.ID, engine.RemoveOptions{Force: true}); err != nil {
					t.Error(err)
				}
				n.Clean()
			})
		})
	}
}

// syncs counts the calls of Sync.
type syncs struct {
	core.Store
	n atomic.Int64
}

func (s *syncs) Sync() error {
	s.n.Add(1)
	return s.Store.Sync()
}

// TestARemovalSyncsTwice: before a durable container's layer goes, and when the last record is gone. Its parts,
// which stop the program, the container and the sandbox, sync nothing by themselves.
func TestARemovalSyncsTwice(t *testing.T) {
	n := enginetest.Fakes(t)
	s := &syncs{Store: n.Options.Store}
	n.Options.Store = s
	n.Start()
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	cli := n.As(core.OwnerCLI)
	for _, removes := range []bool{true, false} {
		sb, c, err := cli.CreatePair(t.Context(), engine.Pair{
			Sandbox: core.SandboxConfig{Key: "c", Durable: true},
			Container: func(core.ID) (core.ContainerConfig, error) {
				return core.ContainerConfig{Key: "c", Root: core.Root{Image: img.ID}, Spec: enginetest.Args("program"), Durable: true}, nil
			},
		})
		if err == nil {
			err = cli.StartContainer(t.Context(), c.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		s.n.Store(0)
		if removes {
			if err := cli.RemoveSandbox(t.Context(), sb.ID, engine.RemoveOptions{Force: true}); err != nil {
				t.Fatal(err)
			}
			if got := s.n.Load(); got != 2 {
				t.Errorf("a removal of a sandbox with its container has synced the records %d times", got)
			}
			continue
		}
		// Each of three verbs syncs its records.
		for _, verb := range []func() error{
			func() error { return cli.StopSandbox(t.Context(), sb.ID, engine.StopOptions{}) },
			func() error { return cli.RemoveContainer(t.Context(), c.ID, engine.RemoveOptions{}) },
			func() error { return cli.RemoveSandbox(t.Context(), sb.ID, engine.RemoveOptions{}) },
		} {
			s.n.Store(0)
			if err := verb(); err != nil {
				t.Fatal(err)
			}
			if s.n.Load() == 0 {
				t.Error("a verb has returned without syncing the records")
			}
		}
	}
	n.Clean()
}
