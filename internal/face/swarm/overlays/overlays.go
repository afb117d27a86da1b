// Package overlays puts a node of a Swarm on its overlay networks: it opens their data paths for
// tasks, announces these tasks to other nodes by the gossip, and updates the data paths, the name
// servers and the published ports by other nodes' announcements.
//
// It knows which tasks are on which network, and nothing of how they are run. Start at Networks; node.go
// has the work for the node, network.go the work for each network.
package overlays

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/translate"
	"github.com/longshore/longshore/internal/keylock"
)

// Gossip makes this node's part in the gossip.
type Gossip interface {
	// Able says why this node cannot listen for it.
	Able() error
	// New returns a member that listens and knows nobody yet. The first key is the one to encrypt by.
	New(name string, advertise netip.Addr, keys []gossip.Key) (gossip.Member, error)
}

// Options are the parameters of New.
type Options struct {
	Overlays Port        // nil where there are none
	Gossip   Gossip      // nil where there is none
	KV       core.KV     // stores the announcements, and the place of the data path
	Memory   core.Holder // keeps the managers' keys for the next agent; nil where nothing does
	Node     string      // the node's id in the Swarm
	// Advertise is this node's address for other nodes, and DataPath its address for the networks'
	// packets; zero: the source address towards a manager, which Route returns, and the same.
	Advertise, DataPath netip.Addr
	Route               func(ctx context.Context) (netip.Addr, error)
	// Mesh publishes the ports of the whole swarm on this node.
	Mesh   bool
	Logger *slog.Logger
	// Note appends an event to the log.
	Note func(note string)
	// Changed is called when the node's ability to be on overlay networks has changed, and Resume when
	// waiting tasks may continue.
	Changed, Resume func()
	// FailPoint is called at each of Stages, in tests; nil otherwise.
	FailPoint func(stage string) error
}

// Task is a task on overlay networks.
type Task struct {
	ID        string
	Name      string
	Service   string // "" for one of no service
	ServiceID string
	On        []On
}

// On is the task's place on one of them.
type On struct {
	Network translate.Network
	VIP     netip.Addr    // of the service there; zero when it has none
	Ports   []gossip.Port // that every node publishes, on the network for that
}

// ErrWaits says that a task cannot be on its networks until the managers have sent more.
var ErrWaits = errors.New("waiting for the managers to send more of the swarm's networks") //nolint:gochecknoglobals // an error value

// Networks are the overlay networks that this node is on.
type Networks struct {
	o       Options
	changes keylock.Map[string] // serializes opening and closing of a network
	poked   chan struct{}
	running sync.WaitGroup
	joined  chan struct{} // closed when another member has answered

	mu         sync.Mutex      // guards base, nets, by, unable, config, configured, mine, member, announced, resumed, contact, ingress, taken
	base       context.Context //nolint:containedctx // that of Start, which ends everything
	nets       map[string]*network
	by         map[string][]string // the networks of each task
	unable     error               // why the node can be on none
	config     managerConfig
	configured time.Time // the time of the managers' first message to this agent
	mine       place
	member     gossip.Member // nil until there are keys
	announced  *gossip.Announced
	resumed    bool // the tasks of an earlier agent have been resumed
	contact    contact
	ingress    core.Ingress // as it is open; without a Network when none is
	taken      []core.TakenPort
}

// New returns the networks of a node that is on none.
func New(o Options) *Networks {
	if o.FailPoint != nil && o.Overlays != nil && o.Gossip != nil {
		o.Overlays, o.Gossip = failing{o.Overlays, o.FailPoint}, failingGossip{o.Gossip, o.FailPoint}
	}
	s := &Networks{o: o, poked: make(chan struct{}, 1), joined: make(chan struct{}), nets: map[string]*network{}, by: map[string][]string{}}
	s.mine = readPlace(o.KV)
	return s
}

// Start begins to follow managers and other nodes, until ctx ends. When it returns, Able says whether
// the node can be on overlay networks.
func (s *Networks) Start(ctx context.Context) {
	s.mu.Lock()
	s.base = ctx
	s.mu.Unlock()
	s.checkAble(ctx)
	s.running.Go(func() { s.run(ctx) })
}

// Wait returns when nothing is done any more; the context of Start must have ended.
func (s *Networks) Wait() {
	s.running.Wait()
	s.mu.Lock()
	nets := slices.Collect(maps.Values(s.nets)) // none is opened any more
	s.mu.Unlock()
	for _, n := range nets {
		n.running.Wait()
	}
}

// Able says why the node can be on no overlay network.
func (s *Networks) Able() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unable
}

// Hold opens the networks of a task, and keeps them until Release. It is idempotent. NotImplemented says
// why another node may have the task and this one may not; ErrWaits: call again after Resume.
func (s *Networks) Hold(ctx context.Context, t Task) error {
	s.mu.Lock()
	before := len(s.by[t.ID])
	s.mu.Unlock()
	for _, on := range t.On {
		if err := s.hold(ctx, t, on); err != nil {
			if before == 0 {
				s.Release(t.ID)
			}
			return fmt.Errorf("overlay network %s: %w", on.Network.Title, err)
		}
	}
	return nil
}

func (s *Networks) hold(ctx context.Context, t Task, on On) error {
	id := on.Network.Overlay.Name
	unlock, err := s.changes.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	s.mu.Lock()
	n := s.nets[id]
	s.mu.Unlock()
	if n == nil {
		if n, err = s.open(ctx, on.Network); err != nil {
			return err
		}
	}
	// It is on the network before Release can find it: one that comes between is the caller's to repeat.
	if err := n.attach(t, on); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.by[t.ID], id) {
		s.by[t.ID] = append(s.by[t.ID], id)
	}
	return nil
}

// open opens a network. Preconditions: changes is held for it.
func (s *Networks) open(ctx context.Context, def translate.Network) (*network, error) {
	s.mu.Lock()
	base, unable, keys := s.base, s.unable, s.config.secrets
	s.mu.Unlock()
	if unable != nil {
		return nil, fmt.Errorf("not served by this node: %w: %w", unable, errdefs.ErrNotImplemented)
	}
	if base == nil {
		return nil, fmt.Errorf("nothing is started: %w", errdefs.ErrFailedPrecondition)
	}
	if def.Overlay.Encrypted {
		if err := s.o.Overlays.Able(ctx, true); err != nil {
			return nil, fmt.Errorf("not served by this node: it is encrypted: %w: %w", err, errdefs.ErrNotImplemented)
		}
		if len(keys) == 0 && !s.isOpen(def.Overlay.Name) {
			return nil, fmt.Errorf("no key to encrypt by is known: %w", ErrWaits)
		}
	}
	mine, err := s.place(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, ErrWaits)
	}
	adopted := s.isOpen(def.Overlay.Name)
	def.Overlay.Local, def.Overlay.Port = mine.DataPath, mine.Port
	if err := s.o.Overlays.Open(ctx, def.Overlay); err != nil {
		return nil, err
	}
	n := newNetwork(s, def)
	n.adopted, n.opened = adopted, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if base.Err() != nil {
		return nil, context.Cause(base)
	}
	s.nets[def.Overlay.Name] = n
	n.start(base)
	return n, nil
}

// patience is how long after a start an earlier agent's names and services stay, unless all records of their network
// arrive before.
const patience = 10 * time.Second

// early reports whether names and services of a network, which was opened at a time, are to stay as an earlier agent
// has set them, because too few records were received since. Before a manager's first message there are none.
func (s *Networks) early(opened time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.configured.IsZero() {
		return true
	}
	if s.configured.After(opened) {
		opened = s.configured
	}
	return len(s.config.keys) > 0 && time.Since(opened) < patience
}

// isOpen reports whether a network is, also by an earlier agent.
func (s *Networks) isOpen(id string) bool {
	return slices.ContainsFunc(s.o.Overlays.List(), func(o core.Overlay) bool { return o.Name == id })
}

// on calls fn for the networks of a task.
func (s *Networks) on(task string, fn func(*network)) {
	s.mu.Lock()
	var list []*network
	for _, id := range s.by[task] {
		if n := s.nets[id]; n != nil {
			list = append(list, n)
		}
	}
	s.mu.Unlock()
	for _, n := range list {
		fn(n)
	}
}

// Attached says that a task has its interfaces, and announces to other nodes where they are.
func (s *Networks) Attached(task string) {
	s.on(task, func(n *network) { n.change(task, func(o *iface) { o.up = true }) })
}

// Running announces a task that serves, with its aliases. One that is about to end stays so, unless its program
// has ended since.
func (s *Networks) Running(task string, aliases ...string) {
	aliases = slices.DeleteFunc(aliases, func(a string) bool { return !gossip.IsName(a) })
	s.on(task, func(n *network) {
		n.change(task, func(o *iface) {
			o.names.Disabled = o.names.Disabled && o.named
			o.up, o.named, o.names.TaskAliases = true, true, aliases
		})
	})
}

// Ending announces that a task's program is about to be ended: it gets no new connections. It reports whether this is
// news to other nodes, which may still send some.
func (s *Networks) Ending(task string) (sent bool) {
	s.on(task, func(n *network) { sent = n.ending(task) || sent })
	return sent
}

// Ended says that a task's program has ended, and may be started again.
func (s *Networks) Ended(task string) {
	s.on(task, func(n *network) { n.change(task, func(o *iface) { o.named = false }) })
}

// Release withdraws the records of a task, and closes networks without tasks. It is idempotent.
func (s *Networks) Release(task string) {
	s.mu.Lock()
	ids := s.by[task]
	delete(s.by, task)
	base := s.base
	s.mu.Unlock()
	for _, id := range ids {
		s.mu.Lock()
		n := s.nets[id]
		s.mu.Unlock()
		if n != nil && n.detach(task) && base != nil {
			s.running.Go(func() { s.close(base, id) })
		}
	}
}

// close closes a network, unless a task is on it again.
func (s *Networks) close(ctx context.Context, id string) {
	unlock, err := s.changes.Lock(ctx, id)
	if err != nil {
		return
	}
	defer unlock()
	s.mu.Lock()
	n := s.nets[id]
	if n == nil || n.inUse() {
		s.mu.Unlock()
		return
	}
	delete(s.nets, id)
	announced := s.announced
	s.mu.Unlock()
	n.stop()
	if err := s.o.Overlays.Close(ctx, id); err != nil && !errdefs.IsFailedPrecondition(err) {
		// One that a sandbox is still on is closed by run, as those that an earlier agent has left.
		s.o.Logger.WarnContext(ctx, "could not close an overlay network; will retry", "network", n.def.Title, "error", err)
	}
	if announced != nil && n.isWatched() {
		if err := announced.Exit(id); err != nil {
			s.o.Logger.WarnContext(ctx, "could not leave the gossip of an overlay network", "network", n.def.Title, "error", err)
		}
	}
	s.poke()
}

// Resumed says that the tasks of an earlier agent are on their networks: its records of other tasks may be withdrawn.
func (s *Networks) Resumed() {
	s.mu.Lock()
	s.resumed = true
	s.mu.Unlock()
	s.poke()
}

// Leave takes leave of the other nodes, which forget this node's tasks. Start's context must have ended.
func (s *Networks) Leave() {
	s.mu.Lock()
	member := s.member
	s.member, s.announced = nil, nil
	s.mu.Unlock()
	if member != nil {
		member.Leave()
	}
}

// poke wakes run.
func (s *Networks) poke() {
	select {
	case s.poked <- struct{}{}:
	default: // it will
	}
}

// Status is the state of the node's overlay networks.
type Status struct {
	Unable   string // why there can be none
	Gossip   string // the contact with other nodes
	Members  []netip.Addr
	Networks []NetworkStatus
	Taken    []string // published ports that another process or sandbox of this node uses
}

// NetworkStatus is the state of one of them.
type NetworkStatus struct {
	ID, Name  string
	Tasks     int // of this node
	Others    int // interfaces on other nodes
	Announced bool
	Error     string
}

// Status returns their state.
func (s *Networks) Status() (st Status) {
	s.mu.Lock()
	member, nets := s.member, slices.Collect(maps.Values(s.nets))
	if s.unable != nil {
		st.Unable = s.unable.Error()
	}
	st.Gossip = s.contact.String()
	for _, p := range s.taken {
		st.Taken = append(st.Taken, fmt.Sprintf("%d/%s: %v", p.Port, p.Proto, p.Err))
	}
	if member == nil && s.unable == nil {
		st.Gossip = "waits for the managers' keys"
		if s.config.known {
			st.Gossip = Unused
		}
	}
	s.mu.Unlock()
	if member != nil {
		st.Members = member.Members()
	}
	for _, n := range nets {
		st.Networks = append(st.Networks, n.status())
	}
	slices.SortFunc(st.Networks, func(a, b NetworkStatus) int { return compareNames(a, b) })
	return st
}

func compareNames(a, b NetworkStatus) int {
	if a.Name != b.Name {
		if a.Name < b.Name {
			return -1
		}
		return 1
	}
	if a.ID < b.ID {
		return -1
	}
	return 1
}

// pause waits, and reports whether ctx is still valid.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
