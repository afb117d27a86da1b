package vxlan

import (
	"fmt"
	"maps"
	"net"
	"net/netip"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"

	"github.com/longshore/longshore/internal/network/kernel"
)

// missing returns a FailedPrecondition error for a part that another program has removed.
func (n *Network) missing(format string, args ...any) error {
	return fmt.Errorf("network %s: "+format+": %w", append(append([]any{n.def.Name}, args...), errdefs.ErrFailedPrecondition)...)
}

// Check returns FailedPrecondition with the first difference between the kernel's state and that of
// Open, Attach and SetPeers, which another program has made.
func (n *Network) Check() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !kernel.Pinned(n.path) {
		return n.missing("its namespace is gone")
	}
	in, err := open(n.path)
	if err != nil {
		return err
	}
	defer in.close()
	links, err := in.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	ports := map[string]int{} // those that are up, and their bridge
	for _, l := range links {
		if at := l.Attrs(); at.Flags&net.FlagUp != 0 {
			ports[at.Name] = at.MasterIndex
		}
		if learning(l) {
			return n.missing("%s learns from packets", l.Attrs().Name)
		}
	}
	for i, l := range n.links {
		if _, up := ports[bridgeName(i)]; !up || ports[vxlanName(i)] != l.bridge {
			return n.missing("%s or %s is down, or one is not on the other", bridgeName(i), vxlanName(i))
		}
	}
	for _, a := range n.attached {
		if at, up := ports[a.port()]; !up || at != n.bridgeOf(a) {
			return n.missing("link %s of %s is down or not on its bridge", a.port(), a.Key)
		}
	}
	have, err := n.readLocked(in)
	if err != nil {
		return err
	}
	if !maps.Equal(have.neighbours, n.kernel.neighbours) || !maps.Equal(have.nodes, n.kernel.nodes) {
		return n.missing("the kernel has %d addresses and %d interfaces of other nodes, and not the %d and %d that it was given",
			len(have.neighbours), len(have.nodes), len(n.kernel.neighbours), len(n.kernel.nodes))
	}
	for hw := range n.kernel.nodes {
		if !have.onward[hw] {
			return n.missing("%s has no entry for %s, which is on another node", bridgeName(hw.subnet), hw.mac)
		}
	}
	return nil
}

// CheckAttached returns FailedPrecondition with the first missing part of an attached interface in
// the namespace at path.
func (n *Network) CheckAttached(key, path string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	a, there := n.attached[key]
	if !there {
		return n.missing("it has no interface")
	}
	in, err := open(n.path)
	if err != nil {
		return err
	}
	defer in.close()
	outer, err := in.LinkByName(a.port())
	switch {
	case notFound(err):
		return n.missing("link %s does not exist", a.port())
	case err != nil:
		return fmt.Errorf("find %s: %w", a.port(), err)
	case outer.Attrs().Flags&net.FlagUp == 0 || outer.Attrs().MasterIndex != n.bridgeOf(a):
		return n.missing("link %s is down or not on its bridge", a.port())
	}
	box, err := open(path)
	if err != nil {
		return err
	}
	defer box.close()
	addrs, err := box.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	have := map[netip.Addr]bool{}
	for _, h := range addrs {
		have[addrOf(h.IP)] = true
	}
	for _, p := range a.Addrs {
		if !have[p.Addr()] {
			return n.missing("address %s is missing", p.Addr())
		}
	}
	return nil
}

// Counters returns the counters of the network's ends of this node's interfaces, by their keys.
func (n *Network) Counters() (map[string]netlink.LinkStatistics, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	in, err := open(n.path)
	if err != nil {
		return nil, err
	}
	defer in.close()
	links, err := in.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	keys := map[string]string{}
	for key, a := range n.attached {
		keys[a.port()] = key
	}
	all := map[string]netlink.LinkStatistics{}
	for _, l := range links {
		if key, ok := keys[l.Attrs().Name]; ok && l.Attrs().Statistics != nil {
			all[key] = *l.Attrs().Statistics
		}
	}
	return all, nil
}
