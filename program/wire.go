package program

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// A handle is a unix socket that keeps messages apart (SOCK_SEQPACKET). The program sends a Request, and the board
// sends one Answer for each, in their order, with at most one descriptor. Each is one message, a JSON object.

// Limits of messages, in bytes.
const (
	MaxRequest = 32 << 10
	MaxAnswer  = 64 << 10
)

// Op is the kind of a Request.
type Op string

// The operations.
const (
	// OpConnect connects to a server that matches the handle's labels and those of the request. The answer brings a
	// connected stream socket.
	OpConnect Op = "connect"
	// OpServe starts a server. The answer brings a socket like a handle, over which the board sends an Arrival with
	// a descriptor for each connection. Closing that socket ends the server.
	OpServe Op = "serve"
	// OpNarrow makes a handle with more labels and at most these rights. The answer brings it.
	OpNarrow Op = "narrow"
	// OpShow asks for the handle's labels and rights.
	OpShow Op = "show"
)

// Right is a right of a handle.
type Right string

// The rights.
const (
	MayConnect Right = "connect"
	MayServe   Right = "serve"
)

// Request is a program's request to the board.
type Request struct {
	ID     uint64            `json:"id,omitempty"` // comes back in the answer
	Op     Op                `json:"op"`
	Labels map[string]string `json:"labels,omitempty"`
	// Rights are those that are kept by OpNarrow; without any, all are.
	Rights []Right `json:"rights,omitempty"`
}

// Answer is the board's answer.
type Answer struct {
	ID     uint64            `json:"id,omitempty"`
	Labels map[string]string `json:"labels,omitempty"` // of both ends of a connection together, or of the handle
	Rights []Right           `json:"rights,omitempty"`
	Error  *Error            `json:"error,omitempty"`
}

// Arrival is a server's message with each connection.
type Arrival struct {
	Labels map[string]string `json:"labels"` // of both ends together
}

// Code is the class of an error.
type Code string

// The codes.
const (
	NoServer     Code = "no_server"     // no server matches
	Busy         Code = "busy"          // servers match, and none of them takes the connections that it has
	NotPermitted Code = "not_permitted" // the handle does not allow it
	Invalid      Code = "invalid"       // the request is wrong
	Full         Code = "full"          // a limit is reached
)

// Error is an answer of the board that something is not possible.
type Error struct {
	Code Code   `json:"code"`
	Text string `json:"text"`
}

func (e *Error) Error() string { return "board: " + e.Text }

// Is reports whether target is an error of the same code, so that errors.Is(err, &Error{Code: Busy}) is true of all
// that are busy.
func (e *Error) Is(target error) bool {
	var t *Error
	return errors.As(target, &t) && t.Code == e.Code && t.Text == ""
}

// DecodeRequest reads a program's message. It refuses unknown fields, because ignoring a restriction would widen a
// handle.
func DecodeRequest(b []byte) (r Request, err error) {
	if len(b) > MaxRequest {
		return r, fmt.Errorf("a request is longer than %d bytes", MaxRequest)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, fmt.Errorf("a request is not as it must be: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return r, errors.New("a message has one request")
	}
	switch r.Op {
	case OpConnect, OpServe, OpShow:
		if len(r.Rights) > 0 {
			return r, fmt.Errorf("%s takes no rights", r.Op)
		}
	case OpNarrow:
	default:
		return r, fmt.Errorf("unknown operation %q", r.Op)
	}
	for _, right := range r.Rights {
		if right != MayConnect && right != MayServe {
			return r, fmt.Errorf("unknown right %q", right)
		}
	}
	return r, nil
}

// Encode returns a message. It is at most twice as long as its texts.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
