package api

import (
	"context"
	"net/http"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
)

// encode encodes a message in the media type of the answer.
func (x *Exchange) encode(m proto.Message) ([]byte, error) {
	if x.responseMedia == protobufMedia {
		return proto.Marshal(m)
	}
	return MarshalJSON(m)
}

// Do executes a call that did not come in as a request of the API, and returns the
// message that it was answered with; nil if it was answered without one. The call must
// not be one that is answered by a stream.
func Do(ctx context.Context, call *mesosagent.Call, do func(ctx context.Context, x *Exchange) error) (*mesosagent.Response, error) {
	x := &Exchange{Call: call, direct: true}
	err := do(ctx, x)
	return x.response, err
}

// Answer sends one message as the answer.
func (x *Exchange) Answer(resp *mesosagent.Response) error {
	if x.Filter != nil {
		x.Filter(resp)
	}
	if x.direct {
		x.response = resp
		return nil
	}
	body, err := x.encode(resp)
	if err != nil {
		return err
	}
	x.w.Header().Set("Content-Type", string(x.responseMedia))
	x.answered = true
	_, err = x.w.Write(body)
	return err
}

// Empty answers with a status and no body. It sets no Content-Type, because clients
// expect a message where there is one.
func (x *Exchange) Empty(code int) {
	if x.direct {
		return
	}
	x.answered = true
	x.w.WriteHeader(code)
}

// OpenInput allows the handler to answer while the client still sends. It must be
// called before the first Next.
func (x *Exchange) OpenInput() error {
	if x.records == nil {
		return bad("the request is not a stream")
	}
	return http.NewResponseController(x.w).EnableFullDuplex()
}

// EndInput makes Next fail from the given time on, even if the client does not end its
// stream. The connection cannot be used for another request afterwards.
func (x *Exchange) EndInput(at time.Time) {
	_ = http.NewResponseController(x.w).SetReadDeadline(at) // fails only if the connection is closed, which ends the input as well
}

// Next reads the next record of an input stream. It returns io.EOF at the end of the
// stream, and an *Error for an invalid record.
func (x *Exchange) Next() (*mesosagent.Call, error) {
	raw, err := x.record()
	if err != nil {
		return nil, err
	}
	call, err := x.parse(raw)
	if err != nil {
		return nil, err
	}
	if err := validateInput(call); err != nil {
		return nil, bad("Failed to validate agent::Call: " + err.Error())
	}
	return call, nil
}

// Stream is an answer of many records.
type Stream struct {
	x  *Exchange
	mu sync.Mutex // serializes Send, so that records do not interleave
}

// Stream begins a streamed answer. The client has received the status when it returns.
func (x *Exchange) Stream() (*Stream, error) {
	h := x.w.Header()
	h.Set("Content-Type", string(x.responseMedia))
	if x.responseStreamed {
		h.Set("Content-Type", string(recordMedia))
		h.Set("Message-Content-Type", string(x.responseMedia))
	}
	x.answered = true
	x.w.WriteHeader(http.StatusOK)
	return &Stream{x: x}, http.NewResponseController(x.w).Flush()
}

// Send sends one record. It blocks while the client does not read, until ctx ends or
// the connection closes.
func (s *Stream) Send(ctx context.Context, m *mesosagent.ProcessIO) error {
	record, err := s.x.encode(m)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := WriteRecord(s.x.w, record); err != nil {
		return err
	}
	return http.NewResponseController(s.x.w).Flush()
}
