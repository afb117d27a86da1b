package publish

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// outgoing is a stream to a manager for one subscription. nil is none.
type outgoing struct {
	link   *link
	stream grpc.ClientStreamingClient[swarmv1.PublishLogsMessage, swarmv1.PublishLogsResponse]
	stop   func() // stops waiting for the end of contexts
	cancel context.CancelFunc
	kept   []item // those that were sent, while they are few
	size   int    // of the sent messages
}

// open opens a stream, which the link counts already. It is cut off a while after the
// subscription or the session has ended: until then a manager may take the rest.
func open(sub context.Context, l *link) (*outgoing, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(l.ctx))
	later := func() { time.AfterFunc(linger, cancel) }
	one, other := context.AfterFunc(sub, later), context.AfterFunc(l.ctx, later)
	o := &outgoing{link: l, cancel: cancel, stop: func() {
		one()
		other()
	}}
	var err error
	if o.stream, err = l.api.PublishLogs(ctx); err != nil {
		return o, err
	}
	return o, nil
}

// errEnded is the error of a stream that its manager has ended early.
var errEnded = errors.New("the manager has ended the stream") //nolint:gochecknoglobals // an error value

// send sends a message, which does not mean that it is taken. An error is the manager's
// answer, if there is one.
func (o *outgoing) send(m *swarmv1.PublishLogsMessage) error {
	err := o.stream.Send(m)
	if !errors.Is(err, io.EOF) {
		return err
	}
	if err = o.closeAndRecv(); err == nil {
		err = errEnded
	}
	return err
}

// keep keeps the first messages, because a manager that refuses a stream reports it later.
func (o *outgoing) keep(list []item) {
	for _, i := range list {
		o.size += cost(i.m)
	}
	if o.kept = append(o.kept, list...); o.size > maxPending {
		o.kept = nil
	}
}

// finish tells the manager that the subscription is over, and waits for its answer.
func (o *outgoing) finish(id string) error {
	if o == nil || o.stream == nil {
		return nil
	}
	if err := o.send(&swarmv1.PublishLogsMessage{SubscriptionId: id, Close: true}); err != nil {
		return err
	}
	// Managers answer this with a status and without a message, which gRPC says is against the
	// protocol.
	if err := o.closeAndRecv(); status.Code(err) != codes.Internal {
		return err
	}
	return nil
}

// closeAndRecv ends the stream when the manager has taken all messages; the error is its answer.
func (o *outgoing) closeAndRecv() error {
	_, err := o.stream.CloseAndRecv()
	return err
}

// drop ends the stream at once.
func (o *outgoing) drop() {
	if o == nil {
		return
	}
	o.stop()
	o.cancel()
	o.link.streams.Done()
}
