// Package underway has the tables of what the engine's verbs are in the middle of: the creates
// that can be given up, and the callers that wait for a process's end.
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

// ErrGivenUp is the cause with which GiveUp ends a create's context.
var ErrGivenUp = fmt.Errorf("it was stopped while it was being created: %w", errdefs.ErrAborted)

// Creates has the creates that are under way, so that they can be given up: a step of one may
// wait for a program that does not answer. The zero value is ready to use.
type Creates struct {
	mu      sync.Mutex // guards cancels
	cancels map[core.ID]context.CancelCauseFunc
}

// Begin returns the context of a create. The caller must call end when the create has ended.
func (c *Creates) Begin(ctx context.Context, id core.ID) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancels == nil {
		c.cancels = map[core.ID]context.CancelCauseFunc{}
	}
	c.cancels[id] = cancel
	return ctx, func() {
		cancel(nil)
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.cancels, id)
	}
}

// GiveUp ends the context of an object's create, if one is under way.
func (c *Creates) GiveUp(id core.ID) {
	c.mu.Lock()
	cancel := c.cancels[id]
	c.mu.Unlock()
	if cancel != nil {
		cancel(ErrGivenUp)
	}
}

// GivenUp reports whether GiveUp has ended ctx.
func GivenUp(ctx context.Context) bool { return errors.Is(context.Cause(ctx), ErrGivenUp) }
