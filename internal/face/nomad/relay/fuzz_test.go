package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	nomadbase "github.com/longshore/longshore/api/nomad/base"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
)

// agentStream is an agent's answer: messages, and an end.
type agentStream struct {
	grpc.ClientStream
	messages [][]byte
	end      error
}

// RecvMsg implements grpc.ClientStream. The buffer is used again, as transports do.
func (s *agentStream) RecvMsg(m any) error {
	if len(s.messages) == 0 {
		return s.end
	}
	wire := bytes.Clone(s.messages[0])
	s.messages = s.messages[1:]
	err := raw{}.Unmarshal(wire, m)
	for i := range wire {
		wire[i] ^= 0xff
	}
	return err
}

// nomadStream keeps the messages to Nomad.
type nomadStream struct {
	grpc.ServerStream
	ctx  context.Context //nolint:containedctx // a stream has one
	told [][]byte
}

// Context implements grpc.ServerStream.
func (s *nomadStream) Context() context.Context { return s.ctx }

// SendMsg implements grpc.ServerStream.
func (s *nomadStream) SendMsg(m any) error {
	data, err := raw{}.Marshal(m)
	s.told = append(s.told, bytes.Clone(data))
	return err
}

// FuzzAnswers: each answer of an agent reaches Nomad unchanged and in order, the relay keeps the
// last, and no end of the agent's becomes the relay's own.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte("one"), []byte(""), uint32(codes.OK), "")
	f.Add([]byte{0x0a, 0xff}, bytes.Repeat([]byte{0}, 70000), uint32(codes.Unavailable), "gone")
	f.Add([]byte{}, []byte{1}, uint32(999), "a \x00 message \xff")
	f.Fuzz(func(t *testing.T, first, second []byte, code uint32, message string) {
		end := status.New(codes.Code(code), message).Err()
		if end == nil {
			end = io.EOF
		}
		to := &nomadStream{ctx: t.Context()}
		heard := &listener{ServerStream: to}
		err := notDead(pass(&agentStream{messages: [][]byte{first, second}, end: end}, heard))
		if len(to.told) != 2 || !bytes.Equal(to.told[0], first) || !bytes.Equal(to.told[1], second) || !bytes.Equal(heard.last.data, second) {
			t.Errorf("told %q, kept %q", to.told, heard.last.data)
		}
		if died(err) || (err == nil) != errors.Is(end, io.EOF) {
			t.Errorf("%v is told as %v", end, err)
		}
		p := &proxy{log: slog.New(slog.DiscardHandler)}
		p.remember("Capabilities", p.agents, heard.last)
		if _, _, ok := p.known("Capabilities"); ok {
			t.Error("an answer counts without an agent")
		}
	})
}

// FuzzConfigure: no configuration that Nomad sends panics, and one that is taken
// leads to a socket by its whole path.
func FuzzConfigure(f *testing.F) {
	for _, c := range [][]byte{nil, {0x80}, []byte("\x81\xa6socket\xa6/a/b.s"), []byte("\x81\xa6socket\xa3../")} {
		data, err := proto.Marshal(&nomadbase.SetConfigRequest{MsgpackConfig: c, PluginApiVersion: plugin.APIVersion})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p := &proxy{}
		if err := p.configure(data); err == nil && !filepath.IsAbs(p.socket) {
			t.Errorf("taken with socket %q", p.socket)
		}
	})
}
