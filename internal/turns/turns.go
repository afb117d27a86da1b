// Package turns limits how many tasks run at once, and shares the slots fairly.
//
// A request for a task carries a Path, such as owner, namespace and image. Free slots go to the
// owners in rotation, within an owner to its namespaces, and so on. An owner cannot occupy all
// slots, nor a namespace all slots of its owner while there are enough slots. Therefore another
// owner's first task starts at once. Start reading at Turns.
package turns

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
)

// ErrFull is returned by Ask when too many requests are waiting.
var ErrFull = errors.New("too many wait already")

// Path identifies the source of a request, outermost group first.
type Path []string

// Turns assigns slots to tasks.
type Turns struct {
	slots, most int

	mu      sync.Mutex // guards running, granted, asked, waiting, groups
	running int
	granted uint64 // number of slots assigned so far; group.last refers to it
	asked   uint64 // number of requests so far
	waiting []*request
	groups  map[string]*group // by path; only groups with waiting or running tasks
}

// group counts the tasks and requests below one path. Turns.mu guards it.
type group struct {
	running int
	waiting map[bool]int // requests, by whether they are urgent
	last    uint64       // value of Turns.granted at the last slot of this group
}

// Turn is one task, which any number of requests share. It gets one slot. Turns.mu guards requests,
// running and over.
type Turn struct {
	turns    *Turns
	started  chan struct{} // closed when the task has its slot
	requests []*request
	running  []string // groups in which the slot is counted
	ended    bool
}

// request is one waiting request for a task.
type request struct {
	turn   *Turn
	groups []string // outermost first
	urgent bool
	number uint64
}

// New returns Turns with the given number of slots, at least one. At most most urgent requests and
// most other requests of one outermost group wait; full has the limits of inner groups.
func New(slots, most int) *Turns {
	return &Turns{slots: max(1, slots), most: most, groups: map[string]*group{}}
}

// New returns a task without requests.
func (t *Turns) New() *Turn { return &Turn{turns: t, started: make(chan struct{})} }

// Usage returns the number of running tasks and of waiting requests.
func (t *Turns) Usage() (running, waiting int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running, len(t.waiting)
}

// Take waits for a slot for a task of the caller alone. The caller must call release.
func (t *Turns) Take(ctx context.Context, by Path) (release func(), err error) {
	w := t.New()
	leave, err := w.Ask(by, true)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := w.Wait(ctx); err != nil {
		return nil, err
	}
	return w.Release, nil
}

// Ask adds a request for w, which leave removes. Urgent requests come before all others. Ask does
// nothing when w has a slot or is over. It returns ErrFull only if w does not start at once.
func (w *Turn) Ask(by Path, urgent bool) (leave func(), err error) {
	t := w.turns
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.running != nil || w.ended {
		return func() {}, nil
	}
	groups := keys(by)
	full := t.full(groups, urgent)
	t.asked++
	r := &request{turn: w, groups: groups, urgent: urgent, number: t.asked}
	w.requests, t.waiting = append(w.requests, r), append(t.waiting, r)
	for _, key := range groups {
		g := t.groups[key]
		if g == nil {
			g = &group{waiting: map[bool]int{}}
			t.groups[key] = g
		}
		g.waiting[urgent]++
	}
	t.grant()
	if full && w.running == nil {
		t.remove(r)
		return nil, ErrFull
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.remove(r)
	}, nil
}

// full reports whether a group has reached its limit of waiting requests: most for an outermost
// group, half of that for each group inside it, and so on. Preconditions: t.mu is held.
func (t *Turns) full(groups []string, urgent bool) bool {
	for depth, key := range groups {
		if g := t.groups[key]; g != nil && g.waiting[urgent] >= max(1, t.most>>depth) {
			return true
		}
	}
	return false
}

// Started returns a channel that is closed when w gets its slot.
func (w *Turn) Started() <-chan struct{} { return w.started }

// Wait waits until w has its slot. The caller must call Release, except after an error.
func (w *Turn) Wait(ctx context.Context) error {
	select {
	case <-w.started:
		return nil
	case <-ctx.Done():
		w.Release()
		return context.Cause(ctx)
	}
}

// Release ends w and frees its slot, if it has one.
func (w *Turn) Release() {
	t := w.turns
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.ended {
		return
	}
	w.ended = true
	for _, r := range slices.Clone(w.requests) {
		t.remove(r)
	}
	if w.running == nil {
		return
	}
	for _, key := range w.running {
		t.groups[key].running--
		t.forget(key)
	}
	t.running--
	t.grant()
}

// keys returns the groups of a path, outermost first. Different paths have different keys.
func keys(by Path) []string {
	all := []string{""}
	for i, name := range by {
		if i > 0 {
			all = append(all, all[i-1])
		}
		all[i] += strconv.Quote(name)
	}
	return all
}

// remove removes a waiting request. Preconditions: t.mu is held.
func (t *Turns) remove(r *request) {
	i := slices.Index(t.waiting, r)
	if i < 0 {
		return
	}
	t.waiting = slices.Delete(t.waiting, i, i+1)
	r.turn.requests = slices.DeleteFunc(r.turn.requests, func(other *request) bool { return other == r })
	for _, key := range r.groups {
		t.groups[key].waiting[r.urgent]--
		t.forget(key)
	}
}

// forget deletes an empty group. Preconditions: t.mu is held.
func (t *Turns) forget(key string) {
	if g := t.groups[key]; g.running+g.waiting[true]+g.waiting[false] == 0 {
		delete(t.groups, key)
	}
}

// grant assigns the free slots. Preconditions: t.mu is held.
func (t *Turns) grant() {
	for t.running < t.slots {
		var next *request
		for _, r := range t.waiting {
			if t.mayRun(r) && (next == nil || t.before(r, next)) {
				next = r
			}
		}
		if next == nil {
			return
		}
		t.running++
		t.granted++
		w := next.turn
		w.running = next.groups
		for _, key := range next.groups {
			t.groups[key].running++
			t.groups[key].last = t.granted
		}
		for _, r := range slices.Clone(w.requests) {
			t.remove(r)
		}
		close(w.started)
	}
}

// mayRun reports whether the groups of r may use one more slot. The limit is slots-1 for an
// outermost group, slots-2 for a group inside it, and so on, but at least 1. Preconditions: t.mu is
// held.
func (t *Turns) mayRun(r *request) bool {
	for depth, key := range r.groups {
		if t.groups[key].running >= max(1, t.slots-1-depth) {
			return false
		}
	}
	return true
}

// before reports whether a gets a slot before b. Urgent requests come first. Then the groups are
// compared, outermost first: the one with the older last slot wins. Otherwise the older request
// wins. Preconditions: t.mu is held.
func (t *Turns) before(a, b *request) bool {
	if a.urgent != b.urgent {
		return a.urgent
	}
	for i := range min(len(a.groups), len(b.groups)) {
		if x, y := t.groups[a.groups[i]].last, t.groups[b.groups[i]].last; a.groups[i] != b.groups[i] && x != y {
			return x < y
		} else if a.groups[i] != b.groups[i] {
			break
		}
	}
	return a.number < b.number
}
