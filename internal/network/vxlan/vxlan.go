// Package vxlan makes the data path of a network that reaches over several nodes: on each node a
// network namespace with a bridge and a VXLAN device per subnet, and a forwarding entry for each
// interface on another node. Nothing is flooded: packets to an interface without an entry are
// dropped.
//
// It knows devices and addresses, but not the source of the entries. Its networks outlive this
// process, and the next one adopts them. Start at Open.
package vxlan

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/settings"
	"github.com/longshore/longshore/internal/nlwrap"
)

// Definition defines a network. It is the same on all nodes but for Local.
type Definition struct {
	Name    string // of the network on this node; a name of a file
	Subnets []Subnet
	Port    uint16     // UDP; 0: 4789
	MTU     int        // of its interfaces
	Local   netip.Addr // this node's own address, for packets from other nodes
	// Encrypted says that nothing is sent or taken in clear.
	Encrypted bool
	// Keys are this node's; needed when Encrypted.
	Keys *Keyring
	// Guard is this node's. Without a Guard the network accepts packets from everybody.
	Guard *Guard
}

// Subnet is a range of addresses of a network.
type Subnet struct {
	Range   netip.Prefix
	Gateway netip.Addr // the bridge's, on every node
	VNI     uint32     // the number of its packets
}

// DefaultPort is the UDP port of VXLAN that IANA has registered.
const DefaultPort = 4789

// maxVNI is the largest number that fits into the 24 bits of a packet.
const maxVNI = 1<<24 - 1

// Check returns InvalidArgument if d is not valid.
func (d Definition) Check() error {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("network %q: "+format+": %w", append(append([]any{d.Name}, args...), errdefs.ErrInvalidArgument)...)
	}
	if d.Name == "" || d.Name != filepath.Base(d.Name) || strings.HasPrefix(d.Name, ".") || strings.ContainsAny(d.Name, "\x00\n") || len(d.Name) > 128 {
		return fmt.Errorf("network name: it is no name of a file: %w", errdefs.ErrInvalidArgument)
	}
	if len(d.Subnets) == 0 {
		return invalid("it has no subnet")
	}
	if d.Encrypted && d.Keys == nil {
		return invalid("it is encrypted, and this node has no keys")
	}
	if d.MTU < 68 || d.MTU > 65535 {
		return invalid("mtu %d is out of range", d.MTU)
	}
	if !d.Local.IsValid() || d.Local.IsUnspecified() || d.Local.IsMulticast() || d.Local.IsLoopback() {
		return invalid("%s is no address to which other nodes can send", d.Local)
	}
	for i, s := range d.Subnets {
		switch {
		case !s.Range.IsValid() || s.Range.Masked() != s.Range:
			return invalid("range %s", s.Range)
		case !s.Range.Contains(s.Gateway) || s.Gateway == s.Range.Addr():
			return invalid("gateway %s is not in %s", s.Gateway, s.Range)
		case s.VNI == 0 || s.VNI > maxVNI:
			return invalid("vxlan id %d is out of range", s.VNI)
		}
		for _, o := range d.Subnets[:i] {
			if o.VNI == s.VNI || o.Range.Overlaps(s.Range) {
				return invalid("subnets %s and %s are the same", o.Range, s.Range)
			}
		}
	}
	return nil
}

// Network is the data path of one network on this node. It is safe for concurrent use.
type Network struct {
	def  Definition
	path string // of the pinned namespace
	log  *slog.Logger
	use  *use // nil in clear

	mu       sync.Mutex // guards links, peers, kernel, attached
	links    []subnetLinks
	peers    peers
	kernel   entries
	attached map[string]Attachment
}

// subnetLinks are the indexes of a subnet's devices, inside of the namespace. Only these are kept: all that the kernel
// tells of a device takes some KiB.
type subnetLinks struct{ bridge, vxlan int }

// Open makes a network in a namespace that is pinned below dir, or adopts that of an earlier
// process: it adds missing parts and does not change correct ones. Entries of peers stay until
// Prune. FailedPrecondition if the kernel has no VXLAN; AlreadyExists if the VXLAN id is in use on
// this machine.
func Open(dir string, def Definition, log *slog.Logger) (*Network, error) {
	if err := def.Check(); err != nil {
		return nil, err
	}
	def.Port = cmp.Or(def.Port, DefaultPort)
	if log == nil {
		log = slog.Default()
	}
	n := &Network{def: def, path: pathOf(dir, def.Name), log: log, peers: newPeers(), kernel: newEntries(), attached: map[string]Attachment{}}
	n.mu.Lock()
	defer n.mu.Unlock()
	def.Guard.enter(n.path, def)
	if def.Encrypted {
		var err error
		if n.use, err = def.Keys.enter(n.path, def); err != nil {
			return nil, fmt.Errorf("network %s: %w", def.Name, err)
		}
	}
	if err := kernel.Pin(n.path); err != nil {
		return nil, fmt.Errorf("network %s: %w", def.Name, err)
	}
	if err := n.buildLocked(); err != nil {
		return nil, fmt.Errorf("network %s: %w", def.Name, err)
	}
	if err := def.Guard.ready(n.path); err != nil {
		return nil, fmt.Errorf("network %s: restrict its senders: %w", def.Name, err)
	}
	if def.Keys != nil {
		if err := def.Keys.settle(n.path, n.use, def); err != nil {
			return nil, fmt.Errorf("network %s: %w", def.Name, err)
		}
	}
	return n, nil
}

// Remove removes a network with all its devices. It is idempotent, and needs no Network, only the
// name. Keyring.Remove does it for networks that may be encrypted.
func Remove(dir, name string) error {
	path := pathOf(dir, name)
	// The kernel removes the devices of a namespace some time after its end, and a VXLAN id would
	// be taken until then.
	if err := errors.Join(removeDevices(path), kernel.Unpin(path)); err != nil {
		return fmt.Errorf("remove network %s: %w", name, err)
	}
	return nil
}

func pathOf(dir, name string) string { return filepath.Join(dir, filepath.Base(name)) }

func removeDevices(path string) error {
	if !kernel.Pinned(path) {
		return nil
	}
	in, err := open(path)
	if err != nil {
		return err
	}
	defer in.close()
	links, err := in.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	var errs []error
	for _, l := range links {
		if l.Type() != "vxlan" && l.Type() != "veth" {
			continue
		}
		// A sandbox that ends takes its own end away.
		if err := in.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("remove %s: %w", l.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}

// List returns the names of the networks that there are below dir.
func List(dir string) ([]string, error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names, err
}

// space is the namespace, open for one call: an open socket keeps it alive.
type space struct {
	nlwrap.Handle
	ns *os.File
}

func open(path string) (space, error) {
	f, err := os.Open(path)
	if err != nil {
		return space{}, fmt.Errorf("open network namespace: %w", err)
	}
	h, err := netlink.NewHandleAt(netns.NsHandle(f.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return space{}, errors.Join(fmt.Errorf("enter network namespace %s: %w", path, err), f.Close())
	}
	return space{nlwrap.Handle{Handle: h}, f}, nil
}

func (s space) close() {
	s.Close()
	_ = s.ns.Close()
}

// buildLocked makes the devices that are not there.
func (n *Network) buildLocked() error {
	in, err := open(n.path)
	if err != nil {
		return err
	}
	defer in.close()
	if err := kernel.Within(in.ns, func() error { return settings.Fresh(n.def.forward()) }); err != nil {
		return fmt.Errorf("set kernel parameters: %w", err)
	}
	if err := in.LinkSetUp(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}}); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	n.links = nil
	for i, s := range n.def.Subnets {
		l, err := n.subnet(in, i, s)
		if err != nil {
			return err
		}
		n.links = append(n.links, l)
	}
	return n.adoptLocked(in)
}

// forward returns the families with several subnets, between which the network forwards.
func (d Definition) forward() settings.Forward {
	v4, v6 := 0, 0
	for _, s := range d.Subnets {
		if s.Range.Addr().Is4() {
			v4++
		} else {
			v6++
		}
	}
	return settings.Forward{V4: v4 > 1, V6: v6 > 1}
}

// subnet makes the devices of a subnet, where they are not there or are others.
func (n *Network) subnet(in space, i int, s Subnet) (l subnetLinks, err error) {
	name := bridgeName(i)
	bridge, err := in.LinkByName(name)
	if notFound(err) {
		if err := in.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: n.def.MTU, HardwareAddr: n.bridgeMAC(s)}}); err != nil {
			return l, fmt.Errorf("make bridge %s: %w", name, err)
		}
		bridge, err = in.LinkByName(name)
	}
	if err != nil {
		return l, fmt.Errorf("find bridge %s: %w", name, err)
	}
	gateway := netlink.Addr{IPNet: ipNet(netip.PrefixFrom(s.Gateway, s.Range.Bits())), Flags: unix.IFA_F_NODAD}
	if err := in.AddrReplace(bridge, &gateway); err != nil {
		return l, fmt.Errorf("give %s its address %s: %w", name, s.Gateway, err)
	}
	if err := in.LinkSetUp(bridge); err != nil {
		return l, fmt.Errorf("set %s up: %w", name, err)
	}
	vxlan, err := n.vxlan(in, vxlanName(i), s)
	if err != nil {
		return l, err
	}
	if err := in.LinkSetMaster(vxlan, bridge); err != nil {
		return l, fmt.Errorf("put %s on the bridge: %w", vxlanName(i), err)
	}
	if err := in.LinkSetLearning(vxlan, learns()); err != nil {
		return l, fmt.Errorf("switch learning off on %s: %w", vxlanName(i), err)
	}
	if err := in.LinkSetUp(vxlan); err != nil {
		return l, fmt.Errorf("set %s up: %w", vxlanName(i), err)
	}
	return subnetLinks{bridge: bridge.Attrs().Index, vxlan: vxlan.Attrs().Index}, nil
}

// bridgeName is the name of a subnet's bridge.
func bridgeName(i int) string { return fmt.Sprintf("br%d", i) }

// vxlanName is the name of a subnet's VXLAN device.
func vxlanName(i int) string { return fmt.Sprintf("vx%d", i) }

// bridgeMAC is that of a subnet's bridge. The bridges of all nodes have the same IP address, and
// each another MAC; without one of its own a bridge takes on that of a port.
func (n *Network) bridgeMAC(s Subnet) net.HardwareAddr {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, n.def.Local, s.Gateway, s.VNI)
	sum := h.Sum64()
	return net.HardwareAddr{0x02, byte(sum >> 32), byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}
}

// vxlan makes the device that sends packets to other nodes. It stands in the network's namespace
// and sends from ours.
func (n *Network) vxlan(in space, name string, s Subnet) (netlink.Link, error) {
	link, err := in.LinkByName(name)
	if err == nil {
		if v, ok := link.(*netlink.Vxlan); ok && v.VxlanId == int(s.VNI) && v.Port == int(n.def.Port) && n.def.Local == addrOf(v.SrcAddr) {
			if v.Learning != learns() {
				err = unlearn(in, link)
			}
			return link, err
		}
		n.log.Warn("a device of an overlay network has been changed; replacing it", "network", n.def.Name, "device", name)
		if err := in.LinkDel(link); err != nil {
			return nil, fmt.Errorf("remove %s: %w", name, err)
		}
	} else if !notFound(err) {
		return nil, fmt.Errorf("find %s: %w", name, err)
	}
	outside, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	defer outside.Close()
	err = outside.LinkAdd(&netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: name, MTU: n.def.MTU, Namespace: netlink.NsFd(int(in.ns.Fd()))},
		VxlanId:   int(s.VNI), SrcAddr: n.def.Local.AsSlice(), Port: int(n.def.Port), Learning: learns(), Proxy: true, L2miss: true, L3miss: true,
	})
	switch {
	case errors.Is(err, unix.EEXIST):
		return nil, fmt.Errorf("vxlan id %d at port %d is taken on this machine by another network or program: %w", s.VNI, n.def.Port, errdefs.ErrAlreadyExists)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT):
		return nil, fmt.Errorf("this kernel has no vxlan: %w: %w", err, errdefs.ErrFailedPrecondition)
	case err != nil:
		return nil, fmt.Errorf("make vxlan device with id %d: %w", s.VNI, err)
	}
	link, err = in.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", name, err)
	}
	return link, nil
}

func notFound(err error) bool {
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// subnetOf returns the index of the subnet that has an address, or -1.
func (n *Network) subnetOf(a netip.Addr) int {
	return slices.IndexFunc(n.def.Subnets, func(s Subnet) bool { return s.Range.Contains(a) })
}
