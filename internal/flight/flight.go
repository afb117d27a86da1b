// Package flight lets callers share one piece of work that continues when single callers leave,
// and is stopped when nobody waits for it any more.
//
// Start reading at Group.Join.
package flight

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// Group holds the flights in progress. The zero value is ready to use.
type Group[K comparable, T any] struct {
	// Retire, unless nil, is called once for each flight, when its work has ended and everybody has left. It must be set
	// before the first Join.
	Retire func(T)

	mu sync.Mutex // guards m
	m  map[K]*Flight[K, T]
}

// Flight is one piece of shared work. State is set before anybody sees the Flight; the caller is
// responsible for its synchronization.
type Flight[K comparable, T any] struct {
	State T
	group *Group[K, T]
	key   K
	done  chan struct{}
	err   error
	stop  context.CancelFunc

	refs  int  // guarded by Group.mu, as is ended
	ended bool // the work has
}

// Join joins the flight under key or starts one: prepare makes its state, synchronously and in
// the order of the calls, and run does the work. The work has the values of ctx, but does not end
// with it. Every Join requires one Leave.
func (g *Group[K, T]) Join(ctx context.Context, key K, prepare func() T, run func(context.Context, T) error) *Flight[K, T] {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.m[key]
	if before != nil && before.refs > 0 {
		before.refs++
		return before
	}
	f := &Flight[K, T]{State: prepare(), group: g, key: key, done: make(chan struct{}), refs: 1}
	if g.m == nil {
		g.m = map[K]*Flight[K, T]{}
	}
	g.m[key] = f
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	f.stop = stop
	go func() {
		if before != nil {
			<-before.done // abandoned, and not yet cleaned up
		}
		err := run(work, f.State)
		stop()
		g.mu.Lock()
		if g.m[key] == f {
			delete(g.m, key)
		}
		f.ended = true
		left := f.refs == 0
		g.mu.Unlock()
		f.err = err
		if left {
			f.retire()
		}
		close(f.done)
	}()
	return f
}

// Done is closed when the work has ended.
func (f *Flight[K, T]) Done() <-chan struct{} { return f.done }

// Wait waits until the work or ctx has ended and returns the error of that one.
func (f *Flight[K, T]) Wait(ctx context.Context) error {
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Leave undoes one Join. When nobody is left, the work's context is cancelled.
func (f *Flight[K, T]) Leave() {
	f.group.mu.Lock()
	f.refs--
	last := f.refs == 0
	ended := f.ended
	f.group.mu.Unlock()
	if last {
		f.stop()
	}
	if last && ended {
		f.retire()
	}
}

func (f *Flight[K, T]) retire() {
	if f.group.Retire != nil {
		f.group.Retire(f.State)
	}
}

// Stop stops all work in progress, whoever waits for it, and returns when it has ended.
func (g *Group[K, T]) Stop() {
	g.mu.Lock()
	all := slices.Collect(maps.Values(g.m))
	g.mu.Unlock()
	for _, f := range all {
		f.stop()
		<-f.done
	}
}
