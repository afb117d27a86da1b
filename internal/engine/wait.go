package engine

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// await returns once the end of a process is on record. It joins the waiters
// before it looks: an end in between wakes it.
func (e *Engine) await(ctx context.Context, ref core.Ref) (core.Autopsy, error) {
	x := e.waits.join(ref)
	defer e.waits.leave(ref, x)
	c, err := e.records.container(ref.Container)
	if err == nil {
		p := c.Process(ref.Process)
		if p != nil && p.Autopsy != nil {
			return *p.Autopsy, nil
		}
		if p == nil {
			err = fmt.Errorf("process %s of container %s: %w", ref.Process, ref.Container, errdefs.ErrNotFound)
		}
	}
	if err != nil {
		// It may have been removed between its end and our look.
		select {
		case <-x.done:
			return x.autopsy, nil
		default:
			return core.Autopsy{}, err
		}
	}
	select {
	case <-x.done:
		return x.autopsy, nil
	case <-ctx.Done():
		return core.Autopsy{}, context.Cause(ctx)
	}
}
