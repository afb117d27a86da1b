package session

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/longshore/longshore/internal/hub/ca"
)

// aside runs fn in a goroutine of its own and waits for it. The goroutine of a stream waits for
// days, and keeps the stack that its deepest call needed: so it makes none.
func aside(fn func() error) error {
	o := make(chan outcome, 1)
	go run(fn, o)
	return (<-o).error()
}

// outcome is what came of a function: an error, or the value that it panicked with.
type outcome struct {
	err      error
	panicked any
}

// error goes on with a panic where it is expected: in the goroutine of the call.
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

// linger is how long a peer may take to read a message of a session that has ended.
const linger = 5 * time.Second

// sending runs fn, which sends to a session's node, aside. When the session has ended and the
// node does not read what is sent, its connection is closed: until then the message and the
// stream would stay, for ever.
func (s *session) sending(ctx context.Context, fn func() error) error {
	o := make(chan outcome, 1)
	go run(fn, o)
	select {
	case done := <-o:
		return done.error()
	case <-s.ctx.Done():
	}
	timer := time.NewTimer(linger)
	defer timer.Stop()
	select {
	case done := <-o:
		return done.error()
	case <-timer.C:
		ca.Cut(ctx)
		if err := (<-o).error(); err != nil {
			return context.Cause(s.ctx)
		}
		return nil
	}
}

// Shallow is a stream whose one request is read aside.
func Shallow(stream grpc.ServerStream) grpc.ServerStream { return shallow{stream} }

type shallow struct{ grpc.ServerStream }

// RecvMsg implements grpc.ServerStream.
func (s shallow) RecvMsg(m any) error {
	return aside(func() error { return s.ServerStream.RecvMsg(m) })
}
