package handover_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/longshore/longshore/internal/handover"
)

// TestRequests: a request under way is answered if the next program waits, and a request that does not end is cut off. Without a next
// program each is cut off.
func TestRequests(t *testing.T) {
	for _, c := range []struct {
		name     string
		cause    error
		ends     bool // the request ends by itself
		answered bool
	}{{"next", handover.ErrNext, true, true}, {"next, long request", handover.ErrNext, false, false}, {"stop", nil, false, false}} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it ends with the test
			if err != nil {
				t.Fatal(err)
			}
			requests, stop := handover.Requests(ctx)
			begun, stopping := make(chan struct{}), make(chan struct{})
			srv := &http.Server{
				BaseContext: func(net.Listener) context.Context { return requests },
				Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					close(begun)
					if !c.ends {
						<-r.Context().Done()
						panic(http.ErrAbortHandler)
					}
					<-stopping
					_, _ = io.WriteString(w, "whole")
				}),
			}
			srv.RegisterOnShutdown(func() { close(stopping) })
			served, answer := make(chan error, 1), make(chan string, 1)
			go func() { served <- srv.Serve(l) }()
			go func() {
				resp, err := http.Get("http://" + l.Addr().String()) //nolint:noctx // the server ends it
				if err != nil {
					answer <- ""
					return
				}
				b, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				answer <- string(b)
			}()
			<-begun
			cancel(c.cause)
			<-ctx.Done()
			stop(srv)
			if got := <-answer; (got == "whole") != c.answered {
				t.Errorf("the answer is %q", got)
			}
			if err := <-served; !errors.Is(err, http.ErrServerClosed) || requests.Err() == nil {
				t.Errorf("%v, requests: %v", err, requests.Err())
			}
		})
	}
}
