// Package session keeps a node in touch with the managers of its Swarm: it opens a
// session, sends heartbeats, receives assignments and reports statuses, and opens
// another session with any of the managers when one is lost.
//
// It must not know the node's work. Start at Client.Run.
package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/assignment"
	"github.com/longshore/longshore/internal/face/swarm/identity"
)

// Worker runs the node's tasks. Its methods are called by several goroutines.
type Worker interface {
	// Registered is called when a session has begun: earlier reports may be lost, so all statuses
	// must be sent again.
	Registered()
	// Assigned gets each message of a stream of assignments; first marks the first one. An error
	// ends the session.
	Assigned(m *swarmv1.AssignmentsMessage, first bool) error
	// Listen sends the output of tasks to managers that ask for it, until ctx ends. An
	// error ends the session.
	Listen(ctx context.Context, api swarmv1.LogBrokerClient) error
}

// Member is the node as a member of its Swarm. Its methods are called by several
// goroutines.
type Member interface {
	// Identity is the node's, as it is now.
	Identity() *identity.Identity
	// Describe returns the description of the node.
	Describe() *swarmv1.NodeDescription
	// Configured gets each message of the session.
	Configured(m *swarmv1.SessionMessage) error
	// Paced gets the interval of heartbeats when the managers have changed it.
	Paced(period time.Duration)
	// Expired is called when the node's certificate turns out to have expired, once.
	Expired(err error)
	// Renewed gets the node's next certificate.
	Renewed(id *identity.Identity) error
}

// Options are the parameters of New; all but Heartbeat are required.
type Options struct {
	Member   Member
	Worker   Worker
	Managers *Managers
	Reports  *Reports
	Logger   *slog.Logger
	// Heartbeat is the time between two heartbeats until a manager says it; 0 is that of
	// managers.
	Heartbeat time.Duration
}

// Client opens one session after the other.
type Client struct {
	o     Options
	id    string // of the session; "" when none can be resumed
	pace  pace
	renew chan struct{} // a manager asks for another certificate
	state state
	// described says that the node's description may have changed.
	described chan struct{}

	period  time.Duration // of heartbeats, as the member knows it
	renewed time.Time     // when the certificate was, the last time
	logged  string        // the last logged error
	expired bool          // the member knows
}

// New returns a client without a session.
func New(o Options) *Client {
	c := &Client{o: o, renew: make(chan struct{}, 1), described: make(chan struct{}, 1)}
	if c.o.Heartbeat == 0 {
		c.o.Heartbeat = firstPeriod
	}
	c.period = c.o.Heartbeat
	c.state.beat(time.Now(), c.period)
	return c
}

// The times of a session.
const (
	callTimeout   = 5 * time.Second
	describeEvery = 20 * time.Second
	firstPeriod   = 5 * time.Second // of heartbeats, when the manager says nothing sensible
	chance        = time.Second     // by which two heartbeats may differ: managers add or subtract up to a half at random
)

// errAgain ends a session that is resumed at once, with something new to say.
var errAgain = errors.New("the session is resumed") //nolint:gochecknoglobals // an error value

// Run keeps a session until ctx ends.
func (c *Client) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if !sleep(ctx, c.pace.wait(time.Now(), c.id == "")) {
			return
		}
		err := c.connect(ctx)
		c.state.set(Down, "", err)
		if ctx.Err() != nil || errors.Is(err, errAgain) {
			continue
		}
		c.pace.failed()
		level := slog.LevelWarn
		if c.logged == err.Error() { // logged once
			level = slog.LevelDebug
		}
		c.logged = err.Error()
		c.o.Logger.Log(ctx, level, "lost the session with the swarm; will retry", "error", err, "backoff", c.pace.backoff)
	}
}

// sleep reports whether all of d has passed.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// connect is one session with one manager.
func (c *Client) connect(ctx context.Context) error {
	peer, ok := c.o.Managers.Pick()
	if !ok {
		return errors.New("no manager of the swarm is known")
	}
	id := c.o.Member.Identity()
	if id.Expired(time.Now()) { // which a clock that is put right may undo
		err := fmt.Errorf("the node's certificate has expired at %s, and no manager renews it any more: its tasks run on; to end them and come back as another node, leave the swarm and join it again", id.NotAfter.Format(time.RFC3339))
		if !c.expired {
			c.expired = true
			c.o.Member.Expired(err)
		}
		return err
	}
	c.expired = false
	conn, err := grpc.NewClient("passthrough:///"+peer.Addr, append(identity.SmallBuffers(), grpc.WithTransportCredentials(id.Credentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)))...) // a node's first assignments are one message
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	err = c.serve(ctx, peer, conn)
	if !errors.Is(err, errAgain) {
		c.o.Managers.Observe(peer, bad)
	}
	switch status.Code(err) {
	case codes.NotFound, codes.InvalidArgument: // the manager does not know the session
		c.id = ""
	default:
	}
	return err
}

// serve opens a session by a connection and stays in it.
func (c *Client) serve(ctx context.Context, peer Peer, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	select {
	case <-c.renew: // the request was for the session before
	default:
	}
	group, ctx := errgroup.WithContext(ctx) // the session's stream ends with the others
	api := swarmv1.NewDispatcherClient(conn)
	described := c.o.Member.Describe()
	stream, first, err := c.open(ctx, api, described)
	if err != nil {
		return fmt.Errorf("open a session with manager %s: %w", peer.Addr, err)
	}
	registered := first.GetSessionId() != c.id
	c.id = first.GetSessionId()
	c.pace.opened(time.Now(), registered)
	c.o.Managers.Observe(peer, good)
	if err := c.receive(first); err != nil {
		return err
	}
	c.o.Worker.Registered()
	c.state.set(Up, peer.Addr, nil)
	c.logged = ""
	c.o.Logger.InfoContext(ctx, "session with the swarm", "manager", peer.Addr, "resumed", !registered)
	run := func(what string, fn func(context.Context) error) {
		group.Go(func() error {
			if err := fn(ctx); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			return nil
		})
	}
	session := c.id
	run("heartbeat", func(ctx context.Context) error { return c.heartbeat(ctx, api, session) })
	run("session", func(context.Context) error { return c.listen(stream) })
	run("assignments", func(ctx context.Context) error { return c.assignments(ctx, api, session) })
	run("report", func(ctx context.Context) error { return c.report(ctx, api, session) })
	run("output", func(ctx context.Context) error { return c.o.Worker.Listen(ctx, swarmv1.NewLogBrokerClient(conn)) })
	run("description", func(ctx context.Context) error { return c.describe(ctx, described) })
	run("certificate", func(ctx context.Context) error { return c.certificate(ctx, conn) })
	return group.Wait()
}

// open opens the session and waits for its first message.
func (c *Client) open(ctx context.Context, api swarmv1.DispatcherClient, d *swarmv1.NodeDescription) (grpc.ServerStreamingClient[swarmv1.SessionMessage], *swarmv1.SessionMessage, error) {
	// A timeout of the context would end the stream later on.
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(callTimeout, func() { cancel(fmt.Errorf("no answer within %s", callTimeout)) })
	stream, err := api.Session(ctx, &swarmv1.SessionRequest{Description: d, SessionId: c.id})
	var first *swarmv1.SessionMessage
	if err == nil {
		first, err = stream.Recv()
	}
	if err == nil && !timer.Stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		timer.Stop()
		if cause := context.Cause(ctx); cause != nil && status.Code(err) == codes.Canceled {
			err = cause
		}
		cancel(nil)
		return nil, nil, err
	}
	context.AfterFunc(ctx, func() { cancel(nil) })
	return stream, first, nil
}

// heartbeat says that the node lives, as often as the manager wants it.
func (c *Client) heartbeat(ctx context.Context, api swarmv1.DispatcherClient, session string) error {
	for {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		resp, err := api.Heartbeat(call, &swarmv1.HeartbeatRequest{SessionId: session})
		cancel()
		if err != nil {
			return err
		}
		period := resp.GetPeriod().AsDuration()
		if period <= 0 {
			period = c.o.Heartbeat
		}
		c.state.beat(time.Now(), period)
		if (period - c.period).Abs() > chance {
			c.period = period
			c.o.Member.Paced(period)
		}
		if !sleep(ctx, period) {
			return ctx.Err()
		}
	}
}

// listen receives the manager's messages about the node and the Swarm.
func (c *Client) listen(stream grpc.ServerStreamingClient[swarmv1.SessionMessage]) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := c.receive(m); err != nil {
			return err
		}
	}
}

// receive applies a message of the session.
func (c *Client) receive(m *swarmv1.SessionMessage) error {
	if wantsRenewal(m.GetNode(), c.o.Member.Identity()) {
		poke(c.renew)
	}
	if err := c.o.Member.Configured(m); err != nil {
		return err
	}
	c.Described()
	return nil
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // one is enough
	}
}

// assignments receives the node's assignments. A message that does not follow the one before it
// ends the session; the next one begins with the complete list.
func (c *Client) assignments(ctx context.Context, api swarmv1.DispatcherClient, session string) error {
	stream, err := api.Assignments(ctx, &swarmv1.AssignmentsRequest{SessionId: session})
	if err != nil {
		return err
	}
	for first := true; ; first = false {
		m, err := stream.Recv()
		if first && status.Code(err) == codes.Unimplemented {
			return c.tasks(ctx, api, session)
		}
		if err != nil {
			return err
		}
		c.state.assigned()
		if err := c.o.Worker.Assigned(m, first); err != nil {
			return err
		}
	}
}

// tasks receives the node's tasks from managers that know no assignments.
func (c *Client) tasks(ctx context.Context, api swarmv1.DispatcherClient, session string) error {
	stream, err := api.Tasks(ctx, &swarmv1.TasksRequest{SessionId: session})
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		c.state.assigned()
		if err := c.o.Worker.Assigned(assignment.OfTasks(m), true); err != nil {
			return err
		}
	}
}

// report sends statuses as they come: those that come during a call go with the next. If a manager refuses a list
// because one of its tasks is another node's, it sends each status by itself.
func (c *Client) report(ctx context.Context, api swarmv1.DispatcherClient, session string) error {
	for {
		list, volumes := c.o.Reports.batch(), c.o.Reports.volumes()
		if len(volumes) > 0 {
			if err := c.sendVolumes(ctx, api, session, volumes); err != nil {
				return err
			}
		}
		if len(list) == 0 && len(volumes) == 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-c.o.Reports.wake:
			}
			continue
		}
		for n := len(list); len(list) > 0; {
			next := list[:min(n, len(list))]
			call, cancel := context.WithTimeout(ctx, callTimeout)
			_, err := api.UpdateTaskStatus(call, &swarmv1.UpdateTaskStatusRequest{SessionId: session, Updates: next})
			cancel()
			switch {
			case err == nil:
			case status.Code(err) == codes.PermissionDenied && len(next) > 1:
				n = 1
				continue
			case status.Code(err) == codes.PermissionDenied:
				c.o.Logger.WarnContext(ctx, "a manager refused the status of a task", "task", next[0].GetTaskId(), "error", err)
			default:
				return err
			}
			c.o.Reports.sent(next)
			list = list[len(next):]
		}
	}
}

// sendVolumes reports unpublished volumes. Managers without cluster volumes do not implement the
// call.
func (c *Client) sendVolumes(ctx context.Context, api swarmv1.DispatcherClient, session string, list []*swarmv1.UpdateVolumeStatusRequest_VolumeStatusUpdate) error {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := api.UpdateVolumeStatus(call, &swarmv1.UpdateVolumeStatusRequest{SessionId: session, Updates: list})
	if err != nil && status.Code(err) != codes.Unimplemented {
		return err
	}
	c.o.Reports.sentVolumes(list)
	return nil
}

// describe resumes the session when the node's description has changed.
func (c *Client) describe(ctx context.Context, described *swarmv1.NodeDescription) error {
	for {
		if !proto.Equal(described, c.o.Member.Describe()) {
			return errAgain
		}
		timer := time.NewTimer(describeEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-c.described:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// Described says that the node's description may have changed.
func (c *Client) Described() {
	poke(c.described)
}
