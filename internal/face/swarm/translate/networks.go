package translate

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
)

// The handling of ports that every node of the Swarm publishes.
const (
	IngressMesh = "mesh" // each node leads them to the service's tasks, wherever they are
	IngressHost = "host" // this node publishes those of its own tasks, as with mode=host
	IngressNone = "none" // it takes no task that has one
)

// Network is an overlay network that a task, or the node, is on.
type Network struct {
	// Overlay lacks the node's own fields: Local and Port.
	Overlay core.Overlay
	Title   string // its name for people
	Ingress bool   // it leads published ports to their services
	// Internal says that nothing outside of it is reached by it.
	Internal bool
	Addrs    []netip.Prefix
	Aliases  []string
}

// The options of an overlay network, of managers and of users.
const (
	optionVNIs      = "com.docker.network.driver.overlay.vxlanid_list"
	optionMTU       = "com.docker.network.driver.mtu"
	optionEncrypted = "encrypted"
	optionDSR       = "dsr"
)

// The bytes that an overlay adds to a packet.
const (
	vxlanBytes = 50
	espBytes   = 26
	plainMTU   = 1500 // of the network below, by default
	minMTU     = 68
	maxMTU     = 1<<16 - 1
)

// ReadNetwork reads an attachment to an overlay network. Errors have the network's name.
func ReadNetwork(a *swarmv1.NetworkAttachment) (Network, error) {
	n, spec := a.GetNetwork(), a.GetNetwork().GetSpec()
	title := cmp.Or(spec.GetAnnotations().GetName(), n.GetId())
	bad := func(format string, args ...any) (Network, error) {
		return Network{}, invalid.Errorf("overlay network %s: %w", title, fmt.Errorf(format, args...))
	}
	option := func(name string) (string, bool) {
		if v, there := n.GetDriverState().GetOptions()[name]; there {
			return v, true
		}
		v, there := spec.GetDriverConfig().GetOptions()[name]
		return v, there
	}
	out := Network{Overlay: core.Overlay{Name: n.GetId()}, Title: title, Ingress: spec.GetIngress(), Internal: spec.GetInternal(), Aliases: a.GetAliases()}
	if !core.IsName(n.GetId(), "_.-", maxNetworkID) {
		return bad("id %q", n.GetId())
	}
	if _, there := option(optionDSR); there {
		return Network{}, notServed("overlay network %s: the option %q, by which tasks answer clients past the node that they came by", title, optionDSR)
	}
	_, out.Overlay.Encrypted = option(optionEncrypted)
	below := plainMTU
	if text, there := option(optionMTU); there {
		var err error
		if below, err = strconv.Atoi(text); err != nil || below > maxMTU {
			return bad("mtu %q", text)
		}
	}
	if out.Overlay.MTU = below - vxlanBytes; out.Overlay.Encrypted {
		out.Overlay.MTU = (out.Overlay.MTU - espBytes) &^ 3
	}
	if out.Overlay.MTU < minMTU {
		return bad("an mtu of %d leaves nothing", below)
	}
	list, _ := option(optionVNIs)
	vnis, configs := strings.Split(list, ","), n.GetIpam().GetConfigs()
	if len(configs) == 0 {
		return bad("the managers have given it no range of addresses")
	}
	if len(vnis) < len(configs) || list == "" {
		return bad("the managers have given it %d ranges and the VXLAN ids %q", len(configs), list)
	}
	for i, c := range configs {
		s, err := readSubnet(c, vnis[i])
		if err != nil {
			return bad("%w", err)
		}
		for _, o := range out.Overlay.Subnets {
			if o.VNI == s.VNI || o.Range.Overlaps(s.Range) {
				return bad("ranges %s and %s with the VXLAN ids %q", o.Range, s.Range, list)
			}
		}
		out.Overlay.Subnets = append(out.Overlay.Subnets, s)
	}
	for _, text := range a.GetAddresses() {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return bad("address %q", text)
		}
		if err := out.Holds(p.Addr()); err != nil {
			return bad("%w", err)
		}
		out.Addrs = append(out.Addrs, p)
	}
	if len(out.Addrs) == 0 {
		return bad("the managers have given no address on it")
	}
	return out, nil
}

// maxNetworkID is more than the managers' ids have.
const maxNetworkID = 64

func readSubnet(c *swarmv1.IPAMConfig, vni string) (s core.OverlaySubnet, err error) {
	if s.Range, err = netip.ParsePrefix(c.GetSubnet()); err != nil {
		return s, invalid.Plainf("range %q", c.GetSubnet())
	}
	s.Range = s.Range.Masked()
	text, _, _ := strings.Cut(c.GetGateway(), "/")
	if s.Gateway, err = netip.ParseAddr(text); err != nil || !s.Range.Contains(s.Gateway) {
		return s, invalid.Plainf("gateway %q of the range %s", c.GetGateway(), s.Range)
	}
	id, err := strconv.ParseUint(strings.TrimSpace(vni), 10, 24)
	if err != nil || id == 0 {
		return s, invalid.Plainf("VXLAN id %q", vni)
	}
	s.VNI = uint32(id)
	return s, nil
}

// Holds says why no interface on the network can have an address; nil when one can.
func (n Network) Holds(a netip.Addr) error {
	for _, s := range n.Overlay.Subnets {
		switch {
		case !s.Range.Contains(a):
		case a == s.Gateway:
			return invalid.Plainf("address %s is the gateway's", a)
		case a == s.Range.Addr() && s.Range.Bits() < a.BitLen()-1:
			return invalid.Plainf("address %s is the range's own", a)
		default:
			return nil
		}
	}
	return invalid.Plainf("address %s is in no range of the network", a)
}

// MAC is that of an interface with the first of n's addresses, on whichever node it is.
func (n Network) MAC() string {
	b := n.Addrs[0].Addr().AsSlice()
	return append(net.HardwareAddr{0x02, 0x42}, b[len(b)-4:]...).String()
}

// Networks are the overlay networks of a task, that of published ports first.
func (a Task) Networks() (list []Network, err error) {
	for _, n := range a.Swarm.GetNetworks() {
		if !isOverlay(n) || n.GetNetwork().GetSpec().GetIngress() && a.Node.Ingress == IngressHost { // our bridge does
			continue
		}
		o, err := ReadNetwork(n)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(list, func(p Network) bool { return p.Overlay.Name == o.Overlay.Name }) {
			return nil, invalid.Errorf("overlay network %s: the task is on it twice", o.Title)
		}
		list = append(list, o)
	}
	slices.SortStableFunc(list, func(x, y Network) int {
		switch {
		case x.Ingress == y.Ingress:
			return 0
		case x.Ingress:
			return -1
		}
		return 1
	})
	return list, nil
}

// isOverlay reports whether an attachment is one to a network that reaches over several nodes.
func isOverlay(n *swarmv1.NetworkAttachment) bool {
	driver := driverOf(n)
	return driver == "overlay" || driver == "" || n.GetNetwork().GetSpec().GetIngress()
}

func driverOf(n *swarmv1.NetworkAttachment) string {
	return cmp.Or(n.GetNetwork().GetDriverState().GetName(), n.GetNetwork().GetSpec().GetDriverConfig().GetName())
}

// VIP is the address of the task's service on a network; zero when it has none.
func (a Task) VIP(network string) netip.Addr {
	for _, v := range a.Swarm.GetEndpoint().GetVirtualIps() {
		if v.GetNetworkId() != network {
			continue
		}
		text, _, _ := strings.Cut(v.GetAddr(), "/")
		if addr, err := netip.ParseAddr(text); err == nil {
			return addr
		}
	}
	return netip.Addr{}
}

// MeshPorts are the ports of the task's service that every node publishes, in the managers' order.
func (a Task) MeshPorts() (list []*swarmv1.PortConfig) {
	for _, p := range a.Swarm.GetEndpoint().GetPorts() {
		if p.GetPublishMode() == swarmv1.PortConfig_INGRESS && a.Node.Ingress != IngressHost {
			list = append(list, p)
		}
	}
	return list
}

// attach are the interfaces of the task on its overlay networks, and on the bridge that leads out; nil
// when it is on none.
func attach(a Task) ([]core.Attachment, error) {
	networks, err := a.Networks()
	if err != nil {
		return nil, err
	}
	ports, err := open(a)
	if err != nil {
		return nil, err
	}
	if len(ports) > 0 && (len(networks) == 0 || !networks[0].Ingress) {
		return nil, notServed("port %d of the whole swarm: the managers have put the task on no ingress network", ports[0].Host)
	}
	if len(networks) == 0 {
		return nil, nil
	}
	var list []core.Attachment
	internal := true
	for _, n := range networks {
		at := core.Attachment{Network: core.OverlayNetwork(n.Overlay.Name), Addrs: n.Addrs, MAC: n.MAC(), NoDefault: true}
		if n.Ingress {
			at.Open = ports
		}
		internal = internal && n.Internal
		list = append(list, at)
	}
	if !internal {
		list = append(list, core.Attachment{Network: core.NetworkDefault})
	}
	return list, nil
}

// open are the task's ports for other nodes' connections to published ports.
func open(a Task) (list []core.Port, err error) {
	seen := map[core.Port]bool{}
	for _, p := range a.MeshPorts() {
		if p.GetPublishedPort() == 0 {
			return nil, invalid.Errorf("port %d of the whole swarm: the managers have assigned no number to it", p.GetTargetPort())
		}
		q, err := readPort(p, seen)
		if err != nil {
			return nil, err
		}
		list = append(list, q)
	}
	return list, nil
}
