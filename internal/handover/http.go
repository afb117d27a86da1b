package handover

import (
	"context"
	"errors"
	"net/http"
)

// Requests returns the context of an HTTP server's requests, and a function that ends the server after ctx has ended. Requests under way
// have a moment to end by themselves if the next program waits, as by Drain. Otherwise they end at once, with their connections.
func Requests(ctx context.Context) (requests context.Context, stop func(*http.Server)) {
	requests, end := context.WithCancelCause(context.WithoutCancel(ctx))
	return requests, func(srv *http.Server) {
		if cause := context.Cause(ctx); errors.Is(cause, ErrNext) {
			moment, cancel := context.WithTimeout(requests, nextDrain)
			_ = srv.Shutdown(moment)
			cancel()
		}
		end(context.Cause(ctx))
		_ = srv.Close()
	}
}
