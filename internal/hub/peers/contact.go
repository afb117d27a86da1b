package peers

import (
	"context"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// How often this hub asks etcd for a record, and how long it waits for the answer.
const (
	askEvery   = time.Second
	askTimeout = 2 * time.Second
)

// contact is when etcd answered last, and whether it answers.
type contact struct {
	mu   sync.Mutex // guards last, lost
	last time.Time
	lost bool
}

// LastContact returns the time of this hub's last contact with etcd, and true while it cannot be
// reached. A database inside of the hub is always reached.
func (p *Peers) LastContact() (at time.Time, lost bool) {
	p.contact.mu.Lock()
	defer p.contact.mu.Unlock()
	return p.contact.last, p.contact.lost
}

// ask asks etcd for a record until ctx ends. A member answers only while it has a majority, and the answer
// counts once the inventory has that record too.
func (p *Peers) ask(ctx context.Context) error {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		begun := time.Now()
		err := p.askOnce(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p.contact.mu.Lock()
		before, last := p.contact.lost, p.contact.last
		p.contact.lost = err != nil
		if err == nil {
			p.contact.last = begun
		}
		p.contact.mu.Unlock()
		switch {
		case err != nil && !before:
			p.o.Log.WarnContext(ctx, "etcd cannot be reached; reads are answered with the last known records", "as_of", last.UTC().Format(time.RFC3339), "error", err)
		case err == nil && before:
			p.o.Log.InfoContext(ctx, "etcd is reached again; reads are answered with its records")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (p *Peers) askOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	r, err := p.o.Store.Get(ctx, leaderKey)
	if errdefs.IsNotFound(err) { // no hub has led yet
		return nil
	}
	if err != nil {
		return err
	}
	return p.o.Inventory.Reach(ctx, r.Rev)
}
