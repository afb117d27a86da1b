// Package session is the hub's side of SwarmKit's Dispatcher: sessions of nodes, messages to them,
// and their reports. It answers with the codes that workers expect.
//
// It does not know what is to run where. Start at Dispatcher.Session and
// Dispatcher.Assignments.
package session

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/ca"
	"github.com/longshore/longshore/internal/hub/events"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/peers"
	"github.com/longshore/longshore/internal/hub/store"
)

// Options are the parameters of New.
type Options struct {
	CA        *ca.Service
	Inventory *inventory.Inventory
	Keys      *Keys
	// Peers are this hub and the others, at which nodes find another one.
	Peers *peers.Peers
	// Period is how often nodes say that they are alive; a node is Down after Grace times that.
	Period time.Duration
	Grace  int
	Log    *slog.Logger
}

// The defaults of Options.
const (
	DefaultPeriod = 5 * time.Second
	DefaultGrace  = 3
)

// Registrations of one node within window of each other are limited: the first one that it
// has, and so many more.
const (
	registrations = 3
	window        = 8 * time.Second
)

// Dispatcher serves the nodes.
type Dispatcher struct {
	swarmv1.UnimplementedDispatcherServer
	o Options

	ending context.Context // of Run's end
	end    context.CancelFunc

	begin      time.Time // the start of sessions' time
	superseded atomic.Uint64

	mu    sync.Mutex // guards nodes
	nodes map[string]*state
	// sessions are the current sessions, by node. Heartbeats read them without mu: they wait for nothing.
	sessions sync.Map
}

// state is the state of a node that has had a session.
type state struct {
	current    *session // nil when it is not in touch
	registered time.Time
	attempts   int
	takes      []take
}

// session is one session. It ends with the next one of its node, or when heartbeats stay out.
type session struct {
	id   string
	addr string // guarded by the dispatcher's mu, as caller, seen and held are
	// caller is the last one that began or resumed it.
	caller ca.Caller
	ctx    context.Context
	end    context.CancelCauseFunc
	timer  *time.Timer
	// until is when it ends without another heartbeat, after the dispatcher's begin. A heartbeat sets it and leaves the
	// timer, which reads it when it fires.
	until   atomic.Int64
	seen    int64 // the revision of the node's last description and status
	holding bool  // a record says that this session holds its node
	// streams counts those of assignments.
	streams atomic.Int32
}

// The answers that workers know.
var (
	errNotRegistered = status.Error(codes.NotFound, "node not registered")
	errInvalid       = status.Error(codes.InvalidArgument, "session invalid")
	errStopped       = status.Error(codes.Aborted, "dispatcher is stopped")
)

// roles are those of nodes.
var roles = []string{ca.RoleWorker, ca.RoleManager}

// New is a dispatcher without sessions.
func New(o Options) *Dispatcher {
	if o.Period == 0 {
		o.Period = DefaultPeriod
	}
	if o.Grace == 0 {
		o.Grace = DefaultGrace
	}
	d := &Dispatcher{o: o, begin: time.Now(), nodes: map[string]*state{}}
	d.ending, d.end = context.WithCancel(context.Background())
	d.o.Inventory.Serve(d.o.Peers.Self(), d.moved)
	return d
}

// Run serves until ctx ends. Then all sessions end.
func (d *Dispatcher) Run(ctx context.Context) error {
	defer d.Drop()
	defer d.end()
	<-ctx.Done()
	return context.Cause(ctx)
}

// moved is the inventory's call with the new holder of a node: a session of this hub, or "", which is none or one
// of another hub's. The session here ends if it has lost the node. The records come in the order of their
// revisions, so that a record before this session's own is older.
func (d *Dispatcher) moved(node, holds string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.nodes[node]
	if st == nil || st.current == nil {
		return
	}
	s := st.current
	switch {
	case s.id == holds:
		s.holding = true
	case s.holding:
		d.superseded.Add(1)
		d.o.Log.Info("a node has moved to another hub, or was marked as down", "node", node, "address", s.addr)
		d.leaveLocked(node, st, errInvalid)
	}
}

// leaveLocked ends the current session of a node. Preconditions: mu is held.
func (d *Dispatcher) leaveLocked(node string, st *state, why error) {
	d.sessions.Delete(node)
	st.current.timer.Stop()
	st.current.end(why)
	st.current = nil
}

// Look looks after the nodes that no hub has any more, as theirs is gone, until ctx ends: they are Unknown, and Down when they
// do not come back in twice the usual time. One hub at a time does so.
func (d *Dispatcher) Look(ctx context.Context, term Term) error {
	since := map[string]time.Time{}
	patience := 2 * time.Duration(d.o.Grace) * d.o.Period
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		_, changed := d.o.Peers.List()
		timer.Reset(min(d.o.Period, maxLook))
		orphans := d.o.Inventory.Orphans(d.o.Peers.Alive)
		maps.DeleteFunc(since, func(id string, _ time.Time) bool {
			_, still := slices.BinarySearch(orphans, id)
			return !still
		})
		for _, id := range orphans {
			n, _, seen := d.o.Inventory.Node(id)
			at, known := since[id]
			if !known {
				at = time.Now()
				since[id] = at
			}
			var err error
			switch state := n.GetStatus().GetState(); {
			case state == swarmv1.NodeStatus_READY, state == swarmv1.NodeStatus_DISCONNECTED:
				err = d.status(ctx, term.Commit, id, seen, swarmv1.NodeStatus_UNKNOWN, "its hub has ended; the node has not reconnected yet")
			case state == swarmv1.NodeStatus_UNKNOWN && time.Since(at) >= patience:
				err = d.status(ctx, term.Commit, id, seen, swarmv1.NodeStatus_DOWN, "the node did not reconnect after its hub had ended")
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil {
				d.o.Log.ErrorContext(ctx, "could not store the state of a node; will try again", "node", id, "error", err)
				break
			}
		}
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// maxLook is the longest time between two searches for nodes without a hub.
const maxLook = time.Second

// Term is a term of this hub as the only one that handles such nodes.
type Term interface {
	Commit(ctx context.Context, writes ...store.Write) error
}

// status stores the status of a node that no hub holds, unless its session has changed since.
func (d *Dispatcher) status(ctx context.Context, commit func(context.Context, ...store.Write) error, node string, seen int64, to swarmv1.NodeStatus_State, message string) error {
	n, _, now := d.o.Inventory.Node(node)
	if n == nil || now != seen || seen == 0 {
		return nil
	}
	err := commit(ctx, inventory.Put(inventory.Seen, node, &swarmv1.Node{
		Meta: &swarmv1.Meta{UpdatedAt: timestamppb.Now()}, Description: n.GetDescription(),
		Status: &swarmv1.NodeStatus{State: to, Message: message, Addr: n.GetStatus().GetAddr()},
	}, seen), events.Event{Kind: "node", Who: "node " + node, What: "is " + strings.ToLower(to.String()) + ": " + message}.Write())
	if aborted(err) {
		return nil
	}
	return err
}

// Drop ends all sessions, as this hub is another one from now on for the others: the nodes find one of those, or come back.
func (d *Dispatcher) Drop() {
	d.o.Inventory.Serve(d.o.Peers.Self(), d.moved)
	d.mu.Lock()
	defer d.mu.Unlock()
	for node, st := range d.nodes {
		if st.current != nil {
			d.leaveLocked(node, st, errStopped)
		}
	}
}

// Addr is the address of a node that is in touch, "" of one that is not.
func (d *Dispatcher) Addr(node string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if st := d.nodes[node]; st != nil && st.current != nil {
		return st.current.addr
	}
	return ""
}

// check is the first part of each call but Session.
func (d *Dispatcher) check(ctx context.Context, id string) (string, *session, error) {
	caller, err := d.o.CA.Authorize(ctx, roles...)
	if err != nil {
		return "", nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.nodes[caller.Node]
	switch {
	case st == nil || st.current == nil:
		return "", nil, errNotRegistered
	case id == "" || st.current.id != id:
		return "", nil, errInvalid
	}
	return caller.Node, st.current, nil
}

// Session resumes a session, or begins one, and tells the node about itself and its managers
// whenever that changes.
func (d *Dispatcher) Session(req *swarmv1.SessionRequest, stream grpc.ServerStreamingServer[swarmv1.SessionMessage]) error {
	ctx := stream.Context()
	t := &telling{d: d, stream: stream}
	if err := aside(func() error { return t.begin(ctx, req) }); err != nil {
		return err
	}
	for {
		if err := d.sending(t.s, t.caller, t.step); err != nil {
			return err
		}
		select {
		case <-t.changed:
		case <-t.keys:
		case <-t.roots:
		case <-t.hubs:
		case <-t.s.ctx.Done():
			return d.ended(t.s, t.caller)
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// telling is a stream of messages to a node about itself and the hub.
type telling struct {
	d      *Dispatcher
	stream grpc.ServerStreamingServer[swarmv1.SessionMessage]
	caller ca.Caller
	s      *session
	// Closed at changes.
	changed, keys, roots, hubs <-chan struct{}
}

// begin opens the session.
func (t *telling) begin(ctx context.Context, req *swarmv1.SessionRequest) (err error) {
	d := t.d
	if t.caller, err = d.o.CA.Authorize(ctx, roles...); err != nil {
		return err
	}
	if !d.o.Peers.Alive(d.o.Peers.Self()) {
		return errStopped // it could not store that it has the node
	}
	if n, _, _ := d.o.Inventory.Node(t.caller.Node); n == nil {
		return status.Error(codes.Unknown, "node not found")
	}
	if size := proto.Size(req.GetDescription()); size > maxDescription {
		return status.Errorf(codes.InvalidArgument, "the description of the node has %d bytes, at most %d are stored", size, maxDescription)
	}
	from := d.inUse(t.caller, req.GetSessionId())
	if t.s, err = d.open(t.caller, req.GetSessionId()); err != nil {
		return err
	}
	if err := d.taken(ctx, t.caller, from); err != nil {
		return err
	}
	d.o.CA.Session(ctx, t.caller)
	return d.describe(ctx, t.caller, t.s, req.GetDescription())
}

// step sends the present changes.
func (t *telling) step() error {
	d := t.d
	t.changed, t.keys, t.roots = d.o.Inventory.NodeChanged(t.caller.Node), d.o.Keys.Changed(), d.o.CA.Authority.Changed()
	var managers []*swarmv1.WeightedPeer
	managers, t.hubs = d.managers()
	if err := d.live(t.s, t.caller); err != nil {
		return err
	}
	n, _, _ := d.o.Inventory.Node(t.caller.Node)
	if n == nil {
		return status.Error(codes.Unknown, "node not found")
	}
	return t.stream.Send(&swarmv1.SessionMessage{
		SessionId: t.s.id, Node: n, RootCA: d.o.CA.Authority.Roots(), NetworkBootstrapKeys: d.o.Keys.List(), Managers: managers,
	})
}

// managers returns the hubs for messages to nodes, and a channel that is closed when they may have
// changed.
func (d *Dispatcher) managers() (list []*swarmv1.WeightedPeer, changed <-chan struct{}) {
	hubs, changed := d.o.Peers.List()
	for _, h := range hubs {
		list = append(list, &swarmv1.WeightedPeer{Peer: &swarmv1.Peer{NodeId: d.o.CA.Authority.Hub, Addr: h.Addr}, Weight: 10})
	}
	return list, changed
}

// maxDescription is the size of the largest description of a node, in bytes.
const maxDescription = 256 << 10

// live tells why a session has ended, nil when it has not.
func (d *Dispatcher) live(s *session, caller ca.Caller) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	return d.o.CA.Allowed(caller)
}

// open returns the session of a node's request: the current one, or a new one, which ends the
// current one.
func (d *Dispatcher) open(caller ca.Caller, id string) (*session, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.nodes[caller.Node]
	if st == nil {
		st = &state{registered: time.Now()}
		d.nodes[caller.Node] = st
	} else if s := st.current; s != nil && id != "" && s.id == id {
		s.addr, s.caller = caller.Addr, caller
		return s, nil
	} else if err := st.again(caller.Node); err != nil {
		return nil, err
	}
	if old := st.current; old != nil {
		old.timer.Stop()
		old.end(errInvalid)
		d.superseded.Add(1)
		d.o.Log.Info("a node begins another session while it has one", "node", caller.Node, "from", caller.Addr, "before", old.addr)
	}
	s := &session{id: ca.NewID(), addr: caller.Addr, caller: caller}
	s.ctx, s.end = context.WithCancelCause(context.Background())
	patience := max(storing, d.silence(d.o.Period))
	s.heard(d, patience)
	s.timer = time.AfterFunc(patience, func() { d.due(caller.Node, s) })
	st.current = s
	d.sessions.Store(caller.Node, s)
	return s, nil
}

// storing bounds the time to store a node's session. The time for the first heartbeat begins after it, because the
// node does not know the session before.
const storing = time.Minute

// again counts a registration of a node that was registered before. Preconditions: the
// dispatcher's mu is held.
func (st *state) again(node string) error {
	if time.Since(st.registered) > window {
		st.attempts = 0
	}
	st.attempts++
	if st.attempts > registrations {
		return status.Errorf(codes.Unavailable, "node %s exceeded rate limit count of registrations", node)
	}
	st.registered = time.Now()
	return nil
}

// silence is how long a node that is to say every so often that it is alive may say nothing.
func (d *Dispatcher) silence(period time.Duration) time.Duration {
	return time.Duration(d.o.Grace) * period
}

// describe stores a node's description, and that it is Ready.
func (d *Dispatcher) describe(ctx context.Context, caller ca.Caller, s *session, description *swarmv1.NodeDescription) error {
	hub, by := d.o.Peers.Self(), ctx
	if n, _, _ := d.o.Inventory.Node(caller.Node); n.GetStatus().GetState() != swarmv1.NodeStatus_READY {
		by = events.By(ctx, events.Event{Kind: "node", Who: "node " + caller.Node, What: "is ready, at " + caller.Addr})
	}
	rev, err := d.hold(by, caller, s, &swarmv1.Node{
		Meta: &swarmv1.Meta{UpdatedAt: timestamppb.Now()}, Description: description, Spec: inventory.Hold(hub, s.id),
		Status: &swarmv1.NodeStatus{State: swarmv1.NodeStatus_READY, Addr: caller.Addr},
	})
	if errors.Is(err, errInvalid) {
		return err
	}
	if err != nil {
		if ctx.Err() != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
		d.o.Log.ErrorContext(ctx, "could not store a node's description; the node tries again", "node", caller.Node, "error", err)
		return errStopped
	}
	run, session, _ := d.o.Inventory.Holder(caller.Node)
	d.mu.Lock()
	defer d.mu.Unlock()
	s.seen = max(s.seen, rev)
	s.heard(d, d.silence(d.o.Period))
	s.timer.Reset(d.silence(d.o.Period)) // one that is lost already stays so
	if st := d.nodes[caller.Node]; (run != hub || session != s.id) && st.current == s {
		d.leaveLocked(caller.Node, st, errInvalid) // another one has taken it since
		return errInvalid
	}
	return nil
}

// hold stores that a session holds its node: a new one takes it from any holder, a resumed one must still hold it.
func (d *Dispatcher) hold(ctx context.Context, caller ca.Caller, s *session, n *swarmv1.Node) (rev int64, err error) {
	for {
		condition := int64(store.Any)
		d.mu.Lock()
		holding := s.holding
		d.mu.Unlock()
		changed := d.o.Inventory.NodeChanged(caller.Node)
		if holding {
			run, id, seen := d.o.Inventory.Holder(caller.Node)
			if run+" "+id != n.GetSpec().GetAnnotations().GetName() {
				return 0, errInvalid
			}
			condition = seen
		}
		if rev, err = d.o.Inventory.Commit(ctx, inventory.Put(inventory.Seen, caller.Node, n, condition)); !aborted(err) {
			return rev, err
		}
		select { // it resumes twice, or another hub has it
		case <-changed:
		case <-s.ctx.Done():
			return 0, errInvalid
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// heard has a session end when nothing more is heard for a time.
func (s *session) heard(d *Dispatcher, patience time.Duration) {
	s.until.Store(int64(time.Since(d.begin) + patience))
}

// due ends a session if its time is over, and looks again when it will be otherwise.
func (d *Dispatcher) due(node string, s *session) {
	d.mu.Lock()
	left := time.Duration(s.until.Load()) - time.Since(d.begin)
	if left > 0 {
		s.timer.Reset(left)
	}
	d.mu.Unlock()
	if left > 0 {
		return
	}
	d.lost(node, s)
}

// lost ends the session of a node that has said nothing for too long.
func (d *Dispatcher) lost(node string, s *session) {
	d.mu.Lock()
	st := d.nodes[node]
	current := st.current == s
	if current {
		st.current = nil
		d.sessions.Delete(node)
		s.end(errNotRegistered)
	}
	seen, addr := s.seen, s.addr
	d.mu.Unlock()
	if !current {
		return
	}
	d.o.Log.Warn("a node is down: it has sent no heartbeats", "node", node, "address", addr)
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		err := d.status(d.ending, d.commit, node, seen, swarmv1.NodeStatus_DOWN, "heartbeat failure")
		if err == nil {
			return
		}
		d.o.Log.Error("could not store that a node is down; will try again", "node", node, "error", err)
		select {
		case <-time.After(wait):
		case <-d.ending.Done():
			return
		}
	}
}

// commit is the inventory's Commit, without the revision.
func (d *Dispatcher) commit(ctx context.Context, writes ...store.Write) error {
	_, err := d.o.Inventory.Commit(ctx, writes...)
	return err
}

// jitter is the random part of the period of heartbeats, in both directions.
const jitter = 0.1

// Heartbeat says when the next one is due. It takes no lock of the dispatcher or the inventory, so that it never waits
// behind assignments, scheduling or a log that is slow.
func (d *Dispatcher) Heartbeat(ctx context.Context, req *swarmv1.HeartbeatRequest) (*swarmv1.HeartbeatResponse, error) {
	caller, err := d.o.CA.Authorize(ctx, roles...)
	if err != nil {
		return nil, err
	}
	current, ok := d.sessions.Load(caller.Node)
	if !ok {
		return nil, errNotRegistered
	}
	s := current.(*session) //nolint:forcetypeassert // nothing else is stored
	if s.id != req.GetSessionId() {
		return nil, errInvalid
	}
	period := time.Duration((1 + jitter*(2*rand.Float64()-1)) * float64(d.o.Period)) //nolint:gosec // it spreads load
	if s.heard(d, d.silence(period)); s.ctx.Err() != nil {
		return nil, errNotRegistered // it ends at this moment
	}
	return &swarmv1.HeartbeatResponse{Period: durationpb.New(period)}, nil
}

// UpdateTaskStatus takes statuses.
func (d *Dispatcher) UpdateTaskStatus(ctx context.Context, req *swarmv1.UpdateTaskStatusRequest) (*swarmv1.UpdateTaskStatusResponse, error) {
	node, _, err := d.check(ctx, req.GetSessionId())
	if err != nil {
		return nil, err
	}
	if foreign := d.o.Inventory.Report(node, req.GetUpdates()); foreign != "" {
		d.o.Log.WarnContext(ctx, "a node reports the status of a task that is another node's; the call was refused", "node", node, "task", foreign)
		return nil, status.Error(codes.PermissionDenied, "cannot update a task not assigned this node")
	}
	return &swarmv1.UpdateTaskStatusResponse{}, nil
}

// UpdateVolumeStatus takes statuses of cluster volumes. A hub has none, so each is unknown and
// ignored.
func (d *Dispatcher) UpdateVolumeStatus(ctx context.Context, req *swarmv1.UpdateVolumeStatusRequest) (*swarmv1.UpdateVolumeStatusResponse, error) {
	if _, _, err := d.check(ctx, req.GetSessionId()); err != nil {
		return nil, err
	}
	return &swarmv1.UpdateVolumeStatusResponse{}, nil
}
