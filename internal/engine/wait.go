package engine

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// waits wakes those who wait for one process's end, and nobody else.
type waits struct {
	mu   sync.Mutex
	refs map[core.Ref]*waiting
}

type waiting struct {
	done    chan struct{}
	autopsy core.Autopsy // once done is closed
	n       int
}

func (w *waits) join(ref core.Ref) *waiting {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.refs[ref]
	if x == nil {
		if w.refs == nil {
			w.refs = map[core.Ref]*waiting{}
		}
		x = &waiting{done: make(chan struct{})}
		w.refs[ref] = x
	}
	x.n++
	return x
}

func (w *waits) leave(ref core.Ref, x *waiting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x.n--
	if x.n == 0 && w.refs[ref] == x {
		delete(w.refs, ref)
	}
}

func (w *waits) ended(ref core.Ref, a core.Autopsy) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x := w.refs[ref]; x != nil {
		x.autopsy = a
		close(x.done)
		delete(w.refs, ref)
	}
}

// await returns once the end of a process is on record. It joins the waiters
// before it looks: an end in between wakes it.
func (e *Engine) await(ctx context.Context, ref core.Ref) (core.Autopsy, error) {
	x := e.waits.join(ref)
	defer e.waits.leave(ref, x)
	c, err := e.container(ref.Container)
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
