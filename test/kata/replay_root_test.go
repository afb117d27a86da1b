package kata

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/roottest"
)

// recorded is one call of a run of Kata's own shim, a line of testdata/*.jsonl in the shim's
// order. echo.jsonl is of a run against another agent, which told the end of the output too
// late (hence the many checks); the others were recorded by test/e2e/kata, and have one
// container's or one pod's whole life each.
type recorded struct {
	RPC string          `json:"rpc"`
	Req json.RawMessage `json:"req"`
	// Until is the number of the call, from 0, before which the shim had the answer of this
	// one; 0 is the next call.
	Until int `json:"until"`
	// Want is the answer where it matters. For output it is bytes of a stream: no data is
	// the end of it.
	Want json.RawMessage `json:"want"`
	Code codes.Code      `json:"code"`
}

// TestRecordedRunsOfTheShim: the agent gives the recorded answers to runs of Kata's shim, with
// the same calls open beside each.
func TestRecordedRunsOfTheShim(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		files, err := filepath.Glob("testdata/*.jsonl")
		if err != nil || len(files) == 0 {
			t.Fatalf("no recordings: %v", err)
		}
		for _, file := range files {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".jsonl"), func(t *testing.T) { replay(t, readCalls(t, file)) })
		}
	})
}

func readCalls(t *testing.T, file string) (calls []recorded) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		var c recorded
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatalf("%s:%d: %v", file, len(calls)+1, err)
		}
		if c.Until == 0 {
			c.Until = len(calls) + 1
		}
		calls = append(calls, c)
	}
	return calls
}

func replay(t *testing.T, calls []recorded) {
	t.Helper()
	p := player{a: start(t), streams: map[string]*stream{}}
	done := make([]chan struct{}, len(calls))
	for i, c := range calls {
		for earlier := range i {
			if calls[earlier].Until <= i {
				await(t, done[earlier], calls[earlier])
			}
		}
		call := p.prepare(t, c)
		done[i] = make(chan struct{})
		go func() {
			defer close(done[i])
			if err := call(); err != nil {
				t.Errorf("call %d, %s %s: %v", i, c.RPC, c.Req, err)
			}
		}()
	}
	for i, c := range calls {
		await(t, done[i], c)
	}
	await(t, p.a.gone(t), recorded{RPC: "the agent's end"})
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, p.a.state) || strings.HasPrefix(at, "/run/kata-containers/") && !p.roots[at] {
			t.Errorf("a mount is left: %s", line)
		}
	}
}

func await(t *testing.T, done <-chan struct{}, c recorded) {
	t.Helper()
	timer := time.NewTimer(roottest.Patience())
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		t.Fatalf("never: %s %s", c.RPC, c.Req)
	}
}

// player makes recorded calls.
type player struct {
	a       *agent
	streams map[string]*stream
	roots   map[string]bool // the mounts for the containers of the recording
}

// stream is one output of a process. It comes in other pieces than in the recording.
type stream struct {
	rest []byte // read already, and wanted later
}

// prepare makes the root that a call expects in a guest, and returns the call.
func (p *player) prepare(t *testing.T, c recorded) func() error {
	t.Helper()
	service, name, _ := strings.Cut(c.RPC, "/")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service + "." + name))
	if err != nil {
		t.Fatalf("%s: %v", c.RPC, err)
	}
	method := d.(protoreflect.MethodDescriptor)
	req, answer := message(t, method.Input(), c.Req), message(t, method.Output(), nil)
	var want proto.Message
	if c.Want != nil {
		want = message(t, method.Output(), c.Want)
	}
	call := func() error { return p.a.client.Call(t.Context(), service, name, req, answer) }
	switch r := req.(type) {
	case *katav1.CreateContainerRequest:
		p.mountRoot(t, r.GetOCI().GetRoot().GetPath())
	case *katav1.ReadStreamRequest:
		if want == nil {
			break
		}
		id := name + " " + r.GetContainerId() + " " + r.GetExecId()
		if p.streams[id] == nil {
			p.streams[id] = &stream{}
		}
		out, data := p.streams[id], want.(*katav1.ReadStreamResponse).GetData()
		return func() error {
			return out.expect(data, func() ([]byte, error) {
				err := call()
				return answer.(*katav1.ReadStreamResponse).GetData(), err
			})
		}
	}
	return func() error {
		switch err := call(); {
		case status.Code(err) != c.Code:
			return fmt.Errorf("%w; the code wanted is %s", err, c.Code)
		case want != nil && !proto.Equal(want, answer):
			return fmt.Errorf("the answer is %v, want %v", answer, want)
		}
		return nil
	}
}

// expect reads as much as is wanted, or the end.
func (s *stream) expect(want []byte, read func() ([]byte, error)) error {
	for len(s.rest) < len(want) || len(want) == 0 {
		data, err := read()
		if err != nil {
			return err
		}
		if len(data) == 0 {
			break
		}
		s.rest = append(s.rest, data...)
		if len(want) == 0 {
			return fmt.Errorf("it is %q, want the end", s.rest)
		}
	}
	if !bytes.HasPrefix(s.rest, want) {
		return fmt.Errorf("it is %q, want %q", s.rest, want)
	}
	s.rest = s.rest[len(want):]
	return nil
}

func (p *player) mountRoot(t *testing.T, at string) {
	t.Helper()
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(p.a.root, at, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if p.roots == nil {
		p.roots = map[string]bool{}
	}
	p.roots[at] = true
}

// message is a message of a kind, empty or of the text.
func message(t *testing.T, d protoreflect.MessageDescriptor, text []byte) proto.Message {
	t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	m := kind.New().Interface()
	if len(text) > 0 {
		if err := protojson.Unmarshal(text, m); err != nil {
			t.Fatalf("%s: %s: %v", d.FullName(), text, err)
		}
	}
	return m
}
