package layer

import (
	"archive/tar"
	"fmt"
	"path"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/weaken"
)

// Budget limits the entries of several layers together. It is safe for concurrent use; a nil
// Budget has no limit.
type Budget struct {
	limit int64
	left  atomic.Int64
}

// NewBudget returns a budget of limit entries; 0 is no limit.
func NewBudget(limit int64) *Budget {
	if limit <= 0 {
		return nil
	}
	b := &Budget{limit: limit}
	b.left.Store(limit)
	return b
}

// take takes n entries from the budget. ResourceExhausted.
func (b *Budget) take(n int64) error {
	if b != nil && b.left.Add(-n) < 0 {
		return fmt.Errorf("the image has more than %d entries (images.max_image_entries): %w", b.limit, errdefs.ErrResourceExhausted)
	}
	return nil
}

// inodesEvery is after how many entries the free inodes are checked again.
const inodesEvery = 1000

// more counts an entry, and new directories above it, against the limits: each takes an inode on
// disk, and memory while the layer is unpacked.
func (a *applier) more(hdr *tar.Header) error {
	if weaken.Off(weaken.LayerEntries) {
		return nil
	}
	name, n := clean(hdr.Name), int64(1)
	if a.unnamed[name] { // it has been counted
		delete(a.unnamed, name)
		n = 0
	}
	for p := path.Dir(name); p != "." && p != "/"; p = path.Dir(p) {
		if _, named := a.seen[p]; named || a.unnamed[p] {
			break
		}
		a.unnamed[p] = true
		n++
	}
	before := a.count
	a.count += n
	if a.opts.MaxEntries > 0 && a.count > a.opts.MaxEntries {
		return fmt.Errorf("more than %d entries (images.max_layer_entries): %w", a.opts.MaxEntries, errdefs.ErrResourceExhausted)
	}
	if err := a.opts.Budget.take(n); err != nil {
		return err
	}
	if a.opts.MinFreeInodes > 0 && (before == 0 || before/inodesEvery != a.count/inodesEvery) {
		return CheckFreeInodes(a.dir, a.opts.MinFreeInodes)
	}
	return nil
}

// CheckFreeInodes returns ResourceExhausted when fewer than least inodes are free on the
// filesystem of dir. A filesystem that allocates inodes dynamically has no limit.
func CheckFreeInodes(dir string, least int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("statfs %s: %w", dir, err)
	}
	if st.Files > 0 && st.Ffree < uint64(max(least, 0)) {
		return fmt.Errorf("only %d inodes are free in %s, %d are to stay free (images.min_free_inodes): %w", st.Ffree, dir, least, errdefs.ErrResourceExhausted)
	}
	return nil
}
