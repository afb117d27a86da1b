package engine

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// await returns once the end of a process is on record.
func (e *Engine) await(ctx context.Context, ref core.Ref) (core.Autopsy, error) {
	return e.joinWait(ref)(ctx)
}

// joinWait begins to wait for the end of the process that ref names now. The function
// that it returns must be called once. It joins the waiters before it looks: an end in
// between wakes it.
func (e *Engine) joinWait(ref core.Ref) func(context.Context) (core.Autopsy, error) {
	x := e.waits.join(ref)
	c, err := e.records.container(ref.Container)
	p := c.Process(ref.Process)
	if err == nil && p == nil {
		err = fmt.Errorf("process %s of container %s: %w", ref.Process, ref.Container, errdefs.ErrNotFound)
	}
	if err == nil && p.Autopsy == nil {
		return func(ctx context.Context) (core.Autopsy, error) {
			defer e.waits.leave(ref, x)
			select {
			case <-x.done:
				return x.autopsy, nil
			case <-ctx.Done():
				return core.Autopsy{}, context.Cause(ctx)
			}
		}
	}
	defer e.waits.leave(ref, x)
	var a core.Autopsy
	if err == nil {
		a = *p.Autopsy
	} else {
		select { // it may have been removed between its end and our look
		case <-x.done:
			a, err = x.autopsy, nil
		default:
		}
	}
	return func(context.Context) (core.Autopsy, error) { return a, err }
}
