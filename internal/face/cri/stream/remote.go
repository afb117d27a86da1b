package stream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Session is one client's ends of a process's standard streams.
type Session struct {
	Stdin io.Reader // nil when not asked for; its end is the client's half-close
	// Stdout and Stderr are nil when not asked for. A client that takes nothing
	// blocks their Write until the session's context ends.
	Stdout, Stderr io.Writer
	// Resize tells the terminal's sizes, the latest one only; it is never closed.
	Resize <-chan Size
}

// Size is a terminal's, in characters.
type Size struct {
	Width  uint16 `json:"Width"`
	Height uint16 `json:"Height"`
}

// run lets the backend serve a session, and returns the outcome for the client.
func (x *exchange) run(ctx context.Context, s Session) outcome {
	if x.req.Kind == KindAttach {
		return outcome{err: x.server.o.Backend.Attach(ctx, x.req, s)}
	}
	code, err := x.server.o.Backend.Exec(ctx, x.req, s)
	return outcome{code: code, err: err}
}

// outcome is how a session ended.
type outcome struct {
	code int
	err  error
}

// status is the part of Kubernetes' metav1.Status that clients of the protocol
// version 4 and later read.
type status struct {
	Metadata struct{} `json:"metadata"`
	Status   string   `json:"status"`
	Message  string   `json:"message,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	Details  *details `json:"details,omitempty"`
	Code     int      `json:"code,omitempty"`
}

type details struct {
	Causes []cause `json:"causes"`
}

type cause struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// status is the outcome as an object of the API.
func (o outcome) status() status {
	switch {
	case o.err != nil:
		return status{
			Status: "Failure", Reason: "InternalError", Code: 500,
			Message: "Internal error occurred: " + o.err.Error(), Details: &details{Causes: []cause{{Message: o.err.Error()}}},
		}
	case o.code != 0:
		return status{
			Status: "Failure", Reason: "NonZeroExitCode", Code: 500, Message: o.text(),
			Details: &details{Causes: []cause{{Reason: "ExitCode", Message: strconv.Itoa(o.code)}}},
		}
	default:
		return status{Status: "Success"}
	}
}

// text is the outcome in words, "" for success.
func (o outcome) text() string {
	switch {
	case o.err != nil:
		return o.err.Error()
	case o.code != 0:
		return fmt.Sprintf("command terminated with non-zero exit code: exit status %d", o.code)
	default:
		return ""
	}
}

// encode returns the content of the error stream: an object for protocols that support it, else
// text, and nothing for success.
func (o outcome) encode(object bool) []byte {
	if !object {
		return []byte(o.text())
	}
	b, err := json.Marshal(o.status())
	if err != nil {
		return []byte(`{"status":"Failure","reason":"InternalError"}`)
	}
	return b
}

// maxSize bounds the text of one terminal size.
const maxSize = 1 << 10

// sizes turns the bytes of a resize stream into sizes; the reader sees the
// latest only.
type sizes struct {
	text []byte
	out  chan Size
}

func newSizes() *sizes { return &sizes{out: make(chan Size, 1)} }

// errSize is a resize stream that is none.
var errSize = errors.New("not a terminal size")

// Write takes bytes of JSON objects, however they are cut.
func (s *sizes) Write(b []byte) (int, error) {
	s.text = append(s.text, b...)
	for {
		end := bytes.IndexByte(s.text, '}')
		if end < 0 {
			break
		}
		var size Size
		err := json.Unmarshal(s.text[:end+1], &size)
		s.text = s.text[end+1:]
		if err != nil {
			return 0, errSize
		}
		if size.Width == 0 || size.Height == 0 {
			continue
		}
		select {
		case <-s.out:
		default:
		}
		s.out <- size // we are the only sender: there is room
	}
	if len(s.text) > maxSize {
		return 0, errSize
	}
	return len(b), nil
}
