// Package lease keeps images from being pruned between the moment somebody finds
// them and the moment a container's record names them.
//
// Leases live in memory: after a restart nobody is about to use an image. Start
// at Table and Lease.
package lease

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
)

// held is an image of an owner's.
type held struct {
	owner core.Owner
	image digest.Digest
}

// Table has the open leases. The zero Table is ready.
type Table struct {
	// pruning serializes removals of images with what finds them: it is read-locked
	// from before an image is found until it is in images.
	pruning sync.RWMutex

	mu     sync.Mutex         // guards images, open
	images map[held]int       // how many leases hold it
	open   map[core.Owner]int // leases that are not released
}

// Ports are what a Lease asks for images.
type Ports struct {
	Image func(ctx context.Context, ref string) (core.Image, error)
	Pull  func(ctx context.Context, ref string, opts core.PullOptions) (core.Image, error)
}

// Lease holds the images that it has returned until it is released. It may be
// used by several goroutines.
type Lease struct {
	table *Table
	owner core.Owner
	from  Ports

	mu       sync.Mutex // guards holds, released
	holds    []digest.Digest
	released bool
}

// Open returns a lease that holds nothing yet. The caller releases it.
func (t *Table) Open(owner core.Owner, from Ports) *Lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.images, t.open = map[held]int{}, map[core.Owner]int{}
	}
	t.open[owner]++
	return &Lease{table: t, owner: owner, from: from}
}

// Leased reports whether an owner has leases that are not released.
func (t *Table) Leased(owner core.Owner) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[owner] > 0
}

// Prune calls prune while no lease gets a further image, and tells it which ones
// are held.
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

// Image finds an image and holds it.
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
	l.table.images[held{l.owner, id}]++
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
		h := held{l.owner, id}
		if l.table.images[h]--; l.table.images[h] == 0 {
			delete(l.table.images, h)
		}
	}
	if l.table.open[l.owner]--; l.table.open[l.owner] == 0 {
		delete(l.table.open, l.owner)
	}
}
