package runner

import (
	"cmp"
	"container/heap"
	"context"
	"sync"
	"time"
)

// Queue starts things at their times, with one timer for all of them. A key names a thing, and has at most one
// entry. It knows no policy: the Runner has docker's, and the Swarm face its own.
type Queue[K comparable] struct {
	start func(context.Context, K)
	free  chan struct{} // has a value for each call of start that runs
	wake  chan struct{} // has one value after a change of the first entry

	mu       sync.Mutex      // guards entries, waiting, starting
	entries  map[K]*entry[K] // by key
	waiting  backlog[K]      // the entries without a running call of start
	starting map[K]bool
}

// NewQueue returns a queue that calls start for each key that is due, for at most parallel keys at once, and never twice
// at once for the same key.
func NewQueue[K comparable](parallel int, start func(context.Context, K)) *Queue[K] {
	return &Queue[K]{
		start: start, free: make(chan struct{}, parallel), wake: make(chan struct{}, 1),
		entries: map[K]*entry[K]{}, starting: map[K]bool{},
	}
}

// entry is a thing that is to be started.
type entry[K comparable] struct {
	key     K
	due     time.Time
	created time.Time
	place   int // in the backlog; -1 while it is not in it
}

// backlog is a heap of entries, the first one to start at its head.
type backlog[K comparable] []*entry[K]

func (l backlog[K]) Len() int { return len(l) }
func (l backlog[K]) Less(i, j int) bool {
	return cmp.Or(l[i].due.Compare(l[j].due), l[i].created.Compare(l[j].created)) < 0
}

func (l backlog[K]) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].place, l[j].place = i, j
}

// Push implements heap.Interface.
func (l *backlog[K]) Push(x any) {
	e := x.(*entry[K]) //nolint:forcetypeassert // only a Queue pushes
	e.place = len(*l)
	*l = append(*l, e)
}

// Pop implements heap.Interface.
func (l *backlog[K]) Pop() any {
	old := *l
	last := old[len(old)-1]
	last.place = -1
	old[len(old)-1] = nil
	*l = old[:len(old)-1]
	return last
}

// Put sets the time when a key is due. Of things that are due at one time, as after a boot, the one that was created
// first is started first. A key that is being started is started again after that at the earliest.
func (q *Queue[K]) Put(key K, due, created time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.entries[key]
	if e == nil {
		e = &entry[K]{key: key, place: -1}
		q.entries[key] = e
	}
	e.due, e.created = due, created
	switch {
	case q.starting[key]:
		return // done puts it in the backlog
	case e.place >= 0:
		heap.Fix(&q.waiting, e.place)
	default:
		heap.Push(&q.waiting, e)
	}
	q.changed()
}

// Drop removes a key's entry. A call of start that has begun is not affected.
func (q *Queue[K]) Drop(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.entries[key]
	if e == nil {
		return
	}
	delete(q.entries, key)
	if e.place >= 0 {
		heap.Remove(&q.waiting, e.place)
	}
}

// changed wakes Run.
func (q *Queue[K]) changed() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Run starts things at their times until ctx ends. It returns when all calls of start are complete.
func (q *Queue[K]) Run(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		key, ready, wait := q.next()
		if !ready {
			timer.Stop()
			if wait > 0 {
				timer.Reset(wait)
			}
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			case <-q.wake:
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case q.free <- struct{}{}:
		}
		work.Go(func() {
			q.start(ctx, key)
			q.done(key)
			<-q.free
		})
	}
}

// next removes the first entry if it is due; else it returns how long to wait for it, or -1 if there is none.
func (q *Queue[K]) next() (key K, ready bool, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		return key, false, -1
	}
	first := q.waiting[0]
	if wait = time.Until(first.due); wait > 0 {
		return key, false, wait
	}
	heap.Pop(&q.waiting)
	delete(q.entries, first.key)
	q.starting[first.key] = true
	return first.key, true, 0
}

// done completes a call of start: an entry that was put meanwhile may be started now.
func (q *Queue[K]) done(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.starting, key)
	if e := q.entries[key]; e != nil {
		heap.Push(&q.waiting, e)
		q.changed()
	}
}
