package registry

import (
	"context"
	"errors"
	"io"
	"net/http"
	"syscall"
	"time"
)

// transport repeats requests that a server could not answer now and gives up
// on servers that fall silent. It serves the registry and its token server.
type transport struct {
	base http.RoundTripper
	opts Options
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	for try := 0; ; try++ {
		resp, err := t.once(req)
		if try >= t.opts.Retries || !repeatable(req) || req.Context().Err() != nil {
			return resp, err
		}
		wait := t.opts.Backoff << min(try, 10)
		switch {
		case err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF):
			return resp, err
		case err == nil && !busy(resp.StatusCode):
			return resp, err
		case err == nil:
			wait = max(wait, retryAfter(resp.Header))
		}
		deadline, bounded := req.Context().Deadline()
		if wait > t.opts.MaxWait || (bounded && time.Until(deadline) < wait) {
			return resp, err
		}
		if resp != nil {
			_, _ = io.CopyN(io.Discard, resp.Body, 16<<10)
			_ = resp.Body.Close()
		}
		if err := pause(req.Context(), wait); err != nil {
			return nil, err
		}
		if req.GetBody != nil {
			body, err := req.GetBody()
			if err != nil {
				return nil, err
			}
			req = req.Clone(req.Context())
			req.Body = body
		}
	}
}

func busy(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

func repeatable(req *http.Request) bool {
	return req.Body == nil || req.Body == http.NoBody || req.GetBody != nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *transport) once(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	stall := &stallError{t.opts.Stall}
	timer := time.AfterFunc(t.opts.Stall, func() { cancel(stall) })
	resp, err := t.base.RoundTrip(req.WithContext(ctx))
	timer.Stop()
	if err != nil {
		if context.Cause(ctx) == stall { //nolint:errorlint // this very value
			err = stall
		}
		cancel(nil)
		return nil, err
	}
	// The client has to see its own request, e.g. to follow a redirect.
	resp.Request = req
	resp.Body = &watched{ReadCloser: resp.Body, ctx: ctx, cancel: cancel, timer: timer, stall: stall}
	return resp, nil
}

// watched is a body whose every read has the stall's time to bring something.
type watched struct {
	io.ReadCloser
	ctx    context.Context //nolint:containedctx // a body has no other way to its request
	cancel context.CancelCauseFunc
	timer  *time.Timer
	stall  *stallError
}

// Read implements io.Reader.
func (w *watched) Read(p []byte) (int, error) {
	w.timer.Reset(w.stall.after)
	n, err := w.ReadCloser.Read(p)
	w.timer.Stop()
	if err != nil && !errors.Is(err, io.EOF) && context.Cause(w.ctx) == w.stall { //nolint:errorlint // this very value
		err = w.stall
	}
	return n, err
}

// Close implements io.Closer.
func (w *watched) Close() error {
	w.timer.Stop()
	err := w.ReadCloser.Close()
	w.cancel(nil)
	return err
}
