package engine

import (
	"sync"

	"github.com/longshore/longshore/internal/core"
)

// waitTable wakes the callers that wait for the end of one process. The zero value is ready to
// use.
type waitTable struct {
	mu   sync.Mutex // guards refs
	refs map[core.Ref]*exitWait
}

// exitWait is the wait for one process's end, shared by all its waiters.
type exitWait struct {
	// done is closed when the process has ended; autopsy then says how.
	done    chan struct{}
	autopsy core.Autopsy
	n       int
}

// join adds a waiter, which must call leave.
func (t *waitTable) join(ref core.Ref) *exitWait {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.refs[ref]
	if w == nil {
		if t.refs == nil {
			t.refs = map[core.Ref]*exitWait{}
		}
		w = &exitWait{done: make(chan struct{})}
		t.refs[ref] = w
	}
	w.n++
	return w
}

// leave removes a waiter.
func (t *waitTable) leave(ref core.Ref, w *exitWait) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w.n--
	if w.n == 0 && t.refs[ref] == w {
		delete(t.refs, ref)
	}
}

// ended wakes all who wait for ref.
func (t *waitTable) ended(ref core.Ref, a core.Autopsy) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.refs[ref]; w != nil {
		w.autopsy = a
		close(w.done)
		delete(t.refs, ref)
	}
}
