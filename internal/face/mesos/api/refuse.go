package api

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"
)

// WriteError answers with err, at once: it does not wait for the rest of the request,
// because the client of a stream may send for hours, and must learn now that nobody
// listens. The rest is then read and dropped.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	text := err.Error()
	if e := (*Error)(nil); errors.As(err, &e) {
		text = e.Text
	}
	c := http.NewResponseController(w)
	early := c.EnableFullDuplex() == nil // otherwise the HTTP server reads the body first
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(text))) // so that the answer is whole before the handler returns
	w.WriteHeader(StatusCode(err))
	_, _ = io.WriteString(w, text)
	if early && c.Flush() == nil {
		discard(c, r.Body)
	}
}

// Bounds for reading the rest of a request after its answer.
const (
	discardTime  = 10 * time.Second
	discardBytes = 64 << 20
)

// discard reads the rest of an answered request, so that a client that sends
// everything before it reads finds the answer: closing a connection with unread input
// resets it, and the answer is lost. It closes the connection if the rest exceeds the
// bounds; it does not return then.
func discard(c *http.ResponseController, body io.Reader) {
	if err := c.SetReadDeadline(time.Now().Add(discardTime)); err != nil {
		return // the connection is closed
	}
	n, err := io.Copy(io.Discard, io.LimitReader(body, discardBytes))
	if err != nil || n == discardBytes {
		panic(http.ErrAbortHandler)
	}
}
