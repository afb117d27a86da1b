package worker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
)

// pullFor runs a pull that makes progress after every pause, and ends after all of them.
func pullFor(ctx context.Context, pauses int, pause time.Duration, do func()) error {
	for range pauses {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			do()
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
	return nil
}

func TestAPullThatGetsNowhereIsEnded(t *testing.T) {
	const limit = time.Minute
	for name, tt := range map[string]struct {
		do    func(w *Worker, p *watch, u *unpacking)
		pause time.Duration
		stuck bool
	}{
		"nothing happens":                     {func(*Worker, *watch, *unpacking) {}, limit / 2, true},
		"steps":                               {func(_ *Worker, p *watch, _ *unpacking) { p.step() }, limit / 2, false},
		"steps too seldom":                    {func(_ *Worker, p *watch, _ *unpacking) { p.step() }, 2 * limit, true},
		"a layer comes in":                    {func(w *Worker, _ *watch, u *unpacking) { w.did(u) }, limit / 2, false},
		"another's layer comes in":            {func(w *Worker, _ *watch, _ *unpacking) { w.did(&unpacking{}) }, limit / 2, true},
		"another's, while ours has no slot":   {func(w *Worker, _ *watch, u *unpacking) { u.queued.Store(true); w.did(&unpacking{}) }, limit / 2, false},
		"nobody's, while ours has no slot":    {func(_ *Worker, _ *watch, u *unpacking) { u.queued.Store(true) }, limit / 2, true},
		"it waits for what has its own limit": {func(_ *Worker, p *watch, _ *unpacking) { p.hold() }, limit / 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &Worker{settings: Settings{Progress: limit}}
				_, err := w.watched(t.Context(), func(ctx context.Context, p *watch) (Image, error) {
					u := &unpacking{}
					p.follow(u)
					return Image{}, pullFor(ctx, 10, tt.pause, func() { tt.do(w, p, u) })
				})
				var stuck *stuckError
				if errors.As(err, &stuck) != tt.stuck || errdefs.IsUnavailable(err) != tt.stuck || !tt.stuck && err != nil {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

// TestAnotherEndIsNotCalledStuck: a caller that leaves gets its own error.
func TestAnotherEndIsNotCalledStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w := &Worker{settings: Settings{Progress: time.Minute}}
		_, err := w.watched(ctx, func(ctx context.Context, _ *watch) (Image, error) {
			<-ctx.Done()
			return Image{}, ctx.Err()
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if _, err := (&Worker{}).watched(t.Context(), func(_ context.Context, p *watch) (Image, error) {
			p.step()
			p.hold()()
			p.follow(nil)
			return Image{}, nil
		}); err != nil {
			t.Errorf("not watched: %v", err)
		}
	})
}
