package runner

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// followers are containers that are started after the ones that they need: the holders of joined
// namespaces, and the targets of links.
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

// forget removes a wait.
func (f *followers) forget(id core.ID, p pending) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting[id] = slices.DeleteFunc(f.waiting[id], func(q pending) bool { return q == p }); len(f.waiting[id]) == 0 {
		delete(f.waiting, id)
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

// begin is isDue for a start that begins: the next start has its own time again.
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

// needs are the relations of a container that is due to the ones that it needs.
type needs struct {
	wait  bool    // a restart of one of them is pending; follow queues the container again
	gone  core.ID // a holder of its joined namespaces that was removed
	joins bool    // it joins namespaces
}

// needs finds the relations of a container. The wait is noted before the record of the other one is read, so
// that no change is missed.
func (r *Runner) needs(ctx context.Context, own *engine.Client, p pending) (n needs) {
	c, err := own.Container(ctx, p.id)
	if err != nil {
		return n
	}
	sb, err := own.Sandbox(ctx, c.Sandbox)
	if err != nil {
		return n
	}
	holders := sb.Config.Namespaces.Holders()
	n.joins = len(holders) > 0
	for _, id := range sb.Config.Needs() {
		r.followers.wait(id, p)
		other, err := own.Container(ctx, id)
		holds := slices.Contains(holders, id)
		switch {
		case errdefs.IsNotFound(err) && holds:
			n.gone = id
		case err == nil && other.Restarting():
			n.wait = true
		case !holds:
			r.followers.forget(id, p)
		}
	}
	return n
}
