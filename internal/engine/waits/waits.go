// Package waits wakes those who wait for one process's end, and nobody else.
//
// It knows neither records nor stores: who asks, looks at those himself, after
// he has joined. Start at Table.
package waits

import (
	"sync"

	"github.com/longshore/longshore/internal/core"
)

// Table holds who waits for whom. The zero Table is ready to use.
type Table struct {
	mu   sync.Mutex // guards refs
	refs map[core.Ref]*Wait
}

// Wait is one process's end, shared by all who wait for it.
type Wait struct {
	// Done is closed when the process has ended, and Autopsy then says how.
	Done    chan struct{}
	Autopsy core.Autopsy
	n       int
}

// Join adds a waiter, who has to Leave.
func (t *Table) Join(ref core.Ref) *Wait {
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

// Leave takes a waiter away again.
func (t *Table) Leave(ref core.Ref, w *Wait) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w.n--
	if w.n == 0 && t.refs[ref] == w {
		delete(t.refs, ref)
	}
}

// Ended wakes all who wait for ref.
func (t *Table) Ended(ref core.Ref, a core.Autopsy) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.refs[ref]; w != nil {
		w.Autopsy = a
		close(w.Done)
		delete(t.refs, ref)
	}
}
