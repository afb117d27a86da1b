package dockerhttp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/invalid"
)

// ErrNotModified is the error of a request that finds everything as it wants it. It is answered by 304, without a body.
var ErrNotModified = errors.New("not modified") //nolint:gochecknoglobals // an error value

var errNoPage = errdefs.ErrNotFound.WithMessage("page not found") //nolint:gochecknoglobals // an error value

func tooOldFor(r *Request, since Version) error {
	return invalid.Errorf("%s requires minimum API version %v, but the Docker daemon API version is %v", r.Path, since, r.API)
}

// Status returns dockerd's status for the class of an error. The classes of names in use, and of objects in the wrong state, have the
// same one.
func Status(err error) int {
	switch {
	case errors.Is(err, ErrNotModified):
		return http.StatusNotModified
	case errdefs.IsInvalidArgument(err):
		return http.StatusBadRequest
	case errdefs.IsNotFound(err):
		return http.StatusNotFound
	case errdefs.IsAborted(err), errdefs.IsAlreadyExists(err), errdefs.IsFailedPrecondition(err):
		return http.StatusConflict
	case errdefs.IsUnauthorized(err):
		return http.StatusUnauthorized
	case errdefs.IsPermissionDenied(err):
		return http.StatusForbidden
	case errdefs.IsNotImplemented(err):
		return http.StatusNotImplemented
	case errdefs.IsUnavailable(err), errdefs.IsResourceExhausted(err):
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}

// Text returns an error's text without the name of its class at the end. Other words stay, also if they are a class's name: clients
// match "permission denied" of the kernel.
func Text(err error) string {
	text := err.Error()
	for _, class := range []error{
		errdefs.ErrInvalidArgument, errdefs.ErrNotFound, errdefs.ErrAborted, errdefs.ErrAlreadyExists, errdefs.ErrFailedPrecondition,
		errdefs.ErrUnauthenticated, errdefs.ErrPermissionDenied, errdefs.ErrNotImplemented, errdefs.ErrUnavailable, errdefs.ErrResourceExhausted,
	} {
		if errors.Is(err, class) {
			text = strings.TrimSuffix(text, ": "+class.Error())
		}
	}
	return text
}

// jsonErrors is the version from that on errors are JSON; before it they are text.
const jsonErrors = "1.24"

// refuse answers an error.
func (m *Mux) refuse(w http.ResponseWriter, r *Request, err error) {
	status := Status
	if m.Status != nil {
		status = m.Status
	}
	code := status(err)
	switch {
	case code == http.StatusNotModified:
		w.WriteHeader(code)
	case r.API.Before(jsonErrors) && r.API != (Version{}):
		http.Error(w, Text(err), code)
	default:
		_ = Reply(w, code, errorBody{Text(err)}) // the client may be gone
	}
}

// errorBody is the answer to a request that fails. Clients compare its Content-Type as a whole.
type errorBody struct {
	Message string `json:"message"`
}

// Reply answers with JSON, or without a body if v is nil.
func Reply(w http.ResponseWriter, status int, v any) error {
	if v == nil {
		w.WriteHeader(status)
		return nil
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// The encoded answer is in memory until the client has read it.
	c := http.NewResponseController(w)
	if c.SetWriteDeadline(time.Now().Add(replyTime)) == nil {
		defer func() { _ = c.SetWriteDeadline(time.Time{}) }()
	}
	return WriteJSON(w, v)
}

// replyTime is the longest time that an answer is written.
const replyTime = time.Minute

// WriteJSON writes JSON after a header that was sent.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write an answer: %w", err)
	}
	return nil
}
