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

	telling sync.Mutex // serializes announcements and withdrawals

	mu      sync.Mutex // guards own, pending, asked, begun, earlier, entered, last, err, untold, said, others
	own     map[string]*own
	pending []gossip.Change // heard, and not applied yet
	asked   bool            // to enter
	begun   bool            // endpoints that no other node knows can be announced
	earlier map[string]bool // endpoints that an earlier agent has announced
	entered bool
	last    time.Time // when a change was heard of
	err     error     // why it is not as others tell
	untold  error     // why others are not told all
	said    int       // records that were refused
	others  int

	view view // of run alone
}

// own is an interface of this node on the network.
type own struct {
	id    gossip.ID
	peer  gossip.Peer
	names gossip.Endpoint
	up    bool // its Peer is to be announced
	named bool // and its Endpoint
	gone  bool // both are to be withdrawn

	toldPeer  bool
	toldNames *gossip.Endpoint // nil: none
}

func newNetwork(s *Networks, def translate.Network) *network {
	return &network{s: s, def: def, poked: make(chan struct{}, 1), own: map[string]*own{}, view: newView(def)}
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

// take puts a task on the network.
func (n *network) take(t Task, on On) error {
	id := gossip.ID{Network: n.id(), Endpoint: gossip.EndpointID(t.ID, n.id())}
	if t.ID == nodeTask {
		id.Endpoint = gossip.EndpointID(n.s.o.Node, n.id())
	}
	addr := on.Network.Addrs[0]
	o := &own{
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
	if have := n.own[t.ID]; have != nil {
		if !have.gone {
			return nil
		}
		o.toldPeer, o.toldNames = have.toldPeer, have.toldNames // which are not withdrawn yet
	}
	n.own[t.ID] = o
	return nil
}

// check returns why an interface cannot be announced.
func (o *own) check() error {
	if err := gossip.Check(o.peer); err != nil || o.names.Name == "" { // the node itself has no name
		return err
	}
	full := o.names
	full.TaskAliases = []string{strings.Repeat("c", 12), strings.Repeat("h", 64)} // Runs has the container's id and hostname
	return gossip.Check(full)
}

// held reports whether somebody is on it.
func (n *network) held() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, o := range n.own {
		if !o.gone {
			return true
		}
	}
	return false
}

// began reports whether the gossip has begun with it.
func (n *network) began() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked
}

// change changes the record of a task, and announces it at once if the network is entered.
func (n *network) change(task string, fn func(*own)) {
	n.mu.Lock()
	if o := n.own[task]; o != nil && !o.gone {
		fn(o)
	}
	n.mu.Unlock()
	n.tell()
	n.poke()
}

// ending announces that a task gets no new connections, and reports whether others, which have led some to it, are only now
// told so.
func (n *network) ending(task string) (told bool) {
	n.mu.Lock()
	others := n.others
	n.mu.Unlock()
	n.change(task, func(o *own) {
		told = others > 0 && o.toldNames != nil && !o.toldNames.Disabled
		o.names.Disabled = true
	})
	return told
}

// drop takes a task off, and reports whether nobody is on the network any more.
func (n *network) drop(task string) bool {
	n.change(task, func(o *own) { o.gone = true })
	return !n.held()
}

// tell announces and withdraws records of this node's interfaces, and reports whether all was sent. If not, run
// tries again.
func (n *network) tell() bool {
	n.telling.Lock()
	defer n.telling.Unlock()
	n.s.mu.Lock()
	announced := n.s.announced
	n.s.mu.Unlock()
	n.mu.Lock()
	list := map[string]own{}
	for task, o := range n.own {
		list[task] = *o
	}
	// Without a member, the node has left the gossip.
	entered, begun, earlier := n.entered && announced != nil, n.begun && announced != nil, n.earlier
	n.mu.Unlock()
	var errs []error
	for _, task := range slices.Sorted(maps.Keys(list)) {
		o := list[task]
		if entered || begun && task != nodeTask && !earlier[o.id.Endpoint] {
			errs = append(errs, o.tell(announced))
		}
		n.mu.Lock()
		if at := n.own[task]; at != nil && at.id == o.id {
			at.toldPeer, at.toldNames = o.toldPeer, o.toldNames
			if at.gone && !at.toldPeer && at.toldNames == nil {
				delete(n.own, task)
			}
		}
		n.mu.Unlock()
	}
	err := errors.Join(errs...)
	n.mu.Lock()
	before := n.untold
	n.untold = err
	n.mu.Unlock()
	if err != nil && (before == nil || before.Error() != err.Error()) {
		n.s.o.Logger.Warn("other nodes are told later of this node's tasks", "network", n.def.Title, "error", err)
	}
	return err == nil
}

// tell announces the records of an interface that are not announced, or withdraws them.
func (o *own) tell(a *gossip.Announced) error {
	if o.gone {
		err := a.Withdraw(o.id)
		if err == nil {
			o.toldPeer, o.toldNames = false, nil
		}
		return err
	}
	if o.up && !o.toldPeer {
		if err := a.Announce(o.id, o.peer); err != nil {
			return err
		}
		o.toldPeer = true
	}
	switch {
	case !o.named && o.toldNames != nil:
		if err := a.WithdrawNames(o.id); err != nil {
			return err
		}
		o.toldNames = nil
	case o.named && (o.toldNames == nil || !gossip.Same(*o.toldNames, o.names)):
		names := o.names
		if err := a.Announce(o.id, names); err != nil {
			return err
		}
		o.toldNames = &names
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

// enter takes part in the network's gossip, however long that takes.
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
	n.asked, n.earlier = true, earlier
	n.mu.Unlock()
	n.running.Go(func() { n.listen(ctx, member) })
	for said := false; ; {
		err := member.Begin(ctx, n.id())
		if err == nil {
			// The rest takes long where there are many others, or a dead one.
			n.mu.Lock()
			n.begun = true
			n.mu.Unlock()
			if !n.tell() {
				n.poke() // run tries again meanwhile
			}
			if err = member.Enter(ctx, n.id()); err == nil {
				break
			}
		}
		if !said && ctx.Err() == nil {
			said = true
			n.s.o.Logger.WarnContext(ctx, "the gossip of an overlay network cannot be entered yet", "network", n.def.Title, "error", err)
		}
		if !pause(ctx, retryAfter) {
			return
		}
	}
	n.mu.Lock()
	n.entered, n.last = true, time.Now()
	n.mu.Unlock()
	n.tell()
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
			n.s.o.Logger.WarnContext(ctx, "what an earlier agent has told of tasks cannot be taken back yet", "network", n.def.Title, "error", err)
		}
		if !pause(ctx, retryAfter/4) {
			return
		}
	}
}

// withdrawOthers withdraws the records of all endpoints but those of tasks that are attached. No task may be announced
// meanwhile: its record would be withdrawn, and never announced again.
func (n *network) withdrawOthers(announced *gossip.Announced) error {
	n.telling.Lock()
	defer n.telling.Unlock()
	stays := map[string]bool{}
	n.mu.Lock()
	for _, o := range n.own {
		// A task that is recovered says so before; the node's place comes with the session.
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
		n.last = time.Now()
		n.mu.Unlock()
		n.poke()
	}
}

// run has the data path, the name servers and the published ports follow the records that are heard.
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
			told, next := n.tell(), n.follow(ctx)
			if !told {
				next = min(next, retryAfter)
			}
			again <- next
		}()
		timer.Reset(<-again)
	}
}

// follow applies the changes that were heard, and returns how long it may be until it is called again without one.
func (n *network) follow(ctx context.Context) time.Duration {
	n.mu.Lock()
	changes, last, entered := n.pending, n.last, n.entered
	n.pending = nil
	mine := map[string]own{}
	for _, o := range n.own {
		mine[o.id.Endpoint] = *o
	}
	n.mu.Unlock()
	refused := n.view.take(changes, mine)
	n.refuse(ctx, refused)
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
	if n.view.taken {
		again = min(again, republish)
	}
	n.refuse(ctx, n.view.odd)
	n.view.odd = nil
	n.mu.Lock()
	before := n.err
	n.err, n.others = err, len(n.view.peers)
	n.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil && (before == nil || before.Error() != err.Error()) {
			n.s.o.Logger.WarnContext(ctx, "an overlay network is not as other nodes tell", "network", n.def.Title, "error", err)
		}
		return retryAfter
	}
	return again
}

// maxRefused bounds the logged refused records.
const maxRefused = 32

func (n *network) refuse(ctx context.Context, list []error) {
	for _, err := range list {
		n.mu.Lock()
		n.said++
		said := n.said
		n.mu.Unlock()
		if said <= maxRefused {
			n.s.o.Logger.WarnContext(ctx, "a record of another node is left out", "network", n.def.Title, "error", err, "last_told", said == maxRefused)
		}
	}
}

func (n *network) status() NetworkStatus {
	n.mu.Lock()
	defer n.mu.Unlock()
	st := NetworkStatus{ID: n.id(), Name: n.def.Title, Others: n.others, Told: n.entered || n.begun && len(n.earlier) == 0}
	for task, o := range n.own {
		if task != nodeTask && !o.gone {
			st.Tasks++
		}
	}
	if n.err != nil {
		st.Error = n.err.Error()
	}
	return st
}
