package underway

import (
	"sync"

	"github.com/longshore/longshore/internal/core"
)

// Waits wakes the callers that wait for the end of one process. The zero value is ready to
// use.
type Waits struct {
	mu   sync.Mutex // guards refs
	refs map[core.Ref]*Wait
}

// Wait is the wait for one process's end, shared by all its waiters.
type Wait struct {
	// Done is closed when the process has ended; Autopsy then says how.
	Done    chan struct{}
	Autopsy core.Autopsy
	n       int
}

// Join adds a waiter, which must call Leave.
func (t *Waits) Join(ref core.Ref) *Wait {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.refs[ref]
	if w == nil {
		if t.refs == nil {
			t.refs = map[core.Ref]*Wait{}
		}
		w = &Wait{Done: make(chan struct{})}
		t.refs[ref] = w
	}
	w.n++
	return w
}

// Leave removes a waiter.
func (t *Waits) Leave(ref core.Ref, w *Wait) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w.n--
	if w.n == 0 && t.refs[ref] == w {
		delete(t.refs, ref)
	}
}

// Ended wakes all waiters for ref.
func (t *Waits) Ended(ref core.Ref, a core.Autopsy) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.refs[ref]; w != nil {
		w.Autopsy = a
		close(w.Done)
		delete(t.refs, ref)
	}
}
