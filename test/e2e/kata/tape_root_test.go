package kata

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"os"
	"path"
	"path/filepath"
	"sync"
	"testing"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	katav1 "github.com/longshore/longshore/api/kata/v1"
)

// recordEnv names a directory into which each machine's calls are written, in the form
// of test/kata/testdata.
const recordEnv = "LONGSHORE_KATA_RECORD"

// tape has the calls of one machine's agent, in their order.
type tape struct {
	// change, unless nil, may change a request before the agent gets it, and says whether it
	// has.
	change func(req proto.Message) bool

	mu    sync.Mutex // guards calls
	calls []*call
}

// call is a request, and its answer when there is one.
type call struct {
	rpc    string
	method protoreflect.MethodDescriptor
	req    proto.Message
	answer proto.Message
	code   codes.Code
	text   string
	until  int // how many calls had been made when the answer came
}

// bridge connects clients of l with the agent, until l is closed.
func (p *tape) bridge(l net.Listener, agent func(context.Context) (net.Conn, error)) {
	for {
		front, err := l.Accept()
		if err != nil {
			return
		}
		back, err := agent(context.Background())
		if err != nil {
			_ = front.Close()
			continue
		}
		open := &streams{tape: p, open: map[uint32]*call{}}
		forward := func(to, from net.Conn, seen func(stream uint32, body []byte) []byte) {
			_, _ = io.Copy(&frames{to: to, seen: seen}, from)
			_ = to.Close()
			_ = from.Close()
		}
		go forward(back, front, open.request)
		go forward(front, back, open.response)
	}
}

// frames cuts the written bytes into ttrpc's messages, and forwards each as seen returns it.
type frames struct {
	to   io.Writer
	buf  []byte
	seen func(stream uint32, body []byte) []byte
}

func (f *frames) Write(p []byte) (int, error) {
	const header = 10 // length, stream, type, flags
	f.buf = append(f.buf, p...)
	for len(f.buf) >= header {
		end := header + int(binary.BigEndian.Uint32(f.buf))
		if len(f.buf) < end {
			break
		}
		body := f.seen(binary.BigEndian.Uint32(f.buf[4:]), f.buf[header:end])
		message := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
		message = append(append(message, f.buf[4:header]...), body...)
		if _, err := f.to.Write(message); err != nil {
			return 0, err
		}
		f.buf = f.buf[end:]
	}
	return len(p), nil
}

// streams are the open calls of one connection.
type streams struct {
	tape *tape

	mu   sync.Mutex // guards open
	open map[uint32]*call
}

func (s *streams) request(stream uint32, body []byte) []byte {
	var req ttrpc.Request
	if err := proto.Unmarshal(body, &req); err != nil {
		return body
	}
	c := &call{rpc: req.GetService() + "/" + req.GetMethod()}
	if d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(req.GetService() + "." + req.GetMethod())); err == nil {
		c.method = d.(protoreflect.MethodDescriptor)
		c.req = decode(c.method.Input(), req.GetPayload())
	}
	if s.tape.change != nil && s.tape.change(c.req) {
		body = rewrite(&req, c.req, body)
	}
	s.mu.Lock()
	s.open[stream] = c
	s.mu.Unlock()
	s.tape.mu.Lock()
	defer s.tape.mu.Unlock()
	s.tape.calls = append(s.tape.calls, c)
	return body
}

// rewrite is a call with another request, or the call as it was if that cannot be.
func rewrite(call *ttrpc.Request, req proto.Message, was []byte) []byte {
	payload, err := proto.Marshal(req)
	if err != nil {
		return was
	}
	call.Payload = payload
	b, err := proto.Marshal(call)
	if err != nil {
		return was
	}
	return b
}

func (s *streams) response(stream uint32, body []byte) []byte {
	var resp ttrpc.Response
	if err := proto.Unmarshal(body, &resp); err != nil {
		return body
	}
	s.mu.Lock()
	c := s.open[stream]
	delete(s.open, stream)
	s.mu.Unlock()
	if c == nil || c.method == nil {
		return body
	}
	s.tape.mu.Lock()
	defer s.tape.mu.Unlock()
	c.until = len(s.tape.calls)
	c.code, c.text = codes.Code(resp.GetStatus().GetCode()), resp.GetStatus().GetMessage()
	if c.code == codes.OK {
		c.answer = decode(c.method.Output(), resp.GetPayload())
	}
	return body
}

// decode returns nil for bytes that are no message of the kind.
func decode(d protoreflect.MessageDescriptor, b []byte) proto.Message {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		return nil
	}
	m := kind.New().Interface()
	if err := proto.Unmarshal(b, m); err != nil {
		return nil
	}
	return m
}

// named returns the requests of an RPC that were answered, with their answers.
func (p *tape) named(rpc string) (list []call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calls {
		if path.Base(c.rpc) == rpc && c.until > 0 {
			list = append(list, *c)
		}
	}
	return list
}

func (p *tape) has(rpc string) bool { return len(p.named(rpc)) > 0 }

// refused tells of the calls that failed, but for those that the sandbox's end cut off.
func (p *tape) refused() (list []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calls {
		if c.code != codes.OK && path.Base(c.rpc) != "GetOOMEvent" {
			list = append(list, path.Base(c.rpc)+": "+c.code.String()+": "+c.text)
		}
	}
	return list
}

// save writes the calls to a file in the directory of recordEnv, if that is set.
func (p *tape) save(t *testing.T, name string) {
	t.Helper()
	dir := os.Getenv(recordEnv)
	if dir == "" {
		return
	}
	var all bytes.Buffer
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, c := range p.calls {
		line := struct {
			RPC   string          `json:"rpc"`
			Req   json.RawMessage `json:"req"`
			Until int             `json:"until,omitempty"`
			Want  json.RawMessage `json:"want,omitempty"`
			Code  codes.Code      `json:"code,omitempty"`
		}{RPC: c.rpc, Req: text(t, c.req), Code: c.code}
		switch c.until {
		case 0: // cut off
			line.Until, line.Code = len(p.calls)+1, codes.Unavailable
		case i + 1:
		default:
			line.Until = c.until
		}
		switch c.answer.(type) {
		case *katav1.HealthCheckResponse, *katav1.ReadStreamResponse, *katav1.WriteStreamResponse, *katav1.WaitProcessResponse, *katav1.OOMEvent:
			line.Want = text(t, c.answer)
		}
		b, err := json.Marshal(line)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(append(b, '\n'))
	}
	if err := os.WriteFile(filepath.Join(dir, name+".jsonl"), all.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// text is a message as JSON in one form: protojson varies its spaces.
func text(t *testing.T, m proto.Message) json.RawMessage {
	t.Helper()
	b, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
