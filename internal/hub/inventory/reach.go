package inventory

import (
	"container/heap"
	"context"
)

// waiter waits until the inventory has a revision.
type waiter struct {
	rev     int64
	reached chan struct{}
}

// waiting are the waiters, the lowest revision first: when ten thousand nodes register at once, a
// change wakes only the waiters for its revision.
type waiting []waiter

// Len implements heap.Interface.
func (w waiting) Len() int { return len(w) }

// Less implements heap.Interface.
func (w waiting) Less(i, j int) bool { return w[i].rev < w[j].rev }

// Swap implements heap.Interface.
func (w waiting) Swap(i, j int) { w[i], w[j] = w[j], w[i] }

// Push implements heap.Interface.
func (w *waiting) Push(x any) { *w = append(*w, x.(waiter)) } //nolint:forcetypeassert // heap's own form

// Pop implements heap.Interface.
func (w *waiting) Pop() any {
	last := len(*w) - 1
	x := (*w)[last]
	(*w)[last] = waiter{}
	*w = (*w)[:last]
	return x
}

// reachedLocked wakes the waiters for reached revisions.
func (b *Inventory) reachedLocked() {
	for len(b.waiting) > 0 && b.waiting[0].rev <= b.rev {
		close(heap.Pop(&b.waiting).(waiter).reached) //nolint:forcetypeassert // as above
	}
}

// Reach waits until the inventory has the changes up to a revision, which is that of a change of the
// hub's.
func (b *Inventory) Reach(ctx context.Context, rev int64) error {
	b.mu.Lock()
	if b.rev >= rev {
		b.mu.Unlock()
		return nil
	}
	w := waiter{rev, make(chan struct{})}
	heap.Push(&b.waiting, w)
	b.mu.Unlock()
	select {
	case <-w.reached:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx) // it is dropped when the revision is reached
	}
}
