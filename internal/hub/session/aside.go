package session

import (
	"context"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore/longshore/internal/enums"
	"github.com/longshore/longshore/internal/hub/ca"
)

// aside runs fn in a goroutine of its own and waits for it. The goroutine of a stream waits for
// days, and keeps the stack that its deepest call needed: so it makes none.
func aside(fn func() error) error {
	o := make(chan outcome, 1)
	go run(fn, o)
	return (<-o).error()
}

// outcome is the result of a function: an error, or the value of its panic.
type outcome struct {
	err      error
	panicked any
}

// error returns the error, or panics again in the goroutine of the call.
func (o outcome) error() error {
	if o.panicked != nil {
		panic(o.panicked)
	}
	return o.err
}

func run(fn func() error, into chan<- outcome) {
	var o outcome
	defer func() {
		o.panicked = recover()
		into <- o
	}()
	o.err = fn()
}

// linger is how long a connection stays after the end of a session on it, if the node has not
// begun another one there: it may read why.
const linger = 2 * time.Second

// sending runs fn, which sends to a session's node, aside, as long as the session lasts.
func (d *Dispatcher) sending(s *session, caller ca.Caller, fn func() error) error {
	o := make(chan outcome, 1)
	go run(fn, o)
	select {
	case done := <-o:
		return done.error()
	case <-s.ctx.Done():
	}
	err := d.ended(s, caller)
	if sent := (<-o).error(); sent != nil {
		return sent
	}
	return err
}

// ended returns why a session has ended. It closes the connection, because unread messages to a
// node stay with it, and with them the streams.
func (d *Dispatcher) ended(s *session, caller ca.Caller) error {
	time.AfterFunc(linger, func() {
		d.mu.Lock()
		st := d.nodes[caller.Node]
		stays := st != nil && st.current != nil && st.current.caller.Same(caller)
		d.mu.Unlock()
		if !stays {
			caller.Cut()
		}
	})
	return context.Cause(s.ctx)
}

// Checked is a stream that refuses messages with unknown values of enums.
func Checked(stream grpc.ServerStream) grpc.ServerStream { return checked{stream} }

type checked struct{ grpc.ServerStream }

// RecvMsg implements grpc.ServerStream.
func (c checked) RecvMsg(m any) error {
	err := enums.Receive(c.ServerStream.RecvMsg, m)
	if errdefs.IsInvalidArgument(err) {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return err
}

// Shallow is a stream that reads its one request in another goroutine.
func Shallow(stream grpc.ServerStream) grpc.ServerStream { return shallow{stream} }

type shallow struct{ grpc.ServerStream }

// RecvMsg implements grpc.ServerStream.
func (s shallow) RecvMsg(m any) error {
	return aside(func() error { return s.ServerStream.RecvMsg(m) })
}
