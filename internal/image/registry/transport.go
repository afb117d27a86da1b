package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/weaken"
)

// transport repeats requests that a server could not answer for the moment, and gives up on
// servers that send nothing or too little. It is used for the registry and its token server.
type transport struct {
	base  http.RoundTripper
	opts  Options
	scrub func(*http.Request) (*http.Request, error) // removes credentials
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	original := req
	req, err := t.scrub(req)
	if err != nil {
		return nil, err
	}
	for try := 0; ; try++ {
		resp, err := t.once(req)
		if resp != nil {
			// The client must see its own request, for example to follow a redirect.
			resp.Request = original
		}
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
	req = req.WithContext(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = &sending{req.Body, timer, t.opts.Stall}
	}
	resp, err := t.base.RoundTrip(req)
	timer.Stop()
	if err != nil {
		if context.Cause(ctx) == stall { //nolint:errorlint // this very value
			err = stall
		}
		cancel(nil)
		return nil, err
	}
	w := &watched{ReadCloser: resp.Body, ctx: ctx, cancel: cancel, timer: timer, stall: stall, least: t.opts.MinRate, window: t.opts.Window}
	if req.Context().Value(forToken{}) != nil {
		w.left = maxToken
	}
	resp.Body = w
	return resp, nil
}

// sending is the body of a request: the stall time starts again with each part that the server
// takes.
type sending struct {
	io.ReadCloser
	timer *time.Timer
	stall time.Duration
}

// Read implements io.Reader.
func (s *sending) Read(p []byte) (int, error) {
	s.timer.Reset(s.stall)
	return s.ReadCloser.Read(p)
}

// watched is a body that fails when a read gets nothing for the stall time, or when a whole window
// brings less than the least rate. Only the time of waiting for the server counts, not the reader's
// own work.
type watched struct {
	io.ReadCloser
	ctx    context.Context //nolint:containedctx // a body has no other way to its request
	cancel context.CancelCauseFunc
	timer  *time.Timer
	stall  *stallError

	least  int64 // bytes per second; 0 is no limit
	window time.Duration
	got    int64         // in this window
	waited time.Duration // in this window
	left   int64         // how much of the whole may still come; 0 at the beginning is no limit
}

// Read implements io.Reader.
func (w *watched) Read(p []byte) (int, error) {
	w.timer.Reset(w.stall.after)
	began := time.Now()
	n, err := w.ReadCloser.Read(p)
	w.waited += time.Since(began)
	w.timer.Stop()
	w.got += int64(n)
	if w.left > 0 {
		if w.left -= int64(n); w.left <= 0 {
			return 0, fmt.Errorf("more than %d bytes: %w", maxToken, errdefs.ErrInvalidArgument)
		}
	}
	if w.waited >= w.window && w.least > 0 && err == nil && !weaken.Off(weaken.RegistryRate) {
		if float64(w.got) < float64(w.least)*w.waited.Seconds() {
			slow := &slowError{w.got, w.least, w.waited}
			w.cancel(slow)
			return n, slow
		}
		w.got, w.waited = 0, 0
	}
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
