package vxlan

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Peer is an interface on another node.
type Peer struct {
	Addr netip.Addr
	MAC  string     // as net.HardwareAddr writes it
	Node netip.Addr // the node that has it
}

// peers are other nodes' interfaces, by the caller's keys. Two keys may have the same address while
// a task moves: the last one set counts, until it is dropped.
type peers struct {
	by     map[string]*chainedPeer
	byAddr map[netip.Addr]*chainedPeer // the last one set
	byMAC  map[hardware]*chainedPeer
}

// chainedPeer is the peer of one key. Peers with the same address are chained, and those with the same
// MAC, because a member that floods the others may set one with many thousand keys.
type chainedPeer struct {
	Peer
	addr, mac links
}

// links are the neighbours of a peer in a chain, set before and after it.
type links struct{ before, after *chainedPeer }

func addrLinks(t *chainedPeer) *links { return &t.addr }
func macLinks(t *chainedPeer) *links  { return &t.mac }

// hardware is a MAC address on a subnet.
type hardware struct {
	subnet int
	mac    string
}

func newPeers() peers {
	return peers{map[string]*chainedPeer{}, map[netip.Addr]*chainedPeer{}, map[hardware]*chainedPeer{}}
}

// chain appends t to its chain.
func chain[K comparable](newest map[K]*chainedPeer, at K, t *chainedPeer, of func(*chainedPeer) *links) {
	if before := newest[at]; before != nil {
		of(before).after, of(t).before = t, before
	}
	newest[at] = t
}

// unchain takes t out.
func unchain[K comparable](newest map[K]*chainedPeer, at K, t *chainedPeer, of func(*chainedPeer) *links) {
	l := *of(t)
	if l.before != nil {
		of(l.before).after = l.after
	}
	switch {
	case l.after != nil:
		of(l.after).before = l.before
	case l.before != nil:
		newest[at] = l.before
	default:
		delete(newest, at)
	}
}

// entries are the kernel's entries: the MAC of each address, and the node of each MAC.
type entries struct {
	neighbours map[netip.Addr]string
	nodes      map[hardware]netip.Addr
	// onward has the MACs with an entry of the bridge, and learned the entries that were learned from packets. Only
	// readLocked sets them.
	onward  map[hardware]bool
	learned []netlink.Neigh
}

func newEntries() entries {
	return entries{neighbours: map[netip.Addr]string{}, nodes: map[hardware]netip.Addr{}, onward: map[hardware]bool{}}
}

// SetPeer makes an interface on another node reachable. It replaces the former peer of key, also if
// it fails. InvalidArgument if p is not valid.
func (n *Network) SetPeer(key string, p Peer) error { return n.SetPeers(map[string]Peer{key: p}) }

// SetPeers is SetPeer for many. It sets the valid ones even if others are not.
func (n *Network) SetPeers(list map[string]Peer) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	in, err := open(n.path)
	if err != nil {
		return err
	}
	defer in.close()
	var errs []error
	for key, p := range list {
		mac, err := n.checkPeer(p)
		if err != nil {
			errs = append(errs, fmt.Errorf("peer %.64q of network %s: %w", key, n.def.Name, err), n.dropLocked(in, key))
			continue
		}
		p.MAC = mac
		former, hw := n.peers.by[key], hardware{n.subnetOf(p.Addr), p.MAC}
		if former != nil && former.Peer == p {
			errs = append(errs, n.syncLocked(in, p.Addr, hw)) // it may have failed before
			continue
		}
		n.forget(key)
		t := &chainedPeer{Peer: p}
		n.peers.by[key] = t
		chain(n.peers.byAddr, p.Addr, t, addrLinks)
		chain(n.peers.byMAC, hw, t, macLinks)
		errs = append(errs, n.syncLocked(in, p.Addr, hw))
		if former != nil {
			errs = append(errs, n.syncLocked(in, former.Addr, hardware{n.subnetOf(former.Addr), former.MAC}))
		}
	}
	return errors.Join(errs...)
}

// checkPeer returns the MAC in its normal form. Preconditions: mu is held.
func (n *Network) checkPeer(p Peer) (string, error) {
	invalid := func(format string, args ...any) (string, error) {
		return "", fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
	}
	i := n.subnetOf(p.Addr)
	if i < 0 {
		return invalid("address %s is in no subnet", p.Addr)
	}
	s := n.def.Subnets[i]
	if p.Addr == s.Gateway || p.Addr == s.Range.Addr() || p.Addr == last(s.Range) {
		return invalid("address %s is the subnet's own", p.Addr)
	}
	if !p.Node.IsValid() || p.Node == n.def.Local || p.Node.IsMulticast() || p.Node.IsUnspecified() || p.Node.IsLoopback() || p.Node.Is4() != n.def.Local.Is4() {
		return invalid("node %s is none that packets can be sent to", p.Node)
	}
	mac, err := net.ParseMAC(p.MAC)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 || bytes.Equal(mac, make([]byte, 6)) {
		return invalid("mac %.40q is that of no interface", p.MAC)
	}
	if bytes.Equal(mac, n.bridgeMAC(s)) {
		return invalid("mac %s is the bridge's", mac)
	}
	return mac.String(), nil
}

// last returns the last address of a range, which IPv4 uses for all.
func last(p netip.Prefix) netip.Addr {
	if !p.Addr().Is4() {
		return netip.Addr{}
	}
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

// DropPeer removes the peer of a key. It is idempotent.
func (n *Network) DropPeer(key string) error { return n.DropPeers([]string{key}) }

// DropPeers is DropPeer for many.
func (n *Network) DropPeers(keys []string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	in, err := open(n.path)
	if err != nil {
		return err
	}
	defer in.close()
	var errs []error
	for _, key := range keys {
		errs = append(errs, n.dropLocked(in, key))
	}
	return errors.Join(errs...)
}

func (n *Network) dropLocked(in space, key string) error {
	p, there := n.peers.by[key]
	if !there {
		return nil
	}
	n.forget(key)
	return n.syncLocked(in, p.Addr, hardware{n.subnetOf(p.Addr), p.MAC})
}

// forget removes a key. Preconditions: mu is held.
func (n *Network) forget(key string) {
	t, there := n.peers.by[key]
	if !there {
		return
	}
	delete(n.peers.by, key)
	unchain(n.peers.byAddr, t.Addr, t, addrLinks)
	unchain(n.peers.byMAC, hardware{n.subnetOf(t.Addr), t.MAC}, t, macLinks)
}

// Prune removes the entries of an earlier process that were not set again. Call it when the others'
// interfaces are known.
func (n *Network) Prune() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	in, err := open(n.path)
	if err != nil {
		return err
	}
	defer in.close()
	var errs []error
	for addr := range n.kernel.neighbours {
		errs = append(errs, n.syncAddrLocked(in, addr))
	}
	for hw := range n.kernel.nodes {
		errs = append(errs, n.syncMACLocked(in, hw))
	}
	return errors.Join(errs...)
}

// AllPeers returns the peers by their keys.
func (n *Network) AllPeers() map[string]Peer {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make(map[string]Peer, len(n.peers.by))
	for key, t := range n.peers.by {
		all[key] = t.Peer
	}
	return all
}

// Peers returns how many interfaces of other nodes are reachable.
func (n *Network) Peers() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.kernel.neighbours)
}

func (n *Network) syncLocked(in space, addr netip.Addr, hw hardware) error {
	return errors.Join(n.syncMACLocked(in, hw), n.syncAddrLocked(in, addr))
}

// syncAddrLocked makes the kernel's entry of an address match the last peer set, except for an
// address on this node.
func (n *Network) syncAddrLocked(in space, addr netip.Addr) error {
	want := ""
	if t := n.peers.byAddr[addr]; t != nil && !n.here(func(a Attachment) bool { return a.has(addr) }) {
		want = t.MAC
	}
	have := n.kernel.neighbours[addr]
	if want == have {
		return nil
	}
	e := &netlink.Neigh{LinkIndex: n.links[n.subnetOf(addr)].vxlan, Family: unix.AF_INET, IP: addr.AsSlice(), State: netlink.NUD_PERMANENT}
	if addr.Is6() {
		e.Family = unix.AF_INET6
	}
	var err error
	if want == "" {
		err = ignoreMissing(in.NeighDel(e))
	} else if e.HardwareAddr, err = net.ParseMAC(want); err == nil {
		err = in.NeighSet(e)
	}
	if err != nil {
		return fmt.Errorf("network %s: entry of %s: %w", n.def.Name, addr, err)
	}
	if n.kernel.neighbours[addr] = want; want == "" {
		delete(n.kernel.neighbours, addr)
	}
	return nil
}

// syncMACLocked does the same for the node of a MAC.
func (n *Network) syncMACLocked(in space, hw hardware) error {
	var want netip.Addr
	if t := n.peers.byMAC[hw]; t != nil && !n.here(func(a Attachment) bool { return a.MAC == hw.mac }) {
		want = t.Node
	}
	have := n.kernel.nodes[hw]
	if want == have {
		return nil
	}
	mac, err := net.ParseMAC(hw.mac)
	if err != nil {
		return err
	}
	e := &netlink.Neigh{
		LinkIndex: n.links[hw.subnet].vxlan, Family: unix.AF_BRIDGE, HardwareAddr: mac, IP: want.AsSlice(), Flags: netlink.NTF_SELF, State: netlink.NUD_PERMANENT,
	}
	var crypt error
	if want.IsValid() {
		crypt = n.acquire(want)
		err = errors.Join(in.NeighSet(e), in.NeighSet(n.onwardLocked(hw, mac)))
	} else {
		e.IP = have.AsSlice()
		err = errors.Join(ignoreMissing(in.NeighDel(e)), ignoreMissing(in.NeighDel(n.onwardLocked(hw, mac))))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("network %s: node of %s: %w", n.def.Name, hw.mac, err), crypt, n.release(want))
	}
	if n.kernel.nodes[hw] = want; !want.IsValid() {
		delete(n.kernel.nodes, hw)
	}
	return errors.Join(crypt, n.release(have))
}

// acquire allows a node to send to the network, and encrypts packets to it if the network is encrypted. It comes before the
// entry.
func (n *Network) acquire(node netip.Addr) error {
	err := n.def.Guard.acquire(n.path, node)
	if n.use == nil {
		return err
	}
	return errors.Join(err, n.def.Keys.acquire(n.use, pair{n.def.Local, node, n.def.Port}))
}

// release reverts the acquire of an entry.
func (n *Network) release(node netip.Addr) error {
	if !node.IsValid() {
		return nil
	}
	err := n.def.Guard.release(n.path, node)
	if n.use == nil {
		return err
	}
	return errors.Join(err, n.def.Keys.release(n.use, pair{n.def.Local, node, n.def.Port}))
}

// ignoreMissing returns the error of a deletion, nil when there was nothing to delete.
func ignoreMissing(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// adoptLocked reads the entries of an earlier process.
func (n *Network) adoptLocked(in space) error {
	have, err := n.readLocked(in)
	if err != nil {
		return err
	}
	n.kernel = newEntries()
	for hw, node := range have.nodes {
		n.kernel.nodes[hw] = node
		if err := n.acquire(node); err != nil {
			return err
		}
	}
	n.kernel.neighbours = have.neighbours
	if err := n.adoptAttachedLocked(in); err != nil {
		return err
	}
	return n.leadLocked(in, have)
}

// readLocked returns the kernel's entries.
func (n *Network) readLocked(in space) (entries, error) {
	have := newEntries()
	for i, l := range n.links {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
			list, err := in.NeighList(l.vxlan, family)
			if err != nil {
				return have, fmt.Errorf("list entries of %s: %w", vxlanName(i), err)
			}
			for _, e := range list {
				switch addr := addrOf(e.IP); {
				case family == unix.AF_BRIDGE && e.MasterIndex != 0 && e.State&netlink.NUD_NOARP != 0 && len(e.HardwareAddr) == 6:
					have.onward[hardware{i, e.HardwareAddr.String()}] = true
				case family == unix.AF_BRIDGE && e.State&netlink.NUD_REACHABLE != 0:
					have.learned = append(have.learned, e)
				case e.State&netlink.NUD_PERMANENT == 0 || len(e.HardwareAddr) != 6 || !addr.IsValid():
				case family == unix.AF_BRIDGE:
					have.nodes[hardware{i, e.HardwareAddr.String()}] = addr
				case n.subnetOf(addr) == i:
					have.neighbours[addr] = e.HardwareAddr.String()
				}
			}
		}
	}
	return have, nil
}
