package vxlan

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/kernel"
)

// Attachment is an interface on this node.
type Attachment struct {
	Key       string         `json:"key"`       // names it on the network
	Interface string         `json:"interface"` // its name in the sandbox
	Addrs     []netip.Prefix `json:"addrs"`     // of one subnet
	MAC       string         `json:"mac"`       // "": made of the first address
}

func (a Attachment) has(addr netip.Addr) bool {
	return slices.ContainsFunc(a.Addrs, func(p netip.Prefix) bool { return p.Addr() == addr })
}

// portPrefix begins the names of the network's ends of attachments.
const portPrefix = "to"

// port is the name of the network's end.
func (a Attachment) port() string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(a.Key))
	return fmt.Sprintf("%s%013x", portPrefix, h.Sum64()&(1<<52-1))
}

// MACFor returns the MAC that an interface has by its address, as other nodes make it too.
func MACFor(addr netip.Addr) string {
	b := addr.AsSlice()
	return append(net.HardwareAddr{0x02, 0x42}, b[len(b)-4:]...).String()
}

// here reports whether is holds for an interface of this node. Preconditions: mu is held.
func (n *Network) here(is func(Attachment) bool) bool {
	for _, a := range n.attached {
		if is(a) {
			return true
		}
	}
	return false
}

// Attach gives the namespace at path an interface on the network, and returns it with the fields
// that were chosen. Peers with its addresses are ignored while it is here. AlreadyExists if its
// key, one of its addresses or the name of its interface is taken.
func (n *Network) Attach(path string, a Attachment) (_ Attachment, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	subnet, err := n.checkAttachment(&a)
	if err != nil {
		return a, fmt.Errorf("attach to network %s: %w", n.def.Name, err)
	}
	in, err := open(n.path)
	if err != nil {
		return a, err
	}
	defer in.close()
	box, err := open(path)
	if err != nil {
		return a, err
	}
	defer box.close()
	mac, err := net.ParseMAC(a.MAC)
	if err != nil {
		return a, err
	}
	note, err := json.Marshal(a)
	if err != nil {
		return a, err
	}
	pair := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: a.port(), MTU: n.def.MTU, MasterIndex: n.links[subnet].bridge},
		PeerName:  a.Interface, PeerHardwareAddr: mac, PeerMTU: uint32(n.def.MTU), PeerNamespace: netlink.NsFd(int(box.ns.Fd())),
	}
	if err := in.LinkAdd(pair); err != nil {
		if errors.Is(err, unix.EEXIST) {
			err = fmt.Errorf("interface %s is there already: %w", a.Interface, errdefs.ErrAlreadyExists)
		}
		return a, fmt.Errorf("attach to network %s: %w", n.def.Name, err)
	}
	if err := n.configure(in, box, a, subnet, string(note)); err != nil {
		return a, errors.Join(fmt.Errorf("attach to network %s: %w", n.def.Name, err), in.LinkDel(pair))
	}
	n.attached[a.Key] = a
	return a, n.syncAttachedLocked(in, a)
}

// checkAttachment returns the subnet of an attachment that can be. Preconditions: mu is held.
func (n *Network) checkAttachment(a *Attachment) (subnet int, err error) {
	invalid := func(format string, args ...any) (int, error) {
		return 0, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
	}
	// All of it must fit into the 255 bytes of a device's alias.
	if a.Key == "" || len(a.Key) > 64 || strings.ContainsFunc(a.Key, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"\<>&`, r) }) || len(a.Addrs) == 0 || len(a.Addrs) > 2 {
		return invalid("an attachment has a key of at most 64 plain letters, and one address or two")
	}
	if a.Interface == "" || len(a.Interface) >= unix.IFNAMSIZ || strings.ContainsAny(a.Interface, "/ :\t\n\x00") || a.Interface == "." || a.Interface == ".." || slices.Contains([]string{"lo", "all", "default"}, a.Interface) {
		return invalid("interface %q: not a valid name", a.Interface)
	}
	subnet = n.subnetOf(a.Addrs[0].Addr())
	for _, p := range a.Addrs {
		i := n.subnetOf(p.Addr())
		if i < 0 || i != subnet || p.Bits() != n.def.Subnets[i].Range.Bits() {
			return invalid("address %s is not one of its subnet", p)
		}
		if s := n.def.Subnets[i]; p.Addr() == s.Gateway || p.Addr() == s.Range.Addr() || p.Addr() == last(s.Range) {
			return invalid("address %s is the subnet's own", p.Addr())
		}
		if n.here(func(o Attachment) bool { return o.has(p.Addr()) }) {
			return 0, fmt.Errorf("address %s is taken: %w", p.Addr(), errdefs.ErrAlreadyExists)
		}
	}
	if _, there := n.attached[a.Key]; there {
		return 0, fmt.Errorf("%s is attached: %w", a.Key, errdefs.ErrAlreadyExists)
	}
	if a.MAC == "" {
		a.MAC = MACFor(a.Addrs[0].Addr())
	}
	mac, err := net.ParseMAC(a.MAC)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 {
		return invalid("mac %q is that of no interface", a.MAC)
	}
	a.MAC = mac.String()
	return subnet, nil
}

// configure sets up both ends.
func (n *Network) configure(in, box space, a Attachment, subnet int, note string) error {
	outer, err := in.LinkByName(a.port())
	if err != nil {
		return fmt.Errorf("find %s: %w", a.port(), err)
	}
	// The record for the next process.
	if err := in.LinkSetAlias(outer, note); err != nil {
		return fmt.Errorf("name %s: %w", a.port(), err)
	}
	if err := in.LinkSetLearning(outer, learns()); err != nil {
		return fmt.Errorf("switch learning off on %s: %w", a.port(), err)
	}
	if err := in.LinkSetUp(outer); err != nil {
		return fmt.Errorf("set %s up: %w", a.port(), err)
	}
	if err := leadHere(in, outer, a); err != nil {
		return fmt.Errorf("tell the bridge that %s is at %s: %w", a.MAC, a.port(), err)
	}
	inner, err := box.LinkByName(a.Interface)
	if err != nil {
		return fmt.Errorf("find %s: %w", a.Interface, err)
	}
	if err := box.LinkSetUp(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}}); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	if err := kernel.Within(box.ns, func() error { return ignoreRouters(a) }); err != nil {
		return fmt.Errorf("keep %s from what others say of routers: %w", a.Interface, err)
	}
	if err := kernel.Within(box.ns, func() error { return solicitOften(a) }); err != nil {
		return fmt.Errorf("have %s ask for its neighbours again soon: %w", a.Interface, err)
	}
	for _, p := range a.Addrs {
		if err := box.AddrAdd(inner, &netlink.Addr{IPNet: ipNet(p), Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("add address %s: %w", p, err)
		}
	}
	if err := box.LinkSetUp(inner); err != nil {
		return fmt.Errorf("set %s up: %w", a.Interface, err)
	}
	for i, s := range n.def.Subnets {
		if i == subnet || s.Range.Addr().Is4() != n.def.Subnets[subnet].Range.Addr().Is4() {
			continue
		}
		route := &netlink.Route{LinkIndex: inner.Attrs().Index, Dst: ipNet(s.Range), Gw: n.def.Subnets[subnet].Gateway.AsSlice()}
		if err := box.RouteReplace(route); err != nil {
			return fmt.Errorf("add route to %s: %w", s.Range, err)
		}
	}
	return nil
}

// leadHere makes the bridge send packets for an interface's MAC to this port. The former holder of the address, and
// mostly of the MAC, may have been on another node: the bridge would send there until the interface sends a packet,
// and others on this node have no reason to ask for the address again.
func leadHere(in space, outer netlink.Link, a Attachment) error {
	mac, err := net.ParseMAC(a.MAC)
	if err != nil {
		return err
	}
	return in.NeighSet(&netlink.Neigh{
		LinkIndex: outer.Attrs().Index, Family: unix.AF_BRIDGE, HardwareAddr: mac, Flags: netlink.NTF_MASTER, State: netlink.NUD_NOARP,
	})
}

// ignoreRouters keeps an interface from taking on addresses and routes that a neighbour advertises in IPv6. An interface
// without an IPv6 address does not use IPv6 at all. The calling thread is in its
// namespace.
func ignoreRouters(a Attachment) error {
	setting, value := "disable_ipv6", "1"
	if slices.ContainsFunc(a.Addrs, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		setting, value = "accept_ra", "0"
	}
	err := os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", a.Interface, setting), []byte(value), 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil // the kernel has no IPv6
	}
	return err
}

// solicitOften has an interface ask for the MAC of a neighbour ten times a second, for three seconds, instead of once a
// second: the entries of other nodes' interfaces are set while the first packets of a task already wait for them. Only
// the network's own devices hear the questions. The calling thread is in its namespace.
func solicitOften(a Attachment) error {
	for _, p := range a.Addrs {
		family := "ipv4"
		if p.Addr().Is6() {
			family = "ipv6"
		}
		for setting, value := range map[string]string{"retrans_time_ms": "100", "mcast_solicit": "30"} {
			if err := os.WriteFile(filepath.Join("/proc/sys/net", family, "neigh", a.Interface, setting), []byte(value), 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

// Detach takes an interface away, whether its sandbox exists or not. It is idempotent.
func (n *Network) Detach(key string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !kernel.Pinned(n.path) { // somebody has removed it, with all interfaces
		delete(n.attached, key)
		return nil
	}
	in, err := open(n.path)
	if err != nil {
		return err
	}
	defer in.close()
	a, there := n.attached[key]
	link, err := in.LinkByName(Attachment{Key: key}.port())
	switch {
	case notFound(err):
	case err != nil:
		return fmt.Errorf("detach from network %s: %w", n.def.Name, err)
	default:
		if err := in.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("detach from network %s: %w", n.def.Name, err)
		}
	}
	if !there {
		return nil
	}
	delete(n.attached, key)
	return n.syncAttachedLocked(in, a)
}

// syncAttachedLocked removes the kernel's entries of other nodes' interfaces with the addresses of
// one that has come here, or sets them again after it has gone.
func (n *Network) syncAttachedLocked(in space, a Attachment) error {
	var errs []error
	for _, p := range a.Addrs {
		errs = append(errs, n.syncLocked(in, p.Addr(), hardware{n.subnetOf(p.Addr()), a.MAC}))
	}
	return errors.Join(errs...)
}

// Has reports whether an interface on this node has this key.
func (n *Network) Has(key string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, there := n.attached[key]
	return there
}

// Attached returns the interfaces on this node, by their keys.
func (n *Network) Attached() []Attachment {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []Attachment
	for _, a := range n.attached {
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b Attachment) int { return strings.Compare(a.Key, b.Key) })
	return list
}

// adoptAttachedLocked reads which interfaces there are.
func (n *Network) adoptAttachedLocked(in space) error {
	links, err := in.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		if l.Type() != "veth" || !strings.HasPrefix(l.Attrs().Name, portPrefix) {
			continue
		}
		var a Attachment
		if err := json.Unmarshal([]byte(l.Attrs().Alias), &a); err != nil || a.port() != l.Attrs().Name {
			// The process before died while it made it.
			if err := in.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
				return fmt.Errorf("remove %s: %w", l.Attrs().Name, err)
			}
			continue
		}
		if err := n.rejoin(in, l, a); err != nil {
			return err
		}
		n.attached[a.Key] = a
	}
	return nil
}

// rejoin puts an interface's port on its bridge again, after another program has deleted the bridge and Open has made a
// new one.
func (n *Network) rejoin(in space, port netlink.Link, a Attachment) error {
	bridge := n.bridgeOf(a)
	if bridge == 0 {
		return nil
	}
	if port.Attrs().MasterIndex != bridge {
		if err := in.LinkSetMaster(port, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Index: bridge}}); err != nil {
			return fmt.Errorf("put %s on its bridge: %w", a.port(), err)
		}
	}
	// A port that was moved, or that lost its bridge, learns and has no entry.
	if err := in.LinkSetLearning(port, learns()); err != nil {
		return fmt.Errorf("switch learning off on %s: %w", a.port(), err)
	}
	return leadHere(in, port, a)
}

// bridgeOf returns the index of the bridge that an interface's port is on. It is 0 when the interface, which an earlier
// process has made, has no address of the network. Preconditions: mu is held.
func (n *Network) bridgeOf(a Attachment) int {
	if len(a.Addrs) == 0 {
		return 0
	}
	if i := n.subnetOf(a.Addrs[0].Addr()); i >= 0 {
		return n.links[i].bridge
	}
	return 0
}
