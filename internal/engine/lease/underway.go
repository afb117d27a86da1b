package lease

import (
	"slices"

	"github.com/longshore/longshore/internal/core"
)

// announce wakes those that wait for a pull to begin or to end. Preconditions: mu is held.
func (p *Pulls) announce() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// Leave ends a pull, with or without an image.
func (w *Pull) Leave() {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	w.of.active = slices.DeleteFunc(w.of.active, func(o *Pull) bool { return o == w })
	w.of.announce()
}

// Underway returns the pulls of an owner, or with "" of all owners, that have not ended. The channel is closed when a pull begins
// or ends after that.
func (p *Pulls) Underway(owner core.Owner) ([]core.PullUnderway, <-chan struct{}) {
	p.mu.Lock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	active, changed := slices.Clone(p.active), p.changed
	p.mu.Unlock() // End locks the pull first
	var list []core.PullUnderway
	for _, w := range active {
		if owner == "" || w.owner == owner {
			list = append(list, w.underway())
		}
	}
	return list, changed
}

func (w *Pull) underway() core.PullUnderway {
	w.mu.Lock()
	defer w.mu.Unlock()
	return core.PullUnderway{Owner: w.owner, Ref: w.ref, Began: w.began, Status: w.status, Blobs: slices.Clone(w.blobs)}
}
