package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
)

// StatusError is a registry's refusal.
type StatusError struct {
	Status  int
	Message string        // the server's text, without control characters
	After   time.Duration // Retry-After, 0 for none
	Tried   bool          // credentials were sent
	Held    string        // why existing credentials were not sent
}

// Error returns the status, the server's text, and advice.
func (e *StatusError) Error() string {
	s := fmt.Sprintf("%d %s", e.Status, http.StatusText(e.Status))
	if e.Message != "" {
		s += ": " + e.Message
	}
	switch {
	case e.Held != "" && e.Status >= 400 && e.Status < 500:
		s += " (" + e.Held + ")"
	case e.Status == http.StatusUnauthorized && e.Tried:
		s += " (the registry does not take these credentials, or the repository does not exist)"
	case e.Status == http.StatusUnauthorized:
		s += " (the repository does not exist, or needs credentials)"
	case e.After > 0:
		s += fmt.Sprintf(" (asked to come back after %s)", e.After)
	}
	return s
}

// Unwrap returns the class.
func (e *StatusError) Unwrap() error {
	switch {
	case e.Status == http.StatusUnauthorized:
		return errdefs.ErrUnauthenticated
	case e.Status == http.StatusForbidden:
		return errdefs.ErrPermissionDenied
	case e.Status == http.StatusNotFound:
		return errdefs.ErrNotFound
	case e.Status == http.StatusTooManyRequests, e.Status == http.StatusRequestTimeout, e.Status >= 500:
		return errdefs.ErrUnavailable
	}
	return errdefs.ErrFailedPrecondition
}

func statusError(resp *http.Response) *StatusError {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 16<<10))
	e := &StatusError{Status: resp.StatusCode, Message: serverMessage(body), After: retryAfter(resp.Header)}
	// Docker Hub answers so for a repository that does not exist. Other registries write the code DENIED for the same.
	lacks := strings.Contains(strings.Join(resp.Header.Values("WWW-Authenticate"), ","), `error="insufficient_scope"`)
	if resp.StatusCode == http.StatusUnauthorized && lacks && !strings.Contains(e.Message, "DENIED") {
		e.Message = "DENIED: requested access to the resource is denied"
	}
	return e
}

// serverMessage returns the message in a registry's or token server's error body.
func serverMessage(body []byte) string {
	var doc struct {
		Errors []struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"errors"`
		Details          string `json:"details"`
		Message          string `json:"message"`
		ErrorDescription string `json:"error_description"`
	}
	text := string(body)
	if json.Unmarshal(body, &doc) == nil {
		text = ""
		for _, e := range doc.Errors {
			if text != "" {
				text += "; "
			}
			text += strings.TrimSpace(strings.Trim(e.Code+": "+e.Message, ": "))
		}
		for _, s := range []string{doc.Details, doc.Message, doc.ErrorDescription} {
			if text == "" {
				text = s
			}
		}
	}
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r == unicode.ReplacementChar }), " ")
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "…"
	}
	return text
}

func retryAfter(h http.Header) time.Duration {
	v := h.Get("Retry-After")
	if v == "" {
		return 0
	}
	if n, err := strconv.Atoi(v); err == nil && n >= 0 && n < 1<<31 {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(0, time.Until(t).Round(time.Second))
	}
	return 0
}

// stallError is the cause when a server sent nothing for too long.
type stallError struct{ after time.Duration }

func (e *stallError) Error() string { return fmt.Sprintf("nothing received for %s", e.after) }

// Unwrap returns the class.
func (e *stallError) Unwrap() error { return errdefs.ErrUnavailable }

// slowError is the cause when a server sent too little in a window.
type slowError struct {
	got, least int64 // bytes, and bytes per second
	in         time.Duration
}

func (e *slowError) Error() string {
	return fmt.Sprintf("received %d bytes in %s, less than the %d bytes a second of images.min_rate", e.got, e.in.Round(time.Millisecond), e.least)
}

// Unwrap returns the class.
func (e *slowError) Unwrap() error { return errdefs.ErrUnavailable }

// IsSlow reports whether err means that a server sent too little in a window.
func IsSlow(err error) bool {
	var slow *slowError
	return errors.As(err, &slow)
}

// unavailable gives its class to err, which came from the network.
func unavailable(err error) error {
	var dns *net.DNSError
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errdefs.IsUnavailable(err):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return fmt.Errorf("the connection ended early: %w", errdefs.ErrUnavailable)
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Errorf("%w: %w", errdefs.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %w", errdefs.ErrUnavailable, err)
}

// unURL removes the "Get https://…:" of a url.Error, because the caller adds the place.
func unURL(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err
	}
	return err
}

// tokenError is an error in the exchange with the token server.
func tokenError(ctx context.Context, err error, held string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var us remoteerrors.ErrUnexpectedStatus
	if errors.As(err, &us) {
		where := "the token server"
		if u, perr := url.Parse(us.RequestURL); perr == nil && u.Host != "" {
			where += " " + u.Host
		}
		return fmt.Errorf("%s: %w", where, &StatusError{Status: us.StatusCode, Message: serverMessage(us.Body), Tried: held == "", Held: held})
	}
	return fmt.Errorf("get a token: %w", unavailable(unURL(err)))
}
