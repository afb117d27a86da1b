package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
)

// watch ends a pull that makes no progress. Progress is anything received from the registry for
// it, and anything unpacked. A nil watch does nothing.
type watch struct {
	w     *Worker
	steps atomic.Int64
	held  atomic.Int32 // greater than 0 while it waits for something that has its own timeout

	mu     sync.Mutex // guards layers
	layers []*unpacking
}

// stuckError is the cause of the end of a pull that made no progress.
type stuckError struct{ after time.Duration }

func (e *stuckError) Error() string { return fmt.Sprintf("made no progress for %s", e.after) }

// Unwrap returns the class.
func (e *stuckError) Unwrap() error { return errdefs.ErrUnavailable }

// lateError is the cause of the end of a pull that took too long in all.
type lateError struct{ after time.Duration }

func (e *lateError) Error() string {
	return fmt.Sprintf("took longer than images.pull_timeout, %s", e.after)
}

// Unwrap returns the class.
func (e *lateError) Unwrap() error { return errdefs.ErrUnavailable }

// timed runs a pull, and ends it after the whole time that the settings allow.
func (w *Worker) timed(ctx context.Context, pull func(context.Context) (Image, error)) (Image, error) {
	limit := w.settings.Timeout
	if limit <= 0 {
		return pull(ctx)
	}
	late := &lateError{limit}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	img, err := pull(ctx)
	if err != nil && context.Cause(ctx) == error(late) { //nolint:errorlint // the very same value
		err = late // the pull's own error says only that it was cancelled
	}
	return img, err
}

// watched runs a pull, and ends it when it makes no progress for the time in the settings.
func (w *Worker) watched(ctx context.Context, pull func(context.Context, *watch) (Image, error)) (Image, error) {
	limit := w.settings.Progress
	if limit <= 0 {
		return pull(ctx, nil)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	p := &watch{w: w}
	var looking sync.WaitGroup
	looking.Go(func() { p.look(ctx, limit, cancel) })
	img, err := pull(ctx, p)
	var stuck *stuckError
	if err != nil && errors.As(context.Cause(ctx), &stuck) {
		err = stuck // the pull's own error says only that it was cancelled
	}
	cancel(nil)
	looking.Wait()
	return img, err
}

// look compares the count from time to time.
func (p *watch) look(ctx context.Context, limit time.Duration, cancel context.CancelCauseFunc) {
	ticker := time.NewTicker(max(limit/8, time.Millisecond))
	defer ticker.Stop()
	last, since := p.count(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			if c := p.count(); c != last || p.held.Load() > 0 {
				last, since = c, now
			} else if now.Sub(since) >= limit {
				cancel(&stuckError{limit})
				return
			}
		}
	}
}

// count returns a number that changes with progress. While a layer waits for its turn, the
// progress of others counts as its own.
func (p *watch) count() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.steps.Load()
	for _, u := range p.layers {
		n += u.active.Load()
		if u.queued.Load() {
			n += p.w.active.Load()
		}
	}
	return n
}

// step records progress.
func (p *watch) step() {
	if p != nil {
		p.steps.Add(1)
	}
}

// follow makes a layer's progress count, whichever pull has started it.
func (p *watch) follow(u *unpacking) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.layers = append(p.layers, u)
}

// hold suspends the watch until release is called.
func (p *watch) hold() (release func()) {
	if p == nil {
		return func() {}
	}
	p.held.Add(1)
	return func() { p.held.Add(-1) }
}

// did records that bytes of a layer were received or unpacked.
func (w *Worker) did(u *unpacking) {
	u.active.Add(1)
	w.active.Add(1)
}

// noting is a reader; its reads count as progress.
type noting struct {
	io.Reader
	did func()
}

// Read implements io.Reader.
func (n noting) Read(p []byte) (int, error) {
	k, err := n.Reader.Read(p)
	if k > 0 {
		n.did()
	}
	return k, err
}
