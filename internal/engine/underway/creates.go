// Package underway has the tables of the engine's unfinished calls: the creates that can be
// cancelled, and the callers that wait for a process's end.
//
// It knows no engine. Start at Creates and Waits.
package underway

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// ErrGivenUp is the cause of a context that GiveUp ended.
var ErrGivenUp = fmt.Errorf("it was stopped while it was being created: %w", errdefs.ErrAborted)

// Creates has the unfinished creates, by container and sandbox, so that they can be cancelled: a step
// of one may wait for a program that does not answer, or for its turn. The zero value is ready to use.
type Creates struct {
	mu sync.Mutex // guards of
	of map[core.ID]*ofObject
}

// ofObject has the unfinished creates in one sandbox, or of one container.
type ofObject struct {
	cancels map[int]context.CancelCauseFunc
	next    int
	stops   int // that are under way: no create begins
}

// Begin returns the context of a create. The caller must call end when the create has ended.
func (c *Creates) Begin(ctx context.Context, id core.ID) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.getLocked(id)
	n := o.next
	o.next++
	o.cancels[n] = cancel
	if o.stops > 0 {
		cancel(ErrGivenUp)
	}
	return ctx, func() {
		cancel(nil)
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(o.cancels, n)
		c.dropLocked(id, o)
	}
}

// GiveUp ends the contexts of the creates of an object that are under way, and of those that begin
// before the caller calls end.
func (c *Creates) GiveUp(id core.ID) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.getLocked(id)
	o.stops++
	for _, cancel := range o.cancels {
		cancel(ErrGivenUp)
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		o.stops--
		c.dropLocked(id, o)
	}
}

// Run calls do with a context that GiveUp ends. It returns ErrGivenUp in place of do's error then,
// unless asIs reports that this error must be returned.
func (c *Creates) Run(ctx context.Context, id core.ID, asIs func(error) bool, do func(context.Context) error) error {
	ctx, end := c.Begin(ctx, id)
	defer end()
	err := do(ctx)
	if err != nil && !asIs(err) && GivenUp(ctx) {
		return ErrGivenUp
	}
	return err
}

// getLocked returns the unfinished creates of an object.
func (c *Creates) getLocked(id core.ID) *ofObject {
	o := c.of[id]
	if o == nil {
		if c.of == nil {
			c.of = map[core.ID]*ofObject{}
		}
		o = &ofObject{cancels: map[int]context.CancelCauseFunc{}}
		c.of[id] = o
	}
	return o
}

// dropLocked forgets an object without unfinished creates.
func (c *Creates) dropLocked(id core.ID, o *ofObject) {
	if len(o.cancels) == 0 && o.stops == 0 {
		delete(c.of, id)
	}
}

// GivenUp reports whether GiveUp has ended ctx.
func GivenUp(ctx context.Context) bool { return errors.Is(context.Cause(ctx), ErrGivenUp) }
