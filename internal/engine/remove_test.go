package engine_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"

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
