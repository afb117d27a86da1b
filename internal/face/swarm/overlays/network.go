package overlays

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/translate"
)

// network is one that this node is on.
type network struct {
	s       *Networks
	def     translate.Network
	poked   chan struct{}
	cancel  context.CancelFunc
	running sync.WaitGroup

	adopted bool // an earlier agent has opened it
	opened  time.Time

	announcing sync.Mutex // serializes announcements and withdrawals

	mu          sync.Mutex // guards ifaces, pending, watching, begun, earlier, entered, lastChange, err, announceErr, refusals, others
	ifaces      map[string]*iface
	pending     []gossip.Change // received, and not applied yet
	watching    bool            // others' records
	begun       bool            // endpoints that no other node knows can be announced
	earlier     map[string]bool // endpoints that an earlier agent has announced
	entered     bool
	lastChange  time.Time // of the last record of others
	err         error     // of the last update of the data path
	announceErr error     // of the last announcement
	refusals    int       // records of others that were refused
	others      int

	view view // of run alone
}

// iface is an interface of this node on the network.
type iface struct {
	id    gossip.ID
	peer  gossip.Peer
	names gossip.Endpoint
	up    bool // its Peer is to be announced
	named bool // and its Endpoint
	gone  bool // both are to be withdrawn

	sentPeer  bool
	sentNames *gossip.Endpoint // nil: none
}

func newNetwork(s *Networks, def translate.Network) *network {
	return &network{s: s, def: def, poked: make(chan struct{}, 1), ifaces: map[string]*iface{}, view: newView(def)}
}

func (n *network) id() string { return n.def.Overlay.Name }

// start follows the network until ctx ends, or stop.
func (n *network) start(ctx context.Context) {
	ctx, n.cancel = context.WithCancel(ctx)
	n.running.Go(func() { n.run(ctx) })
	n.running.Go(func() { n.enter(ctx) })
}

func (n *network) stop() {
	n.cancel()
	n.running.Wait()
}

func (n *network) poke() {
	select {
	case n.poked <- struct{}{}:
	default: // it will
	}
}

// attach puts a task on the network.
func (n *network) attach(t Task, on On) error {
	id := gossip.ID{Network: n.id(), Endpoint: gossip.EndpointID(t.ID, n.id())}
	if t.ID == nodeTask {
		id.Endpoint = gossip.EndpointID(n.s.o.Node, n.id())
	}
	addr := on.Network.Addrs[0]
	o := &iface{
		id: id, peer: gossip.Peer{Addr: addr, MAC: on.Network.MAC(), Tunnel: n.def.Overlay.Local},
		names: gossip.Endpoint{
			Name: t.Name, Service: t.Service, ServiceID: t.ServiceID, VIP: on.VIP, Addr: addr.Addr(), Aliases: on.Network.Aliases, Ports: on.Ports,
		},
	}
	if err := o.check(); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if have := n.ifaces[t.ID]; have != nil {
		if !have.gone {
			return nil
		}
		o.sentPeer, o.sentNames = have.sentPeer, have.sentNames // which are not withdrawn yet
	}
	n.ifaces[t.ID] = o
	return nil
}

// check returns why an interface cannot be announced.
func (o *iface) check() error {
	if err := gossip.Check(o.peer); err != nil || o.names.Name == "" { // the node itself has no name
		return err
	}
	full := o.names
	full.TaskAliases = []string{strings.Repeat("c", 12), strings.Repeat("h", 64)} // Running adds the container's id and hostname
	return gossip.Check(full)
}

// inUse reports whether a task, or the node itself, is on the network.
func (n *network) inUse() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, o := range n.ifaces {
		if !o.gone {
			return true
		}
	}
	return false
}

// isWatched reports whether this node follows the network's records.
func (n *network) isWatched() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.watching
}

// change changes the record of a task, and announces it at once if the network is entered.
func (n *network) change(task string, fn func(*iface)) {
	n.mu.Lock()
	if o := n.ifaces[task]; o != nil && !o.gone {
		fn(o)
	}
	n.mu.Unlock()
	n.announce()
	n.poke()
}

// ending announces that a task gets no new connections. It reports whether this is news to other nodes, which may
// still send some.
func (n *network) ending(task string) (sent bool) {
	n.mu.Lock()
	others := n.others
	n.mu.Unlock()
	n.change(task, func(o *iface) {
		sent = others > 0 && o.sentNames != nil && !o.sentNames.Disabled
		o.names.Disabled = true
	})
	return sent
}

// detach removes a task from the network, and reports whether the network is unused now.
func (n *network) detach(task string) bool {
	n.change(task, func(o *iface) { o.gone = true })
	return !n.inUse()
}

// announce announces and withdraws records of this node's interfaces, and reports whether all was sent. If not, run
// tries again.
func (n *network) announce() bool {
	n.announcing.Lock()
	defer n.announcing.Unlock()
	n.s.mu.Lock()
	announced := n.s.announced
	n.s.mu.Unlock()
	n.mu.Lock()
	list := map[string]iface{}
	for task, o := range n.ifaces {
		list[task] = *o
	}
	// Without a member, the node has left the gossip.
	entered, begun, earlier := n.entered && announced != nil, n.begun && announced != nil, n.earlier
	n.mu.Unlock()
	var errs []error
	for _, task := range slices.Sorted(maps.Keys(list)) {
		o := list[task]
		if entered || begun && task != nodeTask && !earlier[o.id.Endpoint] {
			errs = append(errs, o.announce(announced))
		}
		n.mu.Lock()
		if at := n.ifaces[task]; at != nil && at.id == o.id {
			at.sentPeer, at.sentNames = o.sentPeer, o.sentNames
			if at.gone && !at.sentPeer && at.sentNames == nil {
				delete(n.ifaces, task)
			}
		}
		n.mu.Unlock()
	}
	err := errors.Join(errs...)
	n.mu.Lock()
	before := n.announceErr
	n.announceErr = err
	n.mu.Unlock()
	if err != nil && (before == nil || before.Error() != err.Error()) {
		n.s.o.Logger.Warn("could not announce this node's tasks; will retry", "network", n.def.Title, "error", err)
	}
	return err == nil
}

// announce announces the records of an interface that are not announced, or withdraws them.
func (o *iface) announce(a *gossip.Announced) error {
	if o.gone {
		err := a.Withdraw(o.id)
		if err == nil {
			o.sentPeer, o.sentNames = false, nil
		}
		return err
	}
	if o.up && !o.sentPeer {
		if err := a.Announce(o.id, o.peer); err != nil {
			return err
		}
		o.sentPeer = true
	}
	switch {
	case !o.named && o.sentNames != nil:
		if err := a.WithdrawNames(o.id); err != nil {
			return err
		}
		o.sentNames = nil
	case o.named && (o.sentNames == nil || !gossip.Same(*o.sentNames, o.names)):
		names := o.names
		if err := a.Announce(o.id, names); err != nil {
			return err
		}
		o.sentNames = &names
	}
	return nil
}

// The times of a network.
const (
	settle     = 30 * time.Millisecond // for joining further changes
	retryAfter = time.Second
	quiet      = time.Second // after so long without a change all records of others count as known
	republish  = 10 * time.Second
)

// enter joins the network's gossip, however long that takes.
func (n *network) enter(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-n.s.joined:
	}
	n.s.mu.Lock()
	member, announced := n.s.member, n.s.announced
	n.s.mu.Unlock()
	earlier := map[string]bool{}
	for _, id := range announced.Endpoints() {
		if id.Network == n.id() {
			earlier[id.Endpoint] = true
		}
	}
	n.mu.Lock()
	n.watching, n.earlier = true, earlier
	n.mu.Unlock()
	n.running.Go(func() { n.listen(ctx, member) })
	for logged := false; ; {
		err := member.Begin(ctx, n.id())
		if err == nil {
			// The rest takes long where there are many others, or a dead one.
			n.mu.Lock()
			n.begun = true
			n.mu.Unlock()
			if !n.announce() {
				n.poke() // run tries again meanwhile
			}
			if err = member.Enter(ctx, n.id()); err == nil {
				break
			}
		}
		if !logged && ctx.Err() == nil {
			logged = true
			n.s.o.Logger.WarnContext(ctx, "could not join the gossip of an overlay network; will retry", "network", n.def.Title, "error", err)
		}
		if !pause(ctx, retryAfter) {
			return
		}
	}
	n.mu.Lock()
	n.entered, n.lastChange = true, time.Now()
	n.mu.Unlock()
	n.announce()
	n.poke() // sweep may wait
	n.sweep(ctx)
}

// sweep withdraws an earlier agent's records of tasks that have ended since. It waits until the running tasks are
// known.
func (n *network) sweep(ctx context.Context) {
	for {
		n.s.mu.Lock()
		resumed, announced := n.s.resumed, n.s.announced
		n.s.mu.Unlock()
		if resumed {
			err := n.withdrawOthers(announced)
			if err == nil {
				return
			}
			n.s.o.Logger.WarnContext(ctx, "could not withdraw an earlier agent's records of ended tasks; will retry", "network", n.def.Title, "error", err)
		}
		if !pause(ctx, retryAfter/4) {
			return
		}
	}
}

// withdrawOthers withdraws the records of all endpoints but those of tasks that are attached. No task may be announced
// meanwhile: its record would be withdrawn, and never announced again.
func (n *network) withdrawOthers(announced *gossip.Announced) error {
	n.announcing.Lock()
	defer n.announcing.Unlock()
	stays := map[string]bool{}
	n.mu.Lock()
	for _, o := range n.ifaces {
		// A recovered task is up before; the node's own interface comes with the session.
		stays[o.id.Endpoint] = o.up && !o.gone
	}
	n.mu.Unlock()
	stays[gossip.EndpointID(n.s.o.Node, n.id())] = true
	return announced.Sweep(n.id(), func(endpoint string) bool { return stays[endpoint] })
}

// listen gathers the records of others.
func (n *network) listen(ctx context.Context, member gossip.Member) {
	for c := range member.Watch(ctx, n.id()) {
		n.mu.Lock()
		n.pending = append(n.pending, c)
		n.lastChange = time.Now()
		n.mu.Unlock()
		n.poke()
	}
}

// run updates the data path, the name servers and the published ports by the received records.
func (n *network) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.poked:
			if !pause(ctx, settle) {
				return
			}
		case <-timer.C:
		}
		// In a goroutine that ends: it needs a stack much larger than for waiting, which would stay with
		// each network.
		again := make(chan time.Duration)
		go func() {
			sent, next := n.announce(), n.follow(ctx)
			if !sent {
				next = min(next, retryAfter)
			}
			again <- next
		}()
		timer.Reset(<-again)
	}
}

// follow applies the received changes, and returns the time to the next call without a change.
func (n *network) follow(ctx context.Context) time.Duration {
	n.mu.Lock()
	changes, last, entered := n.pending, n.lastChange, n.entered
	n.pending = nil
	mine := map[string]iface{}
	for _, o := range n.ifaces {
		mine[o.id.Endpoint] = *o
	}
	n.mu.Unlock()
	refused := n.view.update(changes, mine)
	n.logRefused(ctx, refused)
	n.view.early = n.adopted && !n.view.pruned && n.s.early(n.opened)
	err := n.view.apply(ctx, n.s, n.def)
	again := time.Hour
	if n.view.early {
		again = retryAfter
	}
	if err == nil && entered && !n.view.pruned {
		if left := quiet - time.Since(last); left > 0 {
			again = min(again, left)
		} else if err = n.s.o.Overlays.Prune(ctx, n.id()); err == nil {
			n.view.pruned, n.view.early = true, false
			err = n.view.apply(ctx, n.s, n.def)
		}
	}
	if n.view.portsTaken {
		again = min(again, republish)
	}
	n.logRefused(ctx, n.view.refused)
	n.view.refused = nil
	n.mu.Lock()
	before := n.err
	n.err, n.others = err, len(n.view.peers)
	n.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil && (before == nil || before.Error() != err.Error()) {
			n.s.o.Logger.WarnContext(ctx, "could not apply other nodes' records to an overlay network; will retry", "network", n.def.Title, "error", err)
		}
		return retryAfter
	}
	return again
}

// maxRefused bounds the logged refused records.
const maxRefused = 32

func (n *network) logRefused(ctx context.Context, list []error) {
	for _, err := range list {
		n.mu.Lock()
		n.refusals++
		count := n.refusals
		n.mu.Unlock()
		if count <= maxRefused {
			n.s.o.Logger.WarnContext(ctx, "refused a record of another node", "network", n.def.Title, "error", err, "last_logged", count == maxRefused)
		}
	}
}

func (n *network) status() NetworkStatus {
	n.mu.Lock()
	defer n.mu.Unlock()
	st := NetworkStatus{ID: n.id(), Name: n.def.Title, Others: n.others, Announced: n.entered || n.begun && len(n.earlier) == 0}
	for task, o := range n.ifaces {
		if task != nodeTask && !o.gone {
			st.Tasks++
		}
	}
	if n.err != nil {
		st.Error = n.err.Error()
	}
	return st
}
