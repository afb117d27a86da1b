package api

import (
	"context"
	"net/http"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
)

func (x *Exchange) encode(m proto.Message) ([]byte, error) {
	if x.responseMedia == protobufMedia {
		return proto.Marshal(m)
	}
	return MarshalJSON(m)
}

// Do does a call that came in another way than by the API, and returns the message
// that it was answered with; nil when it was answered without one. It is for calls
// whose answer is no stream.
func Do(ctx context.Context, call *mesosagent.Call, do func(ctx context.Context, x *Exchange) error) (*mesosagent.Response, error) {
	x := &Exchange{Call: call, direct: true}
	err := do(ctx, x)
	return x.response, err
}

// Answer answers with one message.
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

// Empty answers with a status alone. It has no Content-Type: clients take one for
// a message.
func (x *Exchange) Empty(code int) {
	if x.direct {
		return
	}
	x.answered = true
	x.w.WriteHeader(code)
}

// Input lets the handler answer while the client still sends. It is to be called
// before the first Next.
func (x *Exchange) OpenInput() error {
	if x.records == nil {
		return bad("the request is no stream")
	}
	return http.NewResponseController(x.w).EnableFullDuplex()
}

// EndInput has Next fail from then on, though the client sends no end. The
// connection is of no use for another request.
func (x *Exchange) EndInput(at time.Time) {
	_ = http.NewResponseController(x.w).SetReadDeadline(at) // a connection that has gone has ended its input too
}

// Next reads the next record of a stream of input. io.EOF is its end; an *Error
// is one the client has made.
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
	mu sync.Mutex // serializes Send: records are whole
}

// Stream begins the answer: the client has the status when it returns.
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

// Send sends one record. It blocks while the client does not read, until ctx
// ends or the connection does.
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
