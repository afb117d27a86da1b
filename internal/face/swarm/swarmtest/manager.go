// Package swarmtest is a manager of a Swarm for tests: its authority, its tokens and its
// dispatcher, over real TLS, with as many tasks as a test assigns. It answers as the
// contract says; a test may have it answer otherwise.
//
// It knows no engine. Start at New.
package swarmtest

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// Manager is one manager that has a Swarm of its own. A task with a NodeId is that node's,
// everything else is each node's.
type Manager struct {
	Authority *Authority
	Addr      string
	// Token is the workers', ManagerToken the managers'.
	Token, ManagerToken string
	// Period is the answer to heartbeats.
	Period time.Duration

	// Power kills it, and starts it again.
	Power Power

	tb testing.TB

	mu      sync.Mutex // guards hook, nodes, tasks, secrets, configs, volumes, unpublished, statuses, reporters, changed, sessions, kick, messages, cert, issuer, renew, role, more, pushed, issued
	hook    func(call string) error
	nodes   map[string]*swarmv1.Certificate // by id
	tasks   map[string]*swarmv1.Task
	secrets map[string]*swarmv1.Secret
	configs map[string]*swarmv1.Config
	// volumes are the node's, and those that are wanted back.
	volumes     map[string]*swarmv1.VolumeAssignment
	unpublished map[string]int // how often each was reported
	statuses    []*swarmv1.UpdateTaskStatusRequest_TaskStatusUpdate
	reporters   []string      // the session of each of them
	changed     chan struct{} // closed at the next change of anything
	sessions    []opened      // all that there were, the latest last
	kick        chan struct{} // closed to end the streams of the session
	messages    []*swarmv1.SessionMessage
	cert        *tls.Certificate
	issuer      *Authority                       // of the nodes' certificates
	renew       bool                             // the node is to have another certificate
	role        swarmv1.NodeRole                 // its wanted role
	more        func(*swarmv1.SessionMessage)    // adds to session messages; may be nil
	pushed      chan struct{}                    // closed when the session must get another message
	issued      int                              // certificates
	raw         chan *swarmv1.AssignmentsMessage // sent as they are

	broker broker
}

// New starts a manager on loopback, which ends with the test.
func New(tb testing.TB) *Manager {
	tb.Helper()
	return NewAt(tb, "127.0.0.1:0")
}

// NewAt starts a manager at an address that its nodes can reach.
func NewAt(tb testing.TB, addr string) *Manager {
	tb.Helper()
	a := NewAuthority(tb)
	m := &Manager{
		Authority: a, Period: 50 * time.Millisecond, tb: tb, nodes: map[string]*swarmv1.Certificate{}, tasks: map[string]*swarmv1.Task{},
		secrets: map[string]*swarmv1.Secret{}, configs: map[string]*swarmv1.Config{}, volumes: map[string]*swarmv1.VolumeAssignment{}, unpublished: map[string]int{}, changed: make(chan struct{}), kick: make(chan struct{}),
		raw: make(chan *swarmv1.AssignmentsMessage), broker: broker{subs: map[string]*subscribed{}, changed: make(chan struct{})}, issuer: a, cert: a.managerCertificate(tb), pushed: make(chan struct{}),
	}
	m.Token, m.ManagerToken = a.Token("worker"), a.Token("manager")
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	m.Addr = l.Addr().String()
	m.Power.m = m
	m.Power.serve(l)
	tb.Cleanup(m.Power.stop)
	return m
}

// server is TLS as a manager has it after its certificate was renewed: it does not say
// that it speaks HTTP/2.
type server struct{ config *tls.Config }

func (s server) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn := tls.Server(raw, s.config)
	if err := conn.HandshakeContext(context.Background()); err != nil {
		_ = raw.Close()
		return nil, nil, err
	}
	return conn, credentials.TLSInfo{State: conn.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
}

func (s server) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, fmt.Errorf("a manager listens")
}

func (s server) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (s server) Clone() credentials.TransportCredentials { return s }

func (s server) OverrideServerName(string) error { return nil }

// Hook sets a function that is called before each answer; its error becomes the answer. nil removes
// it.
func (m *Manager) Hook(fn func(call string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hook = fn
}

func (m *Manager) ask(call string) error {
	m.mu.Lock()
	fn := m.hook
	m.mu.Unlock()
	if fn == nil {
		return nil
	}
	return fn(call)
}

// Change assigns things to the node, or takes them away.
func (m *Manager) Change(fn func(tasks map[string]*swarmv1.Task, secrets map[string]*swarmv1.Secret, configs map[string]*swarmv1.Config)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fn(m.tasks, m.secrets, m.configs)
	m.wake()
}

// Assign assigns a task.
func (m *Manager) Assign(t *swarmv1.Task) {
	m.Change(func(tasks map[string]*swarmv1.Task, _ map[string]*swarmv1.Secret, _ map[string]*swarmv1.Config) {
		tasks[t.GetId()] = t
	})
}

// Want changes the desired state of a task.
func (m *Manager) Want(id string, s swarmv1.TaskState) {
	m.Change(func(tasks map[string]*swarmv1.Task, _ map[string]*swarmv1.Secret, _ map[string]*swarmv1.Config) {
		t := proto.CloneOf(tasks[id])
		t.DesiredState = s
		tasks[id] = t
	})
}

// Remove takes a task away.
func (m *Manager) Remove(id string) {
	m.Change(func(tasks map[string]*swarmv1.Task, _ map[string]*swarmv1.Secret, _ map[string]*swarmv1.Config) {
		delete(tasks, id)
	})
}

// Publish assigns a cluster volume.
func (m *Manager) Publish(v *swarmv1.VolumeAssignment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.volumes[v.GetId()] = v
	m.wake()
}

// Unpublish wants a cluster volume back.
func (m *Manager) Unpublish(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.volumes[id] = proto.CloneOf(m.volumes[id])
	m.volumes[id].PublishContext = map[string]string{wantedBack: "true"}
	m.wake()
}

// wantedBack marks a volume that is.
const wantedBack = "wanted back"

// Unpublished returns how often the node has reported a volume as unpublished.
func (m *Manager) Unpublished(id string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unpublished[id]
}

// Send sends a message by the stream of assignments, independent of the manager's state.
func (m *Manager) Send(msg *swarmv1.AssignmentsMessage) { m.raw <- msg }

// wake wakes the waiting goroutines after a change. Preconditions: mu is held.
func (m *Manager) wake() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// Drop ends the streams of the session. One that is forgotten cannot be resumed.
func (m *Manager) Drop(forget bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.kick)
	m.kick = make(chan struct{})
	if forget {
		m.sessions = append(m.sessions, opened{})
	}
	m.wake()
}

// Patience bounds a hang.
const Patience = time.Minute

// Until waits until ok returns true; it is called after each change.
func (m *Manager) Until(what string, ok func() bool) {
	m.tb.Helper()
	m.until(what, ok, m.next)
}

// next is closed with the next change.
func (m *Manager) next() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

func (m *Manager) until(what string, ok func() bool, next func() <-chan struct{}) {
	m.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := await(ctx, ok, next); err != nil {
		m.tb.Fatalf("never: %s; statuses: %v", what, m.Statuses(""))
	}
}

// Await is Until that ctx ends, with its error.
func (m *Manager) Await(ctx context.Context, ok func() bool) error { return await(ctx, ok, m.next) }

func await(ctx context.Context, ok func() bool, next func() <-chan struct{}) error {
	for {
		changed := next()
		if ok() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Statuses returns the received statuses of one task or, with "", of all.
func (m *Manager) Statuses(id string) (list []*swarmv1.TaskStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, u := range m.statuses {
		if id == "" || u.GetTaskId() == id {
			list = append(list, u.GetStatus())
		}
	}
	return list
}

// Lives returns the received statuses of a task, separate for each session.
func (m *Manager) Lives(id string) (lives [][]*swarmv1.TaskStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	by := map[string]int{}
	for i, u := range m.statuses {
		if u.GetTaskId() != id {
			continue
		}
		n, known := by[m.reporters[i]]
		if !known {
			n = len(lives)
			by[m.reporters[i]] = n
			lives = append(lives, nil)
		}
		lives[n] = append(lives[n], u.GetStatus())
	}
	return lives
}

// Reaches waits for a status of a task with a state, and returns it.
func (m *Manager) Reaches(id string, s swarmv1.TaskState) (found *swarmv1.TaskStatus) {
	m.tb.Helper()
	m.Until(id+" is "+s.String(), func() bool {
		for _, st := range m.Statuses(id) {
			if st.GetState() == s {
				found = st
			}
		}
		return found != nil
	})
	return found
}

// Forget drops the received statuses.
func (m *Manager) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.statuses, m.reporters = nil, nil
}

// caller is the node that calls, by its certificate.
func caller(ctx context.Context) (string, error) {
	p, _ := peer.FromContext(ctx)
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return "", status.Error(codes.PermissionDenied, "Permission denied: unauthorized peer role: no client certificates in request")
	}
	return info.State.VerifiedChains[0][0].Subject.CommonName, nil
}

// check is the first part of each call of the dispatcher.
func (m *Manager) check(ctx context.Context, call, session string) error {
	if err := m.ask(call); err != nil {
		return err
	}
	node, err := caller(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch now := m.current(node); {
	case now == "":
		return status.Error(codes.NotFound, "node not registered")
	case now != session:
		return status.Error(codes.InvalidArgument, "session invalid")
	}
	return nil
}

type dispatcher struct {
	swarmv1.UnimplementedDispatcherServer
	m *Manager
}

func (d dispatcher) Session(req *swarmv1.SessionRequest, stream grpc.ServerStreamingServer[swarmv1.SessionMessage]) error {
	m := d.m
	if err := m.ask("Session"); err != nil {
		return err
	}
	id, err := caller(stream.Context())
	if err != nil {
		return err
	}
	m.mu.Lock()
	if now := m.current(id); now == "" || now != req.GetSessionId() {
		m.sessions = append(m.sessions, opened{id, fmt.Sprintf("session%d", len(m.sessions))})
	}
	kick := m.kick
	m.messages = append(m.messages, m.message(id, req.GetDescription()))
	m.wake()
	m.mu.Unlock()
	for {
		m.mu.Lock()
		msg, pushed := m.message(id, req.GetDescription()), m.pushed
		m.mu.Unlock()
		if err := stream.Send(msg); err != nil {
			return err
		}
		select {
		case <-pushed:
		case <-kick:
			return status.Error(codes.Aborted, "node must disconnect")
		case <-stream.Context().Done():
			return nil
		}
	}
}

// message returns the next message of a session. Preconditions: mu is held.
func (m *Manager) message(node string, d *swarmv1.NodeDescription) *swarmv1.SessionMessage {
	state := swarmv1.IssuanceStatus_ISSUED
	if m.renew {
		state = swarmv1.IssuanceStatus_ROTATE
	}
	msg := &swarmv1.SessionMessage{
		SessionId: m.current(node), RootCA: m.Authority.Roots(),
		Node:     &swarmv1.Node{Id: node, Description: d, Spec: &swarmv1.NodeSpec{DesiredRole: m.role}, Certificate: &swarmv1.Certificate{Status: &swarmv1.IssuanceStatus{State: state}}},
		Managers: []*swarmv1.WeightedPeer{{Peer: &swarmv1.Peer{NodeId: "manager", Addr: m.Addr}, Weight: 10}},
	}
	if m.more != nil {
		m.more(msg)
	}
	return msg
}

func (m *Manager) certificate() *tls.Certificate {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cert
}

// Issued counts the certificates of nodes.
func (m *Manager) Issued() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.issued
}

// Described returns the node's last description.
func (m *Manager) Described() *swarmv1.NodeDescription {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.messages) == 0 {
		return nil
	}
	return m.messages[len(m.messages)-1].GetNode().GetDescription()
}

func (d dispatcher) Heartbeat(ctx context.Context, req *swarmv1.HeartbeatRequest) (*swarmv1.HeartbeatResponse, error) {
	if err := d.m.check(ctx, "Heartbeat", req.GetSessionId()); err != nil {
		return nil, err
	}
	return &swarmv1.HeartbeatResponse{Period: durationpb.New(d.m.Period)}, nil
}

func (d dispatcher) UpdateTaskStatus(ctx context.Context, req *swarmv1.UpdateTaskStatusRequest) (*swarmv1.UpdateTaskStatusResponse, error) {
	if err := d.m.check(ctx, "UpdateTaskStatus", req.GetSessionId()); err != nil {
		return nil, err
	}
	node, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	for _, u := range req.GetUpdates() {
		if u.GetTaskId() == ForeignTask || !given(d.m.tasks[u.GetTaskId()], node) {
			return nil, status.Error(codes.PermissionDenied, "cannot update a task not assigned this node")
		}
	}
	for _, u := range req.GetUpdates() {
		d.m.statuses, d.m.reporters = append(d.m.statuses, u), append(d.m.reporters, req.GetSessionId())
	}
	d.m.wake()
	return &swarmv1.UpdateTaskStatusResponse{}, nil
}

func (d dispatcher) UpdateVolumeStatus(ctx context.Context, req *swarmv1.UpdateVolumeStatusRequest) (*swarmv1.UpdateVolumeStatusResponse, error) {
	if err := d.m.check(ctx, "UpdateVolumeStatus", req.GetSessionId()); err != nil {
		return nil, err
	}
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	for _, u := range req.GetUpdates() {
		if !u.GetUnpublished() {
			return nil, status.Error(codes.InvalidArgument, "nothing is told of the volume")
		}
		d.m.unpublished[u.GetId()]++
		delete(d.m.volumes, u.GetId())
	}
	d.m.wake()
	return &swarmv1.UpdateVolumeStatusResponse{}, nil
}

// ForeignTask is the id of a task of another node, for status reports.
const ForeignTask = "foreign"

// everything is all that is assigned to a node.
func (m *Manager) everything(node string) (map[string]proto.Message, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]proto.Message{}
	for id, t := range m.tasks {
		if given(t, node) {
			all["task "+id] = t
		}
	}
	for id, s := range m.secrets {
		all["secret "+id] = s
	}
	for id, c := range m.configs {
		all["config "+id] = c
	}
	for id, v := range m.volumes {
		all["volume "+id] = v
	}
	return all, m.changed
}

func change(thing proto.Message, action swarmv1.AssignmentChange_AssignmentAction) *swarmv1.AssignmentChange {
	a := &swarmv1.Assignment{}
	switch thing := thing.(type) {
	case *swarmv1.Task:
		a.Item = &swarmv1.Assignment_Task{Task: thing}
	case *swarmv1.Secret:
		a.Item = &swarmv1.Assignment_Secret{Secret: thing}
	case *swarmv1.Config:
		a.Item = &swarmv1.Assignment_Config{Config: thing}
	case *swarmv1.VolumeAssignment:
		a.Item = &swarmv1.Assignment_Volume{Volume: thing}
		if thing.GetPublishContext()[wantedBack] != "" {
			action = swarmv1.AssignmentChange_REMOVE
		}
	}
	return &swarmv1.AssignmentChange{Assignment: a, Action: action}
}

func (d dispatcher) Assignments(req *swarmv1.AssignmentsRequest, stream grpc.ServerStreamingServer[swarmv1.AssignmentsMessage]) error {
	if err := d.m.check(stream.Context(), "Assignments", req.GetSessionId()); err != nil {
		return err
	}
	node, err := caller(stream.Context())
	if err != nil {
		return err
	}
	d.m.mu.Lock()
	kick := d.m.kick
	d.m.mu.Unlock()
	var had map[string]proto.Message
	for n := 0; ; {
		now, changed := d.m.everything(node)
		msg := &swarmv1.AssignmentsMessage{Type: swarmv1.AssignmentsMessage_INCREMENTAL, AppliesTo: fmt.Sprint(n), ResultsIn: fmt.Sprint(n + 1)}
		if had == nil {
			msg.Type, msg.AppliesTo = swarmv1.AssignmentsMessage_COMPLETE, ""
		}
		for key, thing := range now {
			if had[key] != thing {
				msg.Changes = append(msg.Changes, change(thing, swarmv1.AssignmentChange_UPDATE))
			}
		}
		for key, thing := range had {
			if now[key] == nil {
				msg.Changes = append(msg.Changes, change(thing, swarmv1.AssignmentChange_REMOVE))
			}
		}
		if had == nil || len(msg.GetChanges()) > 0 {
			if err := stream.Send(msg); err != nil {
				return err
			}
			n++
		}
		had = now
		select {
		case <-changed:
		case raw := <-d.m.raw:
			if err := stream.Send(raw); err != nil {
				return err
			}
		case <-kick:
			return status.Error(codes.Aborted, "dispatcher is stopped")
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (d dispatcher) Tasks(req *swarmv1.TasksRequest, stream grpc.ServerStreamingServer[swarmv1.TasksMessage]) error {
	if err := d.m.check(stream.Context(), "Tasks", req.GetSessionId()); err != nil {
		return err
	}
	node, err := caller(stream.Context())
	if err != nil {
		return err
	}
	for {
		now, changed := d.m.everything(node)
		msg := &swarmv1.TasksMessage{}
		for _, thing := range now {
			if t, ok := thing.(*swarmv1.Task); ok {
				msg.Tasks = append(msg.Tasks, t)
			}
		}
		if err := stream.Send(msg); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// Task is one that is to run a command of an image.
func Task(id, image string, command ...string) *swarmv1.Task {
	return &swarmv1.Task{
		Id: id, ServiceId: "service", Slot: 1, DesiredState: swarmv1.TaskState_RUNNING, Status: &swarmv1.TaskStatus{State: swarmv1.TaskState_ASSIGNED},
		ServiceAnnotations: &swarmv1.Annotations{Name: "web"},
		Spec:               &swarmv1.TaskSpec{Runtime: &swarmv1.TaskSpec_Container{Container: &swarmv1.ContainerSpec{Image: image, Args: command}}},
	}
}
