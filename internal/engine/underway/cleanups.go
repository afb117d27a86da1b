package underway

import (
	"context"
	"time"
)

// callerKey is the key of the context that Detach got.
type callerKey struct{}

// callerGrace is how long an attended step may continue without its caller.
const callerGrace = time.Second

// Detach returns a context for a cleanup: ctx's values without its end.
func Detach(ctx context.Context) context.Context {
	return context.WithValue(context.WithoutCancel(ctx), callerKey{}, ctx)
}

// cleanupTime bounds the cleanup after a request has failed or its caller has gone.
const cleanupTime = 30 * time.Second

// Cleanup returns a context for cleanup: ctx's values without its end, for at most cleanupTime.
func Cleanup(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(Detach(ctx), cleanupTime)
}

// Attend returns a context for a step of a cleanup that may hang, because it waits for another program, and that the
// next call tries again. It ends with ctx, and a second after the caller of the cleanup has gone.
func Attend(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	caller, ok := ctx.Value(callerKey{}).(context.Context)
	if !ok {
		return ctx, func() { cancel(nil) }
	}
	stop := context.AfterFunc(caller, func() {
		grace := time.NewTimer(callerGrace)
		defer grace.Stop()
		select {
		case <-grace.C:
			cancel(context.Cause(caller))
		case <-ctx.Done():
		}
	})
	return ctx, func() { stop(); cancel(nil) }
}
