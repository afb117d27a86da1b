// Package flight lets many callers share one piece of work that outlives any
// single caller and ends when nobody waits for it any more.
//
// It knows nothing of images. Start reading at Group.Join.
package flight

import (
	"context"
	"sync"
)

// Group holds the flights now in the air. The zero value is ready.
type Group[K comparable, T any] struct {
	mu sync.Mutex // guards m
	m  map[K]*Flight[K, T]
}

// Flight is one piece of shared work. State is set before anybody sees the
// Flight; what it guards is its own affair.
type Flight[K comparable, T any] struct {
	State T
	group *Group[K, T]
	key   K
	done  chan struct{}
	err   error
	stop  context.CancelFunc

	refs int // Group.mu guards it
}

// Join joins the flight under key or starts one: prepare makes its state, at
// once and in the order of the calls, run does the work. The work has the
// values of ctx and not its end. Every Join needs one Leave.
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
			<-before.done // abandoned, and still cleaning up
		}
		err := run(work, f.State)
		stop()
		g.mu.Lock()
		if g.m[key] == f {
			delete(g.m, key)
		}
		g.mu.Unlock()
		f.err = err
		close(f.done)
	}()
	return f
}

// Done is closed when the work has ended.
func (f *Flight[K, T]) Done() <-chan struct{} { return f.done }

// Wait waits for the work's end or the context's and returns the error of
// either.
func (f *Flight[K, T]) Wait(ctx context.Context) error {
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Leave gives up one Join. When nobody is left, the work is told to stop.
func (f *Flight[K, T]) Leave() {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	if f.refs--; f.refs == 0 {
		f.stop()
	}
}
