package runner

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// followers are containers that are started after the holders of the namespaces that they join.
type followers struct {
	mu      sync.Mutex // guards waiting, due
	waiting map[core.ID][]pending
	due     map[core.ID]bool // their holder has changed: the time in their record does not count
}

// wait notes that p is to be started after a change of holder.
func (f *followers) wait(holder core.ID, p pending) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting == nil {
		f.waiting, f.due = map[core.ID][]pending{}, map[core.ID]bool{}
	}
	if !slices.Contains(f.waiting[holder], p) {
		f.waiting[holder] = append(f.waiting[holder], p)
	}
}

// changed returns the containers that wait for a holder. They do not wait any more.
func (f *followers) changed(holder core.ID) []pending {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.waiting[holder]
	delete(f.waiting, holder)
	for _, p := range list {
		f.due[p.id] = true
	}
	return list
}

// isDue reports whether the holder of a container has changed since the last start of the container.
func (f *followers) isDue(id core.ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.due[id]
}

// begin is isDue at the begin of a start.
func (f *followers) begin(id core.ID) (due bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	due = f.due[id]
	delete(f.due, id)
	return due
}

// follow queues the containers that wait for one that has changed.
func (r *Runner) follow(holder core.ID) {
	for _, p := range r.followers.changed(holder) {
		r.queue.Put(p, time.Now(), time.Time{})
	}
}

// waits reports whether a container has to wait for the holder of its joined namespaces, because a
// restart of the holder is pending. follow queues it again. The wait is noted before the holder's record
// is read, so that no change is missed.
func (r *Runner) waits(ctx context.Context, own *engine.Client, p pending) bool {
	c, err := own.Container(ctx, p.id)
	if err != nil {
		return false
	}
	sb, err := own.Sandbox(ctx, c.Sandbox)
	if err != nil {
		return false
	}
	for _, id := range sb.Config.Namespaces.Holders() {
		r.followers.wait(id, p)
		if holder, err := own.Container(ctx, id); err == nil && holder.Restarting() {
			return true
		}
	}
	return false
}
