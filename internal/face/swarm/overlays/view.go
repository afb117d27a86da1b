package overlays

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/directory"
	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/translate"
)

// view is the known state of a network, and its applied part.
type view struct {
	dir        *directory.Directory
	def        translate.Network
	heard      map[string]gossip.Endpoint // of others, by their keys
	own        map[string]gossip.Endpoint
	local      map[netip.Addr]bool // addresses of this node
	peers      map[string]core.OverlayPeer
	left       map[string]gossip.Peer      // left out while another interface has the address
	freed      map[netip.Addr]bool         // addresses in use until this update
	full       bool                        // records were left out because the directory has too many names
	set        map[string]core.OverlayPeer // to be applied
	drop       map[string]bool
	names      map[string][]netip.Addr // as they are applied
	owners     map[netip.Addr]string
	services   []core.OverlayService
	ports      []core.PublishedPort
	portsTaken bool // a published port is in use on this node
	pruned     bool
	early      bool // records are missing: names and services stay those of an earlier agent
	opened     core.Ingress
	first      bool    // everything was applied once
	refused    []error // records that the data path refused
}

func newView(def translate.Network) view {
	v := view{def: def, heard: map[string]gossip.Endpoint{}, peers: map[string]core.OverlayPeer{}, left: map[string]gossip.Peer{}, set: map[string]core.OverlayPeer{}, drop: map[string]bool{}}
	v.dir = v.empty()
	return v
}

func (v *view) empty() *directory.Directory {
	n := directory.Network{Title: v.def.Title}
	for _, s := range v.def.Overlay.Subnets {
		n.Ranges, n.Gateways = append(n.Ranges, s.Range), append(n.Gateways, s.Gateway)
	}
	return directory.New(n)
}

// update applies changes, and the state of this node's own interfaces by their keys. It returns an error for each
// refused record of others.
func (v *view) update(changes []gossip.Change, own map[string]iface) (refused []error) {
	before := v.local
	v.local, v.freed = map[netip.Addr]bool{}, map[netip.Addr]bool{}
	mine := map[string]gossip.Endpoint{}
	for key, o := range own {
		if o.gone {
			continue
		}
		v.local[o.peer.Addr.Addr()] = true
		if o.named {
			mine[key] = o.names
		}
	}
	for a := range before {
		if !v.local[a] {
			v.freed[a] = true
		}
	}
	refused = v.updateOwn(mine)
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
			err = v.updatePeer(key, r, c.Gone)
		case gossip.Endpoint:
			err = v.updateNames(key, r, c.Gone)
		}
		if err != nil {
			refused = append(refused, fmt.Errorf("endpoint %.12q: %w", key, err))
		}
	}
	v.retryRefused()
	return refused
}

// retryRefused applies records that were left out because their address was in use, or because there were too many,
// and that fit now. The managers give an address to another task as soon as they have forgotten the one that had it.
func (v *view) retryRefused() {
	if len(v.freed) == 0 {
		return
	}
	for key, p := range v.left {
		if v.freed[p.Addr.Addr()] {
			_ = v.updatePeer(key, p, false) // its refusal was logged
		}
	}
	full := v.full
	v.full = false
	for key, e := range v.heard {
		if (full || v.freed[e.Addr] || v.freed[e.VIP]) && !v.dir.Has(key) {
			_ = v.add(key, e)
		}
	}
}

// remove removes an endpoint from the directory, and notes its addresses as free.
func (v *view) remove(key string, e gossip.Endpoint) {
	v.dir.Drop(key)
	v.freed[e.Addr], v.freed[e.VIP] = true, true
}

// add adds an endpoint of another node to the directory, unless a task here has its address.
func (v *view) add(key string, e gossip.Endpoint) error {
	if v.local[e.Addr] {
		v.dir.Drop(key)
		return fmt.Errorf("address %s is that of a task here", e.Addr)
	}
	err := v.dir.Put(key, e)
	v.full = v.full || errdefs.IsResourceExhausted(err)
	return err
}

// updateOwn applies this node's own endpoints. They come first: others' endpoints with their addresses
// are refused.
func (v *view) updateOwn(mine map[string]gossip.Endpoint) (refused []error) {
	if v.own != nil && maps.EqualFunc(v.own, mine, func(a, b gossip.Endpoint) bool { return gossip.Same(a, b) }) {
		return nil
	}
	for key, e := range v.own {
		if _, stays := mine[key]; !stays {
			v.remove(key, e)
		}
	}
	v.own = mine
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
		if err := v.add(key, v.heard[key]); err != nil {
			refused = append(refused, err)
		}
	}
	return refused
}

func (v *view) updatePeer(key string, p gossip.Peer, gone bool) error {
	forget := func() {
		if _, there := v.peers[key]; there {
			delete(v.peers, key)
			delete(v.set, key)
			v.drop[key] = true
		}
	}
	delete(v.left, key)
	if gone {
		forget()
		return nil
	}
	addr := p.Addr.Addr()
	err := v.def.Holds(addr)
	switch {
	case err != nil:
	case p.Tunnel == v.def.Overlay.Local:
		err = fmt.Errorf("its tunnel is this node's own address %s", p.Tunnel)
	case v.local[addr]:
		err, v.left[key] = fmt.Errorf("address %s is that of a task here", addr), p
	case v.dir.Serves(addr):
		err, v.left[key] = fmt.Errorf("address %s is a service's", addr), p
	}
	if err != nil {
		forget() // it has replaced the key's former peer
		return err
	}
	q := core.OverlayPeer{Addr: addr, MAC: p.MAC, Node: p.Tunnel}
	if v.peers[key] != q {
		v.peers[key], v.set[key] = q, q
		delete(v.drop, key)
	}
	return nil
}

func (v *view) updateNames(key string, e gossip.Endpoint, gone bool) error {
	if old, there := v.heard[key]; there {
		delete(v.heard, key)
		v.remove(key, old)
	}
	if gone {
		return nil
	}
	v.heard[key] = e
	return v.add(key, e)
}

// apply updates the data path.
func (v *view) apply(ctx context.Context, s *Networks, def translate.Network) error {
	id := def.Overlay.Name
	if len(v.set)+len(v.drop) > 0 {
		err := s.o.Overlays.SetPeers(ctx, id, v.set, slices.Sorted(maps.Keys(v.drop)))
		if err != nil && !errdefs.IsInvalidArgument(err) {
			return err
		}
		v.set, v.drop = map[string]core.OverlayPeer{}, map[string]bool{}
		if err != nil { // the others are set
			v.refused = append(v.refused, err)
		}
	}
	if def.Ingress {
		return v.publish(ctx, s, id)
	}
	if v.early {
		return nil
	}
	names, owners := v.dir.Names(), v.dir.Owners()
	if !v.first || !maps.EqualFunc(names, v.names, slices.Equal) || !maps.Equal(owners, v.owners) {
		if err := s.o.Overlays.SetNames(ctx, id, names, owners); err != nil {
			return err
		}
		v.names, v.owners = names, owners
	}
	list := services(v.dir.Services())
	if !v.first || !slices.EqualFunc(list, v.services, func(a, b core.OverlayService) bool { return a.Addr == b.Addr && slices.Equal(a.Backends, b.Backends) }) {
		err := s.o.Overlays.SetServices(ctx, id, list)
		if err != nil && !errdefs.IsInvalidArgument(err) {
			return err
		}
		if v.services = list; err != nil { // the others are set
			v.refused = append(v.refused, err)
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

// publish publishes the ports of the whole swarm, once this node is on their network.
func (v *view) publish(ctx context.Context, s *Networks, id string) error {
	s.mu.Lock()
	in := s.ingress
	s.mu.Unlock()
	// Before all is known, an earlier agent's ports stay as they are: a task that is not announced yet
	// would lose its connections.
	if in.Network != id || !v.pruned {
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
	if v.first && !v.portsTaken && slices.EqualFunc(ports, v.ports, same) && slices.Equal(in.Addrs, v.opened.Addrs) {
		return nil
	}
	taken, err := s.o.Overlays.Publish(ctx, ports)
	if err != nil && !errdefs.IsInvalidArgument(err) {
		return err
	}
	if err != nil { // the others are published
		v.refused = append(v.refused, err)
	}
	v.first, v.ports, v.opened, v.portsTaken = true, ports, in, len(taken) > 0
	s.mu.Lock()
	before := s.taken
	s.taken = taken
	s.mu.Unlock()
	for _, p := range taken {
		if !slices.ContainsFunc(before, func(o core.TakenPort) bool { return o.Proto == p.Proto && o.Port == p.Port }) {
			s.note(fmt.Sprintf("port %d/%s, which the swarm publishes, does not answer at this node: %v", p.Port, p.Proto, p.Err))
		}
	}
	return nil
}
