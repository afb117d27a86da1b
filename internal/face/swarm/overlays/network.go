package overlays

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/directory"
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

	telling sync.Mutex // serializes what is announced

	mu      sync.Mutex // guards own, pending, asked, entered, pruned, last, err, said, others
	own     map[string]*own
	pending []gossip.Change // that were heard of, and are not applied
	asked   bool            // to enter
	entered bool
	last    time.Time // when a change was heard of
	err     error     // why it is not as others tell
	said    int       // records that were refused
	others  int

	view // of run alone
}

// own is an interface of this node on the network.
type own struct {
	id    gossip.ID
	peer  gossip.Peer
	names gossip.Endpoint
	up    bool // others are to know where it is
	named bool // and what it is called
	gone  bool // nothing is to be known any more

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
	if err := gossip.Check(o.peer); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if have := n.own[t.ID]; have != nil && !have.gone {
		return nil
	}
	n.own[t.ID] = o
	return nil
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

// began reports whether the gossip was asked for it.
func (n *network) began() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked
}

// change has another thing told of a task, at once if that can be.
func (n *network) change(task string, fn func(*own)) {
	n.mu.Lock()
	if o := n.own[task]; o != nil && !o.gone {
		fn(o)
	}
	n.mu.Unlock()
	n.tell()
	n.poke()
}

// drop takes a task off, and reports whether nobody is on the network any more.
func (n *network) drop(task string) bool {
	n.change(task, func(o *own) { o.gone = true })
	return !n.held()
}

// tell has the other nodes know what they are to know of this node's interfaces.
func (n *network) tell() {
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
	entered := n.entered
	n.mu.Unlock()
	var errs []error
	for _, task := range slices.Sorted(maps.Keys(list)) {
		o := list[task]
		if entered {
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
	if err := errors.Join(errs...); err != nil {
		n.s.o.Logger.Warn("other nodes are told later of this node's tasks", "network", n.def.Title, "error", err)
		time.AfterFunc(retryAfter, n.poke)
	}
}

// tell announces what is to be known of an interface, or withdraws it.
func (o *own) tell(a *gossip.Announced) error {
	if o.gone {
		if !o.toldPeer && o.toldNames == nil {
			return nil
		}
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
	settle     = 30 * time.Millisecond // in which further changes join one
	retryAfter = time.Second
	quiet      = time.Second // without a change all that others have told is known
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
	member := n.s.member
	n.s.mu.Unlock()
	n.mu.Lock()
	n.asked = true
	n.mu.Unlock()
	n.running.Go(func() { n.listen(ctx, member) })
	for said := false; ; {
		err := member.Enter(ctx, n.id())
		if err == nil {
			break
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
	n.sweep(ctx)
	n.poke()
}

// sweep takes back what an earlier agent has told of tasks that have ended since, once those are known that
// have not.
func (n *network) sweep(ctx context.Context) {
	for {
		n.s.mu.Lock()
		resumed, announced := n.s.resumed, n.s.announced
		n.s.mu.Unlock()
		if resumed {
			stays := map[string]bool{}
			n.mu.Lock()
			for _, o := range n.own {
				// A task that is recovered says so before; the node's place comes with the session.
				stays[o.id.Endpoint] = o.up
			}
			n.mu.Unlock()
			stays[gossip.EndpointID(n.s.o.Node, n.id())] = true
			err := announced.Sweep(n.id(), func(endpoint string) bool { return stays[endpoint] })
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

// listen gathers what others tell.
func (n *network) listen(ctx context.Context, member gossip.Member) {
	for c := range member.Watch(ctx, n.id()) {
		n.mu.Lock()
		n.pending = append(n.pending, c)
		n.last = time.Now()
		n.mu.Unlock()
		n.poke()
	}
}

// run has the data path, the name servers and the published ports follow what is told.
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
		n.tell()
		timer.Reset(n.follow(ctx))
	}
}

// follow applies what is told, and returns after which time to do it again in any case.
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
	err := n.view.apply(ctx, n.s, n.def)
	again := time.Hour
	if err == nil && entered && !n.view.pruned {
		if left := quiet - time.Since(last); left > 0 {
			again = left
		} else if err = n.s.o.Overlays.Prune(ctx, n.id()); err == nil {
			n.view.pruned = true
		}
	}
	if n.view.taken {
		again = min(again, republish)
	}
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

// maxRefused is how many records are told of that cannot be.
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
	st := NetworkStatus{ID: n.id(), Name: n.def.Title, Others: n.others, Told: n.entered}
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

// view is a network as it is known, and how much of it is applied.
type view struct {
	dir    *directory.Directory
	def    translate.Network
	heard  map[string]gossip.Endpoint // of others, by their keys
	mine   map[string]gossip.Endpoint
	here   map[netip.Addr]bool // addresses of this node
	peers  map[string]core.OverlayPeer
	set    map[string]core.OverlayPeer // to be applied
	drop   map[string]bool
	names  map[string][]netip.Addr // as they are applied
	owners map[netip.Addr]string
	leads  []core.OverlayService
	ports  []core.PublishedPort
	vips   map[netip.Addr]bool
	taken  bool // a published port is somebody else's
	pruned bool
	opened core.Ingress
	first  bool // everything was applied once
}

func newView(def translate.Network) view {
	v := view{def: def, heard: map[string]gossip.Endpoint{}, peers: map[string]core.OverlayPeer{}, set: map[string]core.OverlayPeer{}, drop: map[string]bool{}}
	v.dir = v.empty()
	return v
}

func (v *view) empty() *directory.Directory {
	var n directory.Network
	for _, s := range v.def.Overlay.Subnets {
		n.Ranges, n.Gateways = append(n.Ranges, s.Range), append(n.Gateways, s.Gateway)
	}
	return directory.New(n)
}

// take takes in changes, and how this node's own interfaces are, by their keys. It returns why records of
// others are left out.
func (v *view) take(changes []gossip.Change, own map[string]own) (refused []error) {
	v.here = map[netip.Addr]bool{}
	mine := map[string]gossip.Endpoint{}
	for key, o := range own {
		if o.gone {
			continue
		}
		v.here[o.peer.Addr.Addr()] = true
		if o.named {
			mine[key] = o.names
		}
	}
	refused = v.takeOwn(mine)
	for _, c := range changes {
		key := c.ID.Endpoint
		if _, ours := own[key]; ours {
			if !c.Gone {
				refused = append(refused, fmt.Errorf("endpoint %.12q is this node's own", key))
			}
			continue
		}
		var err error
		switch r := c.Record.(type) {
		case gossip.Peer:
			err = v.takePeer(key, r, c.Gone)
		case gossip.Endpoint:
			err = v.takeNames(key, r, c.Gone)
		}
		if err != nil {
			refused = append(refused, fmt.Errorf("endpoint %.12q: %w", key, err))
		}
	}
	return refused
}

// takeOwn enters this node's own endpoints. They come first: those of others have not what they have.
func (v *view) takeOwn(mine map[string]gossip.Endpoint) (refused []error) {
	if v.mine != nil && maps.EqualFunc(v.mine, mine, func(a, b gossip.Endpoint) bool { return gossip.Same(a, b) }) {
		return nil
	}
	for key := range v.mine {
		if _, stays := mine[key]; !stays {
			v.dir.Drop(key)
		}
	}
	v.mine = mine
	clash := false
	for key, e := range mine {
		clash = v.dir.Put(key, e) != nil || clash
	}
	if !clash {
		return nil
	}
	v.dir = v.empty()
	for key, e := range mine {
		if err := v.dir.Put(key, e); err != nil {
			refused = append(refused, err)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(v.heard)) {
		if err := v.dir.Put(key, v.heard[key]); err != nil {
			refused = append(refused, err)
		}
	}
	return refused
}

func (v *view) takePeer(key string, p gossip.Peer, gone bool) error {
	forget := func() {
		if _, there := v.peers[key]; there {
			delete(v.peers, key)
			delete(v.set, key)
			v.drop[key] = true
		}
	}
	if gone {
		forget()
		return nil
	}
	addr := p.Addr.Addr()
	err := v.def.Holds(addr)
	switch {
	case err != nil:
	case v.here[addr]:
		err = fmt.Errorf("address %s is that of a task here", addr)
	case v.vips[addr]:
		err = fmt.Errorf("address %s is a service's", addr)
	case p.Tunnel == v.def.Overlay.Local:
		err = fmt.Errorf("it is said to be behind this node's own address %s", p.Tunnel)
	case v.inside(p.Tunnel):
		err = fmt.Errorf("its node's address %s is one of the network itself", p.Tunnel)
	}
	if err != nil {
		forget() // it has taken the place of what its key was before
		return err
	}
	q := core.OverlayPeer{Addr: addr, MAC: p.MAC, Node: p.Tunnel}
	if v.peers[key] != q {
		v.peers[key], v.set[key] = q, q
		delete(v.drop, key)
	}
	return nil
}

// inside reports whether an address is one of the network's.
func (v *view) inside(a netip.Addr) bool {
	return slices.ContainsFunc(v.def.Overlay.Subnets, func(s core.OverlaySubnet) bool { return s.Range.Contains(a) })
}

func (v *view) takeNames(key string, e gossip.Endpoint, gone bool) error {
	if gone {
		delete(v.heard, key)
		v.dir.Drop(key)
		return nil
	}
	if v.here[e.Addr] {
		delete(v.heard, key)
		v.dir.Drop(key)
		return fmt.Errorf("address %s is that of a task here", e.Addr)
	}
	v.heard[key] = e
	return v.dir.Put(key, e)
}

// apply has the data path be as it is known.
func (v *view) apply(ctx context.Context, s *Networks, def translate.Network) error {
	id := def.Overlay.Name
	if len(v.set)+len(v.drop) > 0 {
		err := s.o.Overlays.SetPeers(ctx, id, v.set, slices.Sorted(maps.Keys(v.drop)))
		if err != nil && !errdefs.IsInvalidArgument(err) {
			return err
		}
		v.set, v.drop = map[string]core.OverlayPeer{}, map[string]bool{}
		if err != nil { // the others are set
			s.o.Logger.WarnContext(ctx, "interfaces of other nodes are left out", "network", def.Title, "error", err)
		}
	}
	if def.Ingress {
		return v.publish(ctx, s, id)
	}
	names, owners := v.dir.Names(), v.dir.Owners()
	if !v.first || !maps.EqualFunc(names, v.names, slices.Equal) || !maps.Equal(owners, v.owners) {
		if err := s.o.Overlays.SetNames(ctx, id, names, owners); err != nil {
			return err
		}
		v.names, v.owners = names, owners
	}
	leads := services(v.dir.Services())
	if !v.first || !slices.EqualFunc(leads, v.leads, func(a, b core.OverlayService) bool { return a.Addr == b.Addr && slices.Equal(a.Backends, b.Backends) }) {
		if err := s.o.Overlays.SetServices(ctx, id, leads); err != nil {
			return err
		}
		v.leads, v.vips = leads, map[netip.Addr]bool{}
		for _, l := range leads {
			v.vips[l.Addr] = true
		}
	}
	v.first = true
	return nil
}

func services(all map[netip.Addr][]directory.Backend) (list []core.OverlayService) {
	for _, addr := range slices.SortedFunc(maps.Keys(all), netip.Addr.Compare) {
		list = append(list, core.OverlayService{Addr: addr, Backends: backends(all[addr])})
	}
	return list
}

func backends(all []directory.Backend) (list []core.OverlayBackend) {
	for _, b := range all {
		list = append(list, core.OverlayBackend{Addr: b.Addr, Draining: b.Draining})
	}
	return list
}

// publish leads the ports that services publish on every node, once this node has its place there.
func (v *view) publish(ctx context.Context, s *Networks, id string) error {
	s.mu.Lock()
	in := s.ingress
	s.mu.Unlock()
	if in.Network != id {
		v.first = false
		return nil
	}
	var ports []core.PublishedPort
	all := v.dir.Ports()
	for p, b := range all {
		ports = append(ports, core.PublishedPort{Proto: p.Proto, Port: p.Number, Backends: backends(b)})
	}
	slices.SortFunc(ports, func(a, b core.PublishedPort) int {
		if a.Port != b.Port {
			return int(a.Port) - int(b.Port)
		}
		return strings.Compare(a.Proto, b.Proto)
	})
	same := func(a, b core.PublishedPort) bool {
		return a.Proto == b.Proto && a.Port == b.Port && slices.Equal(a.Backends, b.Backends)
	}
	if v.first && !v.taken && slices.EqualFunc(ports, v.ports, same) && slices.Equal(in.Addrs, v.opened.Addrs) {
		return nil
	}
	taken, err := s.o.Overlays.Publish(ctx, ports)
	if err != nil {
		return err
	}
	v.first, v.ports, v.opened, v.taken = true, ports, in, len(taken) > 0
	s.mu.Lock()
	before := s.taken
	s.taken = taken
	s.mu.Unlock()
	for _, p := range taken {
		if !slices.ContainsFunc(before, func(o core.TakenPort) bool { return o.Proto == p.Proto && o.Port == p.Port }) {
			s.say(fmt.Sprintf("port %d/%s, which the swarm publishes, does not answer at this node: %v", p.Port, p.Proto, p.Err))
		}
	}
	return nil
}
