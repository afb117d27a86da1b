package engine

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// await returns when the end of a process is recorded.
func (e *Engine) await(ctx context.Context, ref core.Ref) (core.Autopsy, error) {
	return e.joinWait(ref)(ctx)
}

// joinWait begins to wait for the end of the process that ref names now. The function that it
// returns must be called once. joinWait registers as a waiter before it reads the record, so that
// an end in between wakes it.
func (e *Engine) joinWait(ref core.Ref) func(context.Context) (core.Autopsy, error) {
	x := e.waits.Join(ref)
	c, err := e.records.Container(ref.Container)
	p := e.process(&c, ref.Process)
	if err == nil && p == nil {
		err = fmt.Errorf("process %s of container %s: %w", ref.Process, ref.Container, errdefs.ErrNotFound)
	}
	if err == nil && p.Autopsy == nil {
		return func(ctx context.Context) (core.Autopsy, error) {
			defer e.waits.Leave(ref, x)
			select {
			case <-x.Done:
				return x.Autopsy, nil
			case <-ctx.Done():
				return core.Autopsy{}, context.Cause(ctx)
			}
		}
	}
	defer e.waits.Leave(ref, x)
	var a core.Autopsy
	if err == nil {
		a = *p.Autopsy
	} else {
		select { // the record may be gone since the read above
		case <-x.Done:
			a, err = x.Autopsy, nil
		default:
		}
	}
	return func(context.Context) (core.Autopsy, error) { return a, err }
}
