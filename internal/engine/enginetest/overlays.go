package enginetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Overlays are a fake of the port that a face of Swarm has to overlay networks: they record the calls and send no packet.
type Overlays struct {
	fault
	network *Network

	lock    sync.Mutex // guards unable, open, keys, gossip, members, ingress, ports, taken, changed, calls
	unable  [2]error   // why there is none; and why there is no encrypted one
	open    map[string]*Overlay
	keys    []core.OverlayKey
	gossip  uint16
	members []netip.Addr
	ingress core.Ingress
	ports   []core.PublishedPort
	taken   map[core.Port]error
	changed chan struct{} // closed at the next call that changes something
	calls   map[string]int
}

// Overlay is an overlay with the arguments of all calls.
type Overlay struct {
	core.Overlay
	Peers    map[string]core.OverlayPeer
	Names    map[string][]netip.Addr
	Owners   map[netip.Addr]string
	Services []core.OverlayService

	old map[string]bool // peers of an earlier agent
}

func newOverlays(n *Network) *Overlays {
	o := &Overlays{network: n, open: map[string]*Overlay{}, taken: map[core.Port]error{}, changed: make(chan struct{}), calls: map[string]int{}}
	n.overlays = o
	return o
}

// Unable says why there can be no overlay, and why no encrypted one; nil is no reason.
func (o *Overlays) Unable(plain, encrypted error) {
	o.lock.Lock()
	defer o.lock.Unlock()
	o.unable = [2]error{plain, encrypted}
}

// Take makes a port of the host somebody else's; nil gives it back.
func (o *Overlays) Take(proto string, port uint16, who error) {
	o.lock.Lock()
	defer o.lock.Unlock()
	delete(o.taken, core.Port{Proto: proto, Host: port})
	if who != nil {
		o.taken[core.Port{Proto: proto, Host: port}] = who
	}
}

// Get returns an overlay that is open; ok is false when it is not.
func (o *Overlays) Get(name string) (n Overlay, ok bool) {
	o.lock.Lock()
	defer o.lock.Unlock()
	have := o.open[name]
	if have == nil {
		return n, false
	}
	n = *have
	n.Peers = maps.Clone(have.Peers)
	return n, true
}

// Keys returns those of encrypted overlays.
func (o *Overlays) Keys() []core.OverlayKey {
	o.lock.Lock()
	defer o.lock.Unlock()
	return o.keys
}

// Published returns the node's own interface and the ports that it leads.
func (o *Overlays) Published() (core.Ingress, []core.PublishedPort) {
	o.lock.Lock()
	defer o.lock.Unlock()
	return o.ingress, o.ports
}

// Calls returns how often a method was called.
func (o *Overlays) Calls(method string) int {
	o.lock.Lock()
	defer o.lock.Unlock()
	return o.calls[method]
}

// Changed is closed at the next call that changes something.
func (o *Overlays) Changed() <-chan struct{} {
	o.lock.Lock()
	defer o.lock.Unlock()
	return o.changed
}

// restarted starts another agent's turn.
func (o *Overlays) restarted() {
	o.lock.Lock()
	defer o.lock.Unlock()
	o.keys = nil
	for _, n := range o.open {
		n.old = map[string]bool{}
		for key := range n.Peers {
			n.old[key] = true
		}
	}
}

// has reports whether an overlay, as attachments call it, is open, and whether addresses are its own.
func (o *Overlays) has(network string, addrs []netip.Prefix) error {
	o.lock.Lock()
	defer o.lock.Unlock()
	for name, n := range o.open {
		if core.OverlayNetwork(name) != network {
			continue
		}
		if len(addrs) == 0 {
			return fmt.Errorf("overlay %s gives no addresses: %w", name, errdefs.ErrInvalidArgument)
		}
		for _, a := range addrs {
			if err := n.check(a.Addr()); err != nil {
				return err
			}
		}
		return nil
	}
	return errdefs.ErrNotFound
}

// check says why no interface can have an address.
func (n *Overlay) check(a netip.Addr) error {
	for _, s := range n.Subnets {
		if s.Range.Contains(a) && a != s.Gateway && a != s.Range.Addr() && s.Range.Contains(a.Next()) {
			return nil
		}
	}
	return fmt.Errorf("address %s is none of overlay %s: %w", a, n.Name, errdefs.ErrInvalidArgument)
}

// changedLocked counts a call, and wakes the waiting goroutines.
func (o *Overlays) changedLocked(method string) {
	o.calls[method]++
	close(o.changed)
	o.changed = make(chan struct{})
}

// find is an overlay that is open. Preconditions: lock is held.
func (o *Overlays) find(name string) (*Overlay, error) {
	if n := o.open[name]; n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("overlay %s: %w", name, errdefs.ErrNotFound)
}

// Able implements networktest.Overlays.
func (o *Overlays) Able(ctx context.Context, encrypted bool) error {
	o.lock.Lock()
	defer o.lock.Unlock()
	if o.unable[0] != nil {
		return fmt.Errorf("%w: %w", o.unable[0], errdefs.ErrFailedPrecondition)
	}
	if encrypted && o.unable[1] != nil {
		return fmt.Errorf("%w: %w", o.unable[1], errdefs.ErrFailedPrecondition)
	}
	return o.check(ctx, "Able")
}

// Open implements networktest.Overlays.
func (o *Overlays) Open(ctx context.Context, def core.Overlay) error {
	if err := o.Able(ctx, def.Encrypted); err != nil {
		return err
	}
	if err := o.check(ctx, "Open"); err != nil {
		return err
	}
	o.lock.Lock()
	defer o.lock.Unlock()
	defer o.changedLocked("Open")
	if !core.IsName(def.Name, "_.-", 64) || len(def.Subnets) == 0 || !def.Local.IsValid() || def.MTU < 68 || def.MTU > 65485 {
		return fmt.Errorf("overlay %q: %w", def.Name, errdefs.ErrInvalidArgument)
	}
	for i, s := range def.Subnets {
		if s.VNI == 0 || s.VNI >= 1<<24 || !s.Range.Contains(s.Gateway) || s.Range != s.Range.Masked() {
			return fmt.Errorf("overlay %s: subnet %s: %w", def.Name, s.Range, errdefs.ErrInvalidArgument)
		}
		for _, p := range def.Subnets[:i] {
			if p.VNI == s.VNI || p.Range.Overlaps(s.Range) {
				return fmt.Errorf("overlay %s: subnets %s and %s: %w", def.Name, p.Range, s.Range, errdefs.ErrInvalidArgument)
			}
		}
		for _, other := range o.open {
			if other.Name != def.Name && slices.ContainsFunc(other.Subnets, func(p core.OverlaySubnet) bool { return p.VNI == s.VNI }) {
				return fmt.Errorf("overlay %s: VXLAN id %d is that of %s: %w", def.Name, s.VNI, other.Name, errdefs.ErrAlreadyExists)
			}
		}
	}
	if have := o.open[def.Name]; have != nil {
		have.Overlay = def
		return nil
	}
	o.open[def.Name] = &Overlay{Overlay: def, Peers: map[string]core.OverlayPeer{}}
	return nil
}

// Close implements networktest.Overlays.
func (o *Overlays) Close(ctx context.Context, name string) error {
	o.network.lock.Lock()
	defer o.network.lock.Unlock()
	if err := o.check(ctx, "Close"); err != nil {
		return err
	}
	o.lock.Lock()
	defer o.lock.Unlock()
	defer o.changedLocked("Close")
	used := o.ingress.Network == name
	for _, st := range o.network.held {
		used = used || st.On(core.OverlayNetwork(name)) >= 0
	}
	if used {
		return fmt.Errorf("overlay %s is used: %w", name, errdefs.ErrFailedPrecondition)
	}
	delete(o.open, name)
	return nil
}

// List implements networktest.Overlays.
func (o *Overlays) List() (list []core.Overlay) {
	o.lock.Lock()
	defer o.lock.Unlock()
	for _, name := range slices.Sorted(maps.Keys(o.open)) {
		list = append(list, o.open[name].Overlay)
	}
	return list
}

// SetPeers implements networktest.Overlays.
func (o *Overlays) SetPeers(ctx context.Context, name string, set map[string]core.OverlayPeer, drop []string) error {
	if err := o.check(ctx, "SetPeers"); err != nil {
		return err
	}
	o.lock.Lock()
	defer o.lock.Unlock()
	defer o.changedLocked("SetPeers")
	n, err := o.find(name)
	if err != nil {
		return err
	}
	for _, key := range drop {
		delete(n.Peers, key)
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(set)) {
		p := set[key]
		mac, err := net.ParseMAC(p.MAC)
		if err == nil {
			err = n.check(p.Addr)
		}
		if err != nil || mac[0]&1 != 0 || !p.Node.IsValid() || p.Node == n.Local {
			errs = append(errs, fmt.Errorf("peer %.12s at %s (%s): %w", key, p.Addr, p.MAC, errdefs.ErrInvalidArgument))
			continue
		}
		n.Peers[key] = p
		delete(n.old, key)
	}
	return errors.Join(errs...)
}

// Prune implements networktest.Overlays.
func (o *Overlays) Prune(ctx context.Context, name string) error {
	if err := o.check(ctx, "Prune"); err != nil {
		return err
	}
	o.lock.Lock()
	defer o.lock.Unlock()
	defer o.changedLocked("Prune")
	n, err := o.find(name)
	if err != nil {
		return err
	}
	for key := range n.old {
		delete(n.Peers, key)
	}
	n.old = nil
	return nil
}

// SetNames implements networktest.Overlays.
func (o *Overlays) SetNames(ctx context.Context, name string, byName map[string][]netip.Addr, owners map[netip.Addr]string) error {
	if err := o.check(ctx, "SetNames"); err != nil {
		return err
	}
	o.lock.Lock()
	defer o.lock.Unlock()
	defer o.changedLocked("SetNames")
	n, err := o.find(name)
	if err != nil {
		return err
	}
	for name := range byName {
		if name != strings.ToLower(name) {
			return fmt.Errorf("name %q is not in lower case: %w", name, errdefs.ErrInvalidArgument)
		}
	}
	n.Names, n.Owners = byName, owners
	return nil
}

// SetServices implements networktest.Overlays.
func (o *Overlays) SetServices(ctx context.Context, name string, services []core.OverlayService) error {
	if err := o.check(ctx, "SetServices"); err != nil {
		return err
	}
	o.lock.Lock()
	defer o.lock.Unlock()
	defer o.changedLocked("SetServices")
	n, err := o.find(name)
	if err != nil {
		return err
	}
	n.Services = nil
	var errs []error
	for _, s := range services {
		if err := n.check(s.Addr); err != nil {
			errs = append(errs, fmt.Errorf("service %s: %w", s.Addr, err))
			continue
		}
		n.Services = append(n.Services, s)
	}
	return errors.Join(errs...)
}

// SetKeys implements networktest.Overlays.
func (o *Overlays) SetKeys(ctx context.Context, keys []core.OverlayKey) error {
	if err := o.check(ctx, "SetKeys"); err != nil {
		return err
	}
	o.lock.Lock()
	defer o.lock.Unlock()
	defer o.changedLocked("SetKeys")
	o.keys = slices.Clone(keys)
	return nil
}

// OpenIngress implements networktest.Overlays.
func (o *Overlays) OpenIngress(ctx context.Context, in core.Ingress) error {
	if err := o.check(ctx, "OpenIngress"); err != nil {
		return err
	}
	o.lock.Lock()
	defer o.lock.Unlock()
	defer o.changedLocked("OpenIngress")
	n, err := o.find(in.Network)
	if err != nil {
		return err
	}
	if len(in.Addrs) == 0 {
		return fmt.Errorf("an ingress without addresses: %w", errdefs.ErrInvalidArgument)
	}
	for _, a := range in.Addrs {
		if err := n.check(a.Addr()); err != nil {
			return err
		}
	}
	if o.ingress.Network != in.Network || !slices.Equal(o.ingress.Addrs, in.Addrs) {
		o.ports = nil
	}
	o.ingress = in
	return nil
}

// SetGossip implements networktest.Overlays.
func (o *Overlays) SetGossip(ctx context.Context, port uint16, members []netip.Addr) error {
	if err := o.check(ctx, "SetGossip"); err != nil {
		return err
	}
	o.lock.Lock()
	defer o.lock.Unlock()
	defer o.changedLocked("SetGossip")
	o.gossip, o.members = port, slices.Clone(members)
	return nil
}

// Gossip returns the arguments of the last SetGossip.
func (o *Overlays) Gossip() (port uint16, members []netip.Addr) {
	o.lock.Lock()
	defer o.lock.Unlock()
	return o.gossip, slices.Clone(o.members)
}

// CloseIngress implements networktest.Overlays.
func (o *Overlays) CloseIngress(ctx context.Context) error {
	if err := o.check(ctx, "CloseIngress"); err != nil {
		return err
	}
	o.lock.Lock()
	defer o.lock.Unlock()
	defer o.changedLocked("CloseIngress")
	o.ingress, o.ports = core.Ingress{}, nil
	return nil
}

// Publish implements networktest.Overlays.
func (o *Overlays) Publish(ctx context.Context, ports []core.PublishedPort) (taken []core.TakenPort, err error) {
	if err := o.check(ctx, "Publish"); err != nil {
		return nil, err
	}
	o.lock.Lock()
	defer o.lock.Unlock()
	defer o.changedLocked("Publish")
	if o.ingress.Network == "" {
		return nil, fmt.Errorf("publish: there is no ingress: %w", errdefs.ErrFailedPrecondition)
	}
	n, err := o.find(o.ingress.Network)
	if err != nil {
		return nil, err
	}
	seen := map[core.Port]bool{}
	for _, p := range ports {
		at := core.Port{Proto: p.Proto, Host: p.Port}
		if p.Port == 0 || seen[at] || !slices.Contains([]string{"tcp", "udp", "sctp"}, p.Proto) {
			return nil, fmt.Errorf("publish: port %s %d, or it is there twice: %w", p.Proto, p.Port, errdefs.ErrInvalidArgument)
		}
		seen[at] = true
	}
	o.ports = nil
	var odd []error
	for _, p := range ports {
		p.Backends = slices.DeleteFunc(slices.Clone(p.Backends), func(b core.OverlayBackend) bool {
			err := n.check(b.Addr)
			if err == nil && slices.ContainsFunc(o.ingress.Addrs, func(own netip.Prefix) bool { return own.Addr() == b.Addr }) {
				err = fmt.Errorf("address %s is this node's: %w", b.Addr, errdefs.ErrInvalidArgument)
			}
			odd = append(odd, err)
			return err != nil
		})
		if who := o.taken[core.Port{Proto: p.Proto, Host: p.Port}]; who != nil {
			taken = append(taken, core.TakenPort{Proto: p.Proto, Port: p.Port, Err: who})
			continue
		}
		o.ports = append(o.ports, p)
	}
	return taken, errors.Join(odd...)
}
