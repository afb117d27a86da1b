package vxlan

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/longshore/longshore/internal/network/nft"
)

// Guard restricts the senders of traffic between nodes (nft.Guard). A node may send to a network of this node while
// an entry of that network names it. The Guard also exempts the networks' packets from connection tracking, which
// would cost up to a fifth of the connections of their sandboxes. All networks of a machine share one Guard. It is
// safe for concurrent use.
type Guard struct {
	table *nft.Guard
	log   *slog.Logger

	mu        sync.Mutex // guards nets, members, port, untracked, unsure
	nets      map[string]*guarded
	members   []netip.Addr
	port      uint16
	untracked []netip.AddrPort // exempt from connection tracking
	unsure    bool             // the kernel may have another list
}

// guarded is a network. Its nodes enter the table when it is ready.
type guarded struct {
	at    netip.AddrPort
	vnis  []uint32
	nodes map[netip.Addr]int // with the number of their entries
	ready bool
	items []nft.GuardItem // in the table
}

// NewGuard returns an empty Guard of this thread's namespace.
func NewGuard(log *slog.Logger) *Guard {
	return &Guard{table: nft.NewGuard(nil, log), log: log, nets: map[string]*guarded{}}
}

// Close closes the sockets. The rules stay.
func (g *Guard) Close() error { return g.table.Close() }

// Adopt calls open, which opens the networks of an earlier process. The kernel's rules stay until open returns. Then
// they are rebuilt for all networks at once.
func (g *Guard) Adopt(open func() error) error {
	g.table.Pause()
	err := open()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unsure = true
	g.untrackLocked()
	return errors.Join(err, g.table.Resume())
}

// enter begins to guard a network. Holds before ready do not change the table.
func (g *Guard) enter(path string, def Definition) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	n := &guarded{at: netip.AddrPortFrom(def.Local, def.Port), nodes: map[netip.Addr]int{}}
	for _, s := range def.Subnets {
		n.vnis = append(n.vnis, s.VNI)
	}
	if before := g.nets[path]; before != nil {
		n.items = before.items // ready replaces them
	}
	g.nets[path] = n
}

// ready adds a network that was entered to the table.
func (g *Guard) ready(path string) error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nets[path]
	n.ready = true
	before := n.items
	n.items = nil
	for _, vni := range n.vnis {
		n.items = append(n.items, nft.Number(n.at.Port(), vni))
	}
	for node := range n.nodes {
		n.items = append(n.items, n.of(node)...)
	}
	g.untrackLocked()
	return g.table.Change(n.items, before)
}

// of returns the items of a node. A node may send with each VXLAN id of the network, because it routes between the
// network's subnets.
func (n *guarded) of(node netip.Addr) []nft.GuardItem {
	items := []nft.GuardItem{nft.Receiver(node, n.at.Port())}
	for _, vni := range n.vnis {
		items = append(items, nft.Sender(node, n.at.Port(), vni))
	}
	return items
}

// acquire allows a node to send to a network, for one entry.
func (g *Guard) acquire(path string, node netip.Addr) error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nets[path]
	if n == nil {
		return nil // after Leave
	}
	if n.nodes[node]++; n.nodes[node] > 1 || !n.ready {
		return nil
	}
	items := n.of(node)
	n.items = append(n.items, items...)
	return g.table.Change(items, nil)
}

// release undoes one hold.
func (g *Guard) release(path string, node netip.Addr) error {
	if g == nil || !node.IsValid() {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nets[path]
	if n == nil || n.nodes[node] == 0 {
		return nil
	}
	if n.nodes[node]--; n.nodes[node] > 0 {
		return nil
	}
	delete(n.nodes, node)
	if !n.ready {
		return nil
	}
	items := n.of(node)
	n.items = slices.DeleteFunc(n.items, func(i nft.GuardItem) bool { return slices.Contains(items, i) })
	return g.table.Change(nil, items)
}

// Leave forgets the network of this name below dir. It is idempotent.
func (g *Guard) Leave(dir, name string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	path := pathOf(dir, name)
	n := g.nets[path]
	if n == nil {
		return nil
	}
	delete(g.nets, path)
	g.untrackLocked()
	return g.table.Change(nil, n.items)
}

// Members sets this node's port for the gossip, and the known members. Port 0 ends the restriction. Packets of other
// nodes must arrive by the interface that has their destination address.
func (g *Guard) Members(port uint16, nodes []netip.Addr) error {
	if port == 0 {
		nodes = nil
	}
	nodes = slices.Compact(slices.SortedFunc(slices.Values(nodes), netip.Addr.Compare))
	g.mu.Lock()
	defer g.mu.Unlock()
	if port == g.port && slices.Equal(nodes, g.members) {
		return nil
	}
	items := func(port uint16, nodes []netip.Addr) (list []nft.GuardItem) {
		if port != 0 {
			list = append(list, nft.GossipPort(port))
		}
		for _, a := range nodes {
			list = append(list, nft.Member(a))
		}
		return list
	}
	before := items(g.port, g.members)
	g.port, g.members = port, nodes
	return g.table.Change(items(port, nodes), before)
}

// untrackLocked updates the kernel's exemptions from connection tracking. After an error the networks work, but slower.
// Preconditions: mu is held.
func (g *Guard) untrackLocked() {
	at := map[netip.AddrPort]bool{}
	for _, n := range g.nets {
		at[n.at] = true
	}
	list := slices.SortedFunc(maps.Keys(at), netip.AddrPort.Compare)
	if !g.unsure && slices.Equal(list, g.untracked) {
		return
	}
	if err := nft.Untrack(list); err != nil {
		g.log.Warn("the kernel remembers packets of overlays between nodes as connections, which makes them slower", "error", err.Error())
	}
	g.untracked, g.unsure = list, false
}

// Mend rebuilds the rules if another program has changed them, and returns the difference, or "".
func (g *Guard) Mend() (changed string, err error) { return g.table.Mend() }

// Check compares the kernel's rules with the networks. FailedPrecondition.
func (g *Guard) Check() error { return g.table.Check() }
