// Package api is the wire form of the Mesos v1 agent API: the HTTP requests and
// answers, the JSON and protobuf encodings, RecordIO, the validation of calls, and the
// text form of container ids. The order of the checks, the statuses and the texts are
// those of Mesos, word for word, because clients compare them.
//
// It must not know the effects of calls. Start reading at Handler.ServeHTTP; validate.go has the
// checks of a call, jsondecode.go and jsonencode.go Mesos' JSON, recordio.go the streams, id.go the
// ids.
package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
)

// Error is an answer with an HTTP status other than success.
type Error struct {
	Code int
	Text string
}

// Error implements error.
func (e *Error) Error() string { return e.Text }

// bad, unsupported and notAcceptable are the most common error answers.
func bad(text string) *Error           { return &Error{http.StatusBadRequest, text} }
func unsupported(text string) *Error   { return &Error{http.StatusUnsupportedMediaType, text} }
func notAcceptable(text string) *Error { return &Error{http.StatusNotAcceptable, text} }

// Handler decodes calls of the agent API and hands them to Call.
type Handler struct {
	// Call executes a call and answers it through the exchange. An *Error is sent as it
	// is, any other error as status 500 with its text; both only if nothing was sent
	// before. If Call sends nothing and returns nil, the answer is an empty 200.
	Call func(ctx context.Context, x *Exchange) error
	// MaxMessage limits a request body, and each record of a stream, in bytes.
	MaxMessage int64
}

// apiPaths are the paths of the API. Everything below them belongs to the API too.
func apiPaths() []string { return []string{"/api/v1", "/slave(1)/api/v1"} }

// isAPI reports whether path belongs to the API.
func isAPI(path string) bool {
	for _, p := range apiPaths() {
		if path == p || strings.HasPrefix(path, p+"/") {
			return true
		}
	}
	return false
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x, err := h.open(w, r)
	if err == nil {
		err = h.Call(r.Context(), x)
	}
	if err != nil && (x == nil || !x.answered) {
		WriteError(w, r, err)
	}
}

// StatusCode returns the HTTP status that err is answered with, 200 for nil.
func StatusCode(err error) int {
	e := &Error{Code: http.StatusInternalServerError}
	if err == nil {
		return http.StatusOK
	}
	errors.As(err, &e)
	return e.Code
}

// open reads and checks a request up to its first call, in Mesos' order.
func (h *Handler) open(w http.ResponseWriter, r *http.Request) (*Exchange, error) {
	if !isAPI(r.URL.Path) {
		return nil, &Error{http.StatusNotFound, "404 Not Found."}
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, &Error{http.StatusMethodNotAllowed, "405 Method Not Allowed. Expecting one of { 'POST' }, but received '" + r.Method + "'."}
	}
	x := &Exchange{w: w, maxMessage: h.MaxMessage}
	if err := x.contentType(r.Header); err != nil {
		return nil, err
	}
	if err := x.accept(r.Header); err != nil {
		return nil, err
	}
	if err := x.readCall(r); err != nil {
		return nil, err
	}
	return x, x.checkForms()
}

// Exchange is one request and its answer.
type Exchange struct {
	Call *mesosagent.Call
	// Filter removes the parts of an answer that the client may not see; nil removes nothing.
	Filter func(resp *mesosagent.Response)

	w                http.ResponseWriter
	maxMessage       int64 // limit of a body or record, in bytes
	requestMedia     media
	requestStreamed  bool // the request is a stream of records
	responseMedia    media
	responseStreamed bool // the client asked for a stream of records
	records          *RecordReader
	answered         bool
	direct           bool                 // there is no connection; the answer goes to response
	response         *mesosagent.Response // the answer of a direct exchange
}

// readCall reads the request's only message, or the first one of its stream.
func (x *Exchange) readCall(r *http.Request) error {
	var raw []byte
	var err error
	if x.requestStreamed {
		x.records = NewRecordReader(r.Body, x.maxMessage)
		raw, err = x.record()
		if errors.Is(err, io.EOF) {
			err = bad("Received EOF while reading request body")
		}
	} else {
		raw, err = io.ReadAll(http.MaxBytesReader(x.w, r.Body, x.maxMessage))
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			err = &Error{http.StatusRequestEntityTooLarge, "413 Request Entity Too Large."}
		} else if err != nil {
			err = bad(err.Error())
		}
	}
	if err != nil {
		return err
	}
	if x.Call, err = x.parse(raw); err != nil {
		return err
	}
	if err := validate(x.Call); err != nil {
		return bad("Failed to validate agent::Call: " + err.Error())
	}
	return nil
}

// record reads the next record of the request. A broken record is a bad request.
func (x *Exchange) record() ([]byte, error) {
	raw, err := x.records.Next()
	if err != nil && !errors.Is(err, io.EOF) {
		err = bad(err.Error())
	}
	return raw, err
}

// parse decodes one message of the request.
func (x *Exchange) parse(raw []byte) (*mesosagent.Call, error) {
	call := &mesosagent.Call{}
	if x.requestMedia == protobufMedia {
		if err := readProtobuf(raw, call); err != nil {
			return nil, bad("Failed to parse body into a protobuf object")
		}
		return call, nil
	}
	if err := UnmarshalJSON(raw, call); err != nil {
		return nil, bad(err.Error())
	}
	return call, nil
}

// checkForms checks that the media types of request and answer are possible for the
// call.
func (x *Exchange) checkForms() error {
	t := x.Call.GetType()
	input := t == mesosagent.Call_ATTACH_CONTAINER_INPUT
	switch {
	case x.requestStreamed && !input:
		return unsupported("Streaming 'Content-Type' application/recordio is not supported for " + t.String() + " call")
	case !x.requestStreamed && input:
		return unsupported("Expecting 'Content-Type' to be application/recordio for ATTACH_CONTAINER_INPUT call")
	case x.responseStreamed && !answersByStream(t):
		return notAcceptable("Streaming response is not supported for " + t.String() + " call")
	case t == mesosagent.Call_UNKNOWN:
		return NotImplemented()
	}
	return nil
}

// answersByStream reports whether a call is answered with a stream of records.
func answersByStream(t mesosagent.Call_Type) bool {
	return t == mesosagent.Call_ATTACH_CONTAINER_OUTPUT || t == mesosagent.Call_LAUNCH_NESTED_CONTAINER_SESSION
}

// Forbidden is the answer to a call that the caller is not allowed to make.
func Forbidden() error { return &Error{http.StatusForbidden, "403 Forbidden."} }

// NotImplemented is the answer to a call of a type that does not exist.
func NotImplemented() error { return &Error{http.StatusNotImplemented, "501 Not Implemented."} }
