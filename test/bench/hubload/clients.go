package hubload

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// parallel is how many clients do something at once.
const parallel = 128

// clients are the nodes: each has a connection with a certificate of its own, and the streams
// that a worker has.
type clients struct {
	ctx   context.Context
	end   context.CancelCauseFunc
	nodes []*client
	ids   []string
	// lost counts the streams that ended before the clients did, and cause is why the first did.
	lost  atomic.Int64
	cause atomic.Value
	beats atomic.Int64
	// opened, landed and reported are how far steps are: sessions, tasks that have arrived, and statuses.
	opened, landed, reported atomic.Int64
	// obeys is set while clients report that their tasks run. slowest is the longest time, in nanoseconds, that a
	// heartbeat took.
	obeys   atomic.Bool
	slowest atomic.Int64

	mu       sync.Mutex // guards arrived
	arrived  map[string]time.Time
	came     chan struct{} // something has arrived
	awaiting sync.WaitGroup
}

// client is a node.
type client struct {
	all        *clients
	id         string
	conn       *grpc.ClientConn
	dispatcher swarmv1.DispatcherClient
	session    string
}

// seed makes the server create nodes, all with one key, because making more keys is the clients'
// work, which is not measured.
func seed(ctx context.Context, s *server, n int) (*clients, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, err
	}
	a, err := s.ask(request{Op: "seed", N: n, CSR: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})})
	if err != nil {
		return nil, err
	}
	c := &clients{ids: slices.Sorted(maps.Keys(a.Nodes)), arrived: map[string]time.Time{}, came: make(chan struct{}, 1)}
	c.ctx, c.end = context.WithCancelCause(ctx)
	for _, id := range c.ids {
		pair := tls.Certificate{PrivateKey: key}
		for block, rest := pem.Decode(a.Nodes[id]); block != nil; block, rest = pem.Decode(rest) {
			pair.Certificate = append(pair.Certificate, block.Bytes)
		}
		creds := credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}}) //nolint:gosec // the server's is of this bench
		conn, err := grpc.NewClient("passthrough:///"+s.addr, grpc.WithTransportCredentials(creds), grpc.WithReadBufferSize(4<<10), grpc.WithDisableServiceConfig())
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, &client{all: c, id: id, conn: conn, dispatcher: swarmv1.NewDispatcherClient(conn)})
	}
	return c, nil
}

// close ends all sessions.
func (c *clients) close() {
	c.end(context.Canceled)
	_ = c.each(func(_ context.Context, n *client) error { return n.conn.Close() })
	c.awaiting.Wait()
}

// each does something for all nodes, many at once.
func (c *clients) each(fn func(ctx context.Context, n *client) error) error {
	group, ctx := errgroup.WithContext(c.ctx)
	group.SetLimit(parallel)
	for _, n := range c.nodes {
		group.Go(func() error { return fn(ctx, n) })
	}
	return group.Wait()
}

// description is a node's description, about as large as dockerd's.
func description(id string) *swarmv1.NodeDescription {
	d := &swarmv1.NodeDescription{
		Hostname: "node-" + id, Platform: &swarmv1.Platform{Os: "linux", Architecture: "x86_64"}, Resources: &swarmv1.Resources{NanoCpus: 4e9, MemoryBytes: 8 << 30},
		Engine: &swarmv1.EngineDescription{EngineVersion: "28.5.1", Labels: map[string]string{"site": "shop"}},
	}
	for _, p := range []string{"bridge", "host", "ipvlan", "macvlan", "null", "overlay"} {
		d.Engine.Plugins = append(d.Engine.Plugins, &swarmv1.PluginDescription{Type: "Network", Name: p})
	}
	for _, p := range []string{"awslogs", "fluentd", "gcplogs", "gelf", "journald", "json-file", "local", "splunk", "syslog"} {
		d.Engine.Plugins = append(d.Engine.Plugins, &swarmv1.PluginDescription{Type: "Log", Name: p})
	}
	return d
}

// open begins a session with its streams, and its heartbeats.
func (n *client) open() error {
	c := n.all
	stream, err := n.dispatcher.Session(c.ctx, &swarmv1.SessionRequest{Description: description(n.id)})
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return fmt.Errorf("a session: %w", err)
	}
	n.session = first.GetSessionId()
	assignments, err := n.dispatcher.Assignments(c.ctx, &swarmv1.AssignmentsRequest{SessionId: n.session})
	if err != nil {
		return err
	}
	if _, err := assignments.Recv(); err != nil {
		return fmt.Errorf("assignments: %w", err)
	}
	logs, err := swarmv1.NewLogBrokerClient(n.conn).ListenSubscriptions(c.ctx, &swarmv1.ListenSubscriptionsRequest{})
	if err != nil {
		return err
	}
	c.opened.Add(1)
	c.follow(func() error { _, err := stream.Recv(); return err })
	c.follow(func() error { _, err := logs.Recv(); return err })
	c.follow(func() error {
		msg, err := assignments.Recv()
		if err != nil {
			return err
		}
		if c.obeys.Load() {
			return n.obey(msg)
		}
		c.take(msg, time.Now())
		return nil
	})
	c.awaiting.Go(n.alive)
	return nil
}

// follow reads a stream to its end.
func (c *clients) follow(next func() error) {
	c.awaiting.Go(func() {
		for {
			if err := next(); err != nil {
				c.ended(err)
				return
			}
		}
	})
}

func (c *clients) ended(err error) {
	if c.ctx.Err() == nil {
		c.lost.Add(1)
		c.cause.CompareAndSwap(nil, fmt.Errorf("the first that ended: %w", err))
	}
}

// alive sends heartbeats when they are due.
func (n *client) alive() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-n.all.ctx.Done():
			return
		}
		period, err := n.beat(n.all.ctx)
		if err != nil {
			n.all.ended(err)
			return
		}
		timer.Reset(period)
	}
}

func (n *client) beat(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	resp, err := n.dispatcher.Heartbeat(ctx, &swarmv1.HeartbeatRequest{SessionId: n.session})
	n.all.answered(time.Since(began))
	n.all.beats.Add(1)
	return resp.GetPeriod().AsDuration(), err
}

// take notes when tasks have arrived.
func (c *clients) take(msg *swarmv1.AssignmentsMessage, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, change := range msg.GetChanges() {
		if t := change.GetAssignment().GetTask(); t != nil && change.GetAction() == swarmv1.AssignmentChange_UPDATE {
			if _, ok := c.arrived[t.GetId()]; !ok {
				c.arrived[t.GetId()] = at
				c.landed.Add(1)
			}
		}
	}
	select {
	case c.came <- struct{}{}:
	default:
	}
}

// all waits until so many tasks have arrived, and returns when each did.
func (c *clients) all(n int) (map[string]time.Time, error) {
	for {
		c.mu.Lock()
		if len(c.arrived) >= n {
			arrived := c.arrived
			c.arrived = map[string]time.Time{}
			c.mu.Unlock()
			return arrived, nil
		}
		have := len(c.arrived)
		c.mu.Unlock()
		select {
		case <-c.came:
		case <-c.ctx.Done():
			return nil, fmt.Errorf("%d of %d tasks have arrived; %d streams have ended: %v: %w", have, n, c.lost.Load(), c.cause.Load(), context.Cause(c.ctx))
		}
	}
}

// report tells that a task runs.
func (n *client) report(ctx context.Context, task string) error {
	return n.reportState(ctx, task, swarmv1.TaskState_RUNNING)
}

// reportState reports the state of a task.
func (n *client) reportState(ctx context.Context, task string, state swarmv1.TaskState) error {
	_, err := n.dispatcher.UpdateTaskStatus(ctx, &swarmv1.UpdateTaskStatusRequest{SessionId: n.session, Updates: []*swarmv1.UpdateTaskStatusRequest_TaskStatusUpdate{{
		TaskId: task, Status: &swarmv1.TaskStatus{State: state, Message: "started", RuntimeStatus: &swarmv1.TaskStatus_Container{Container: &swarmv1.ContainerStatus{
			ContainerId: "0f3c6a1e5d7b9f2a4c6e8d0b1a3f5c7e9d2b4a6c8e0f1d3b5a7c9e1f3d5b7a90", Pid: 4242,
		}}},
	}}})
	n.all.reported.Add(1)
	return err
}
