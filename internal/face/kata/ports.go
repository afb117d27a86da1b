package kata

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/core"
)

// Streams has a shim's connections for the streams of processes, which replace calls. Each has the port that it came
// from.
type Streams interface {
	// Take returns a connection, and waits for it until ctx ends. NotFound when none came.
	Take(ctx context.Context, port uint32) (net.Conn, error)
}

// takeTime is the time within which a connection must come that a call names. The shim connects before it calls.
const takeTime = 3 * time.Second

// copyBytes is the most that one read of a stream takes.
const copyBytes = 32 << 10

// streamPorts has the ports of a request's streams; 0 is none.
type streamPorts interface {
	GetStdinPort() uint32
	GetStdoutPort() uint32
	GetStderrPort() uint32
}

// wires are the connections of one process's streams. Each may be nil.
type wires struct {
	stdin, stdout, stderr net.Conn
	copying               sync.WaitGroup // of output
}

func (w *wires) close() {
	if w == nil {
		return
	}
	for _, c := range []net.Conn{w.stdin, w.stdout, w.stderr} {
		if c != nil {
			_ = c.Close()
		}
	}
}

// wires takes the connections that a request names, nil when it names none.
func (f *Face) wires(ctx context.Context, req streamPorts) (*wires, error) {
	if req.GetStdinPort() == 0 && req.GetStdoutPort() == 0 && req.GetStderrPort() == 0 {
		return nil, nil //nolint:nilnil // the streams are read and written by calls
	}
	if f.o.Streams == nil {
		return nil, refuse(codes.Unimplemented, "streams by ports of vsock: the option agent.passfd_listener_port is not set")
	}
	ctx, cancel := context.WithTimeout(ctx, takeTime)
	defer cancel()
	w := &wires{}
	for _, s := range []struct {
		name string
		port uint32
		to   *net.Conn
	}{{"stdin", req.GetStdinPort(), &w.stdin}, {"stdout", req.GetStdoutPort(), &w.stdout}, {"stderr", req.GetStderrPort(), &w.stderr}} {
		if s.port == 0 {
			continue
		}
		c, err := f.o.Streams.Take(ctx, s.port)
		if err != nil {
			w.close()
			return nil, refuse(codes.Internal, "%s: %v", s.name, err)
		}
		*s.to = c
	}
	return w, nil
}

// connect copies a process's streams from and to its connections until they end. It owns them.
func (f *Face) connect(ctx context.Context, w *wires, id string, p *core.Process, ref core.Ref) error {
	s, err := f.outs.of(ctx, ref, p.TTY)
	if err != nil {
		w.close()
		return err
	}
	ctx = context.WithoutCancel(ctx) // the streams outlive the call
	exec := string(p.ID)
	if p.ID == core.Main {
		exec = id
	}
	f.outs.wire(s, w)
	call := &katav1.ReadStreamRequest{ContainerId: id, ExecId: exec, Len: copyBytes}
	for _, o := range []struct {
		from *pipe
		to   net.Conn
	}{{s.stdout, w.stdout}, {s.stderr, w.stderr}} {
		if o.to == nil || o.from == s.stdout && o.to == w.stderr { // a terminal has one output
			continue
		}
		w.copying.Go(func() {
			err := f.send(ctx, o.from, o.to, call)
			if cerr := o.to.Close(); err == nil {
				err = cerr
			}
			if err != nil {
				f.o.Logger.WarnContext(ctx, "a process's output could not be sent to the shim, and is dropped", "container", ref.Container, "process", ref.Process, "error", err)
			}
		})
	}
	go func() {
		err := f.receive(ctx, w.stdin, s, id, exec)
		if errors.Is(err, net.ErrClosed) {
			return // with the process's streams
		}
		if err != nil {
			f.o.Logger.WarnContext(ctx, "a process's input could not be taken from the shim", "container", ref.Container, "process", ref.Process, "error", err)
		}
		if w.stdin != nil {
			_ = w.stdin.Close()
		}
		if p.TTY {
			return // its input ends with the process
		}
		if err := f.closeStdin(ctx, ref, s); err != nil {
			f.o.Logger.WarnContext(ctx, "a process's input could not be closed", "container", ref.Container, "process", ref.Process, "error", err)
		}
	}()
	return nil
}

// send copies output to a connection. It also reads output that the connection does not take or that the host
// may not read, because otherwise the process would block.
func (f *Face) send(ctx context.Context, from *pipe, to net.Conn, call *katav1.ReadStreamRequest) (failed error) {
	for {
		data, err := from.take(ctx, copyBytes)
		if err != nil || len(data) == 0 {
			return errors.Join(failed, err)
		}
		if failed != nil || !f.mayRead(ctx, call) {
			continue
		}
		_, failed = to.Write(data)
	}
}

// mayRead reports whether the host may read output now, as it could by a call.
func (f *Face) mayRead(ctx context.Context, call *katav1.ReadStreamRequest) bool {
	hidden := false
	ctx = context.WithValue(ctx, withholding{}, &hidden)
	return f.o.Requests.allowed(readStreamRequest) && f.asked(ctx, readStreamRequest, call) == nil && !hidden
}

// asked is ask for a request that cannot fail afterwards.
func (f *Face) asked(ctx context.Context, name string, req any) error {
	end, err := f.ask(ctx, name, req)
	end(err != nil)
	return err
}

// receive copies input from a connection, which may be nil, until its end. The error is net.ErrClosed when the connection was
// closed here.
func (f *Face) receive(ctx context.Context, from net.Conn, s *stdio, id, exec string) error {
	if from == nil {
		return nil
	}
	buf := make([]byte, copyBytes)
	const request = "WriteStreamRequest"
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if !f.o.Requests.allowed(request) {
				return fmt.Errorf("%s is blocked", request)
			}
			if err := f.asked(ctx, request, &katav1.WriteStreamRequest{ContainerId: id, ExecId: exec, Data: buf[:n]}); err != nil {
				return err
			}
			if _, err := s.write(ctx, buf[:n]); err != nil {
				return nil //nolint:nilerr // the process takes no more input
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
