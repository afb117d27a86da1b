// Package lease keeps images from being pruned between the moment when a caller looks them up and
// the moment when a container's record names them.
//
// Leases are in memory only: after a restart no caller is about to use an image. Start at Table
// and Lease.
package lease

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
)

// holding is an image that an owner holds.
type holding struct {
	owner core.Owner
	image digest.Digest
}

// Table holds the open leases. The zero value is ready to use.
type Table struct {
	// pruning serializes the removal of images with lookups: it is read-locked from before an
	// image's lookup until the image is in images.
	pruning sync.RWMutex

	mu     sync.Mutex         // guards images, open
	images map[holding]int    // how many leases hold it
	open   map[core.Owner]int // leases that have not been released
}

// Ports are a Lease's functions to look up images.
type Ports struct {
	Image func(ctx context.Context, ref string) (core.Image, error)
	Pull  func(ctx context.Context, ref string, opts core.PullOptions) (core.Image, error)
}

// Lease holds the images that it has returned, until it is released. It is safe for concurrent
// use.
type Lease struct {
	table *Table
	owner core.Owner
	from  Ports

	mu       sync.Mutex // guards holds, released
	holds    []digest.Digest
	released bool
}

// Open returns a lease that holds no image yet. The caller must release it.
func (t *Table) Open(owner core.Owner, from Ports) *Lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.images, t.open = map[holding]int{}, map[core.Owner]int{}
	}
	t.open[owner]++
	return &Lease{table: t, owner: owner, from: from}
}

// Leased reports whether an owner has leases that have not been released.
func (t *Table) Leased(owner core.Owner) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[owner] > 0
}

// Prune calls prune while no lease can get another image, and tells it which images are held.
func (t *Table) Prune(owner core.Owner, prune func(holds func(digest.Digest) bool) (uint64, error)) (uint64, error) {
	t.pruning.Lock()
	defer t.pruning.Unlock()
	now := map[digest.Digest]bool{}
	t.mu.Lock()
	for h := range t.images {
		if h.owner == owner {
			now[h.image] = true
		}
	}
	t.mu.Unlock()
	return prune(func(id digest.Digest) bool { return now[id] })
}

// Image looks up an image and holds it.
func (l *Lease) Image(ctx context.Context, ref string) (core.Image, error) {
	l.table.pruning.RLock()
	defer l.table.pruning.RUnlock()
	img, err := l.from.Image(ctx, ref)
	if err != nil {
		return img, err
	}
	return img, l.hold(img.ID)
}

// pulls is how often Pull pulls an image that is removed before it is held.
const pulls = 3

// Pull pulls an image and holds it.
func (l *Lease) Pull(ctx context.Context, ref string, opts core.PullOptions) (img core.Image, err error) {
	for range pulls {
		if img, err = l.from.Pull(ctx, ref, opts); err != nil {
			return img, err
		}
		if _, err = l.Image(ctx, string(img.ID)); !errdefs.IsNotFound(err) {
			return img, err
		}
	}
	return img, fmt.Errorf("pull %s: it was removed %d times before a container could use it: %w", ref, pulls, errdefs.ErrUnavailable)
}

func (l *Lease) hold(id digest.Digest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.released {
		return fmt.Errorf("hold image %s: the lease is released: %w", id, errdefs.ErrFailedPrecondition)
	}
	l.holds = append(l.holds, id)
	l.table.mu.Lock()
	defer l.table.mu.Unlock()
	l.table.images[holding{l.owner, id}]++
	return nil
}

// Release ends the lease. Further calls do nothing.
func (l *Lease) Release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.released {
		return
	}
	l.released = true
	l.table.mu.Lock()
	defer l.table.mu.Unlock()
	for _, id := range l.holds {
		h := holding{l.owner, id}
		if l.table.images[h]--; l.table.images[h] == 0 {
			delete(l.table.images, h)
		}
	}
	if l.table.open[l.owner]--; l.table.open[l.owner] == 0 {
		delete(l.table.open, l.owner)
	}
}
