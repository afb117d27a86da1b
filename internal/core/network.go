package core

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// NetworkConfig is the network that a sandbox asks for.
type NetworkConfig struct {
	Name   string              `json:"name,omitempty"` // "": the agent's default; "none": loopback only
	Attach []Attachment        `json:"attach,omitempty"`
	Ports  []Port              `json:"ports,omitempty"`
	DNS    DNS                 `json:"dns"`
	Hosts  map[string][]string `json:"hosts,omitempty"` // address → names, for /etc/hosts
	Links  []Link              `json:"links,omitempty"`
	Args   map[string]string   `json:"args,omitempty"` // passed to the driver (CNI_ARGS, capability args)
	// Bandwidth limits in bits per second; 0 is none.
	IngressRate uint64 `json:"ingress_rate,omitempty"`
	EgressRate  uint64 `json:"egress_rate,omitempty"`
	// Egress has the entries of the sandbox's egress list, in the grammar of internal/egress. They are the only destinations of
	// its connections. Without an entry all are open.
	Egress []string `json:"egress,omitempty"`
	// Metadata opens the addresses at which clouds give credentials to their machines, 169.254.169.254 and fd00:ec2::254, to a
	// sandbox without a list.
	Metadata bool `json:"metadata,omitempty"`
}

// EgressRefusal is a name or a connection that an egress list has refused.
type EgressRefusal struct {
	At     time.Time  `json:"at"`
	Kind   string     `json:"kind"` // as in the log, by internal/egress
	Name   string     `json:"name,omitempty"`
	Addr   netip.Addr `json:"addr,omitzero"`
	Proto  string     `json:"proto,omitempty"`
	Port   uint16     `json:"port,omitempty"`
	UID    *uint32    `json:"uid,omitempty"`
	Count  int        `json:"count,omitempty"`
	Reason string     `json:"reason,omitempty"`
}

// EgressLabel is the label of a sandbox with an egress list. Spaces separate its entries.
const EgressLabel = "longshore.egress"

// Link gives names in /etc/hosts to the address of another container, as long as that one has it.
type Link struct {
	Container ID       `json:"container"`
	Names     []string `json:"names"`
}

// NetworkNone is the NetworkConfig.Name of a sandbox that has the loopback interface only.
const NetworkNone = "none"

// NetworkJoined is the prefix of the NetworkStatus.Mode of a sandbox with the network of another
// container; the container's ID follows.
const NetworkJoined = "container:"

// NetworkDefault is the builtin network, which is meant where none is named, too.
const NetworkDefault = "default"

func sameNetwork(a, b string) bool { return cmp.Or(a, NetworkDefault) == cmp.Or(b, NetworkDefault) }

// HostGateway stands for the address at which a sandbox reaches the node, as a key of
// NetworkConfig.Hosts.
const HostGateway = "host-gateway"

// Attachment is one interface in the sandbox.
type Attachment struct {
	Network   string         `json:"network,omitempty"`
	Interface string         `json:"interface"`
	Addrs     []netip.Prefix `json:"addrs,omitempty"`
	MAC       string         `json:"mac,omitempty"`
	MTU       int            `json:"mtu,omitempty"`
	// Names are the sandbox's names on the network, besides its key. Only user-defined networks
	// have a name server.
	Names []string `json:"names,omitempty"`
	// Routes are those that lead over this interface, besides the default one and the one to the
	// addresses' own range.
	Routes []Route `json:"routes,omitempty"`
	// NoDefault says that the default route never leads over this interface.
	NoDefault bool `json:"no_default,omitempty"`
	// Open, unless empty, are the only ports at which others reach the sandbox by the addresses of
	// this interface: Host is the one that they ask for, Container the one at which its program
	// listens. For overlays only.
	Open []Port `json:"open,omitempty"`
}

// Route is where packets to a range go.
type Route struct {
	To  netip.Prefix `json:"to"`
	Via netip.Addr   `json:"via,omitzero"` // zero: the range is on the link itself
}

// Attached returns the interfaces that a sandbox asks for, the first of them that which Name means.
func (c NetworkConfig) Attached() []Attachment {
	switch {
	case c.Name == NetworkNone:
		return nil
	case len(c.Attach) == 0:
		return []Attachment{{Network: c.Name}}
	}
	list := slices.Clone(c.Attach)
	if list[0].Network == "" {
		list[0].Network = c.Name
	}
	return list
}

// On returns the index in Attached of the interface on a network, or -1.
func (c NetworkConfig) On(network string) int {
	return slices.IndexFunc(c.Attached(), func(a Attachment) bool { return sameNetwork(a.Network, network) })
}

// With returns c with one more interface, the last one.
func (c NetworkConfig) With(a Attachment) NetworkConfig {
	c.Attach = append(c.Attached(), a)
	if len(c.Attach) == 1 {
		c.Name = a.Network
	}
	return c
}

// Without returns c without its interface on a network. Without any, it asks for NetworkNone.
func (c NetworkConfig) Without(network string) NetworkConfig {
	c.Attach = slices.DeleteFunc(c.Attached(), func(a Attachment) bool { return sameNetwork(a.Network, network) })
	if c.Name = NetworkNone; len(c.Attach) > 0 {
		c.Name = c.Attach[0].Network
	}
	return c
}

// NetworkDefinition is a network that a user has defined: a bridge of its own, which exchanges
// nothing with others, and a name server.
type NetworkDefinition struct {
	Name     string            `json:"name"`
	Labels   map[string]string `json:"labels,omitempty"`
	Subnets  []Subnet          `json:"subnets"`
	Internal bool              `json:"internal,omitempty"` // no way out, and none in
	IPv6     bool              `json:"ipv6,omitempty"`     // Define chooses a range of IPv6 if Subnets has none
	NoIPv4   bool              `json:"no_ipv4,omitempty"`  // no range of IPv4, and Define chooses none
	MTU      int               `json:"mtu,omitempty"`      // 0: the node's
	Created  time.Time         `json:"created"`
	// Interface is the bridge's name. Define chooses one if it is empty.
	Interface string `json:"interface"`
	// Isolated says that its sandboxes do not reach each other, by published ports neither.
	Isolated bool `json:"isolated,omitempty"`
	// NoMasquerade says that packets keep the addresses of sandboxes where they leave the node.
	NoMasquerade bool `json:"no_masquerade,omitempty"`
	// HostIP is the address of host ports that name none. The zero Addr is every address of the host.
	HostIP netip.Addr `json:"host_ip,omitzero"`
	// Attachable, Options and IPAMOptions are stored for clients that set and read them. Nothing else depends on them.
	Attachable  bool              `json:"attachable,omitempty"`
	Options     map[string]string `json:"options,omitempty"`
	IPAMOptions map[string]string `json:"ipam_options,omitzero"`
}

// Subnet is a range of addresses of a network.
type Subnet struct {
	Range   netip.Prefix `json:"range"`
	Gateway netip.Addr   `json:"gateway,omitzero"` // zero: the first address
	// Pool limits the choice of addresses to a part of Range. A sandbox may still ask for any address of Range. The
	// zero value does not limit it.
	Pool netip.Prefix `json:"pool,omitzero"`
	// Chosen says that Define has chosen Range.
	Chosen bool `json:"chosen,omitempty"`
	// Reserved are addresses of Range that no sandbox gets, by names for people.
	Reserved map[string]netip.Addr `json:"reserved,omitempty"`
}

// Port forwards a host port into the sandbox.
type Port struct {
	Proto  string     `json:"proto"`            // tcp, udp or sctp
	HostIP netip.Addr `json:"host_ip,omitzero"` // the zero Addr is every address of the host
	// Host 0 has the network choose a free one, which is the sandbox's until Teardown and is in
	// NetworkStatus.Ports. CNI's plugins choose none.
	Host uint16 `json:"host"`
	// HostLast, if it is above Host, has the network choose the first free one from Host to it. CNI's plugins choose none.
	HostLast  uint16 `json:"host_last,omitempty"`
	Container uint16 `json:"container"`
}

// PortError is the error of a host port that a sandbox cannot have, because another one or a process of the host has it.
type PortError struct {
	HostIP  netip.Addr // the zero Addr is every address of the host
	Host    uint16
	Process bool // a process of the host has it
	Err     error
}

func (e *PortError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *PortError) Unwrap() error { return e.Err }

// DNS is the content of resolv.conf. When all fields are empty, that is the host's, with the real
// servers in place of those on loopback addresses.
type DNS struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// NetworkStatus is the network that a sandbox has.
type NetworkStatus struct {
	Mode       string       `json:"mode,omitempty"`  // builtin, cni, host, none, or NetworkJoined with an ID
	Addrs      []netip.Addr `json:"addrs,omitempty"` // the first is the primary one
	Gateways   []netip.Addr `json:"gateways,omitempty"`
	Interfaces []Attachment `json:"interfaces,omitempty"`
	Ports      []Port       `json:"ports,omitempty"` // as requested, in their order, with those that were chosen
	DNS        DNS          `json:"dns"`             // as reported by the driver, for example a CNI plugin
	Raw        []byte       `json:"raw,omitempty"`   // the driver's own result
	// Resolver is the name server that answers inside of the sandbox, and that asks those of DNS
	// itself; zero when there is none.
	Resolver netip.Addr `json:"resolver,omitzero"`
	// Egress is the egress list of the sandbox's rules.
	Egress []string `json:"egress,omitempty"`
}

// On returns the index in Interfaces of that on a network, or -1.
func (s *NetworkStatus) On(network string) int {
	return slices.IndexFunc(s.Interfaces, func(a Attachment) bool { return sameNetwork(a.Network, network) })
}

// Without returns s without its interface on a network. Without any, its Mode is NetworkNone.
func (s NetworkStatus) Without(network string) NetworkStatus {
	i := s.On(network)
	if i < 0 {
		return s
	}
	gone := s.Interfaces[i]
	s.Interfaces = slices.Delete(slices.Clone(s.Interfaces), i, i+1)
	of := func(a netip.Addr) bool {
		return slices.ContainsFunc(gone.Addrs, func(p netip.Prefix) bool { return p.Addr() == a })
	}
	within := func(a netip.Addr) bool {
		return slices.ContainsFunc(gone.Addrs, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	s.Addrs = slices.DeleteFunc(slices.Clone(s.Addrs), of)
	s.Gateways = slices.DeleteFunc(slices.Clone(s.Gateways), within)
	if len(s.Interfaces) == 0 {
		s.Mode = NetworkNone
	}
	return s
}

// NetworkRequest names a sandbox to a Network.
type NetworkRequest struct {
	Sandbox   ID
	Owner     Owner
	Namespace string // path of the pinned network namespace; "" when it no longer exists
	Config    NetworkConfig
	Labels    map[string]string
	Last      NetworkStatus // the result of Setup; zero before it
}

// NetworkInfo is the state of the node's network.
type NetworkInfo struct {
	Mode   string // builtin or cni
	Ready  bool
	Reason string // why it is not ready, with advice
	Ranges []netip.Prefix
}

// OverlayNetwork returns the Network of an Attachment to an overlay.
func OverlayNetwork(name string) string { return overlayPrefix + name }

// OverlayName is the inverse of OverlayNetwork: the name of the overlay that an Attachment means, if
// it means one.
func OverlayName(network string) (name string, ok bool) {
	return strings.CutPrefix(network, overlayPrefix)
}

// overlayPrefix distinguishes overlays from user-defined networks, which have no colon in their
// names.
const overlayPrefix = "overlay:"

// Overlay defines a network over several nodes. It is the same on all nodes but for Local.
type Overlay struct {
	Name    string          `json:"name"` // letters, digits and _.-
	Subnets []OverlaySubnet `json:"subnets"`
	Port    uint16          `json:"port,omitempty"` // UDP; 0: 4789
	MTU     int             `json:"mtu"`            // of sandboxes' interfaces
	// Local is the node's address for packets from other nodes.
	Local     netip.Addr `json:"local"`
	Encrypted bool       `json:"encrypted,omitempty"`
}

// OverlaySubnet is a range of addresses of an overlay.
type OverlaySubnet struct {
	Range   netip.Prefix `json:"range"`
	Gateway netip.Addr   `json:"gateway"` // the same on every node; it leads to the other subnets
	VNI     uint32       `json:"vni"`     // the VXLAN id
}

// OverlayPeer is an interface on another node.
type OverlayPeer struct {
	Addr netip.Addr
	MAC  string     // as net.HardwareAddr writes it
	Node netip.Addr // the node that has it
}

// OverlayService is an address that leads to one of several backends.
type OverlayService struct {
	Addr     netip.Addr
	Backends []OverlayBackend
}

// OverlayBackend answers for a service, or at a published port.
type OverlayBackend struct {
	Addr netip.Addr
	// Draining says that it gets no new connections, and keeps those that it has.
	Draining bool
}

// OverlayKey encrypts packets between nodes. All nodes have the same.
type OverlayKey struct {
	Key [16]byte
	ID  uint32 // differs between the keys of a cluster; it is no secret
}

// Ingress is the node's own interface on an overlay.
type Ingress struct {
	Network string         // the overlay's Name
	Addrs   []netip.Prefix // the first is the source of forwarded connections
	MAC     string         // "": made of the first address
}

// PublishedPort is a port of the host that leads to backends, which answer at that very port.
type PublishedPort struct {
	Proto    string // tcp, udp or sctp
	Port     uint16
	Backends []OverlayBackend
}

// TakenPort is a published port that somebody else on this node has.
type TakenPort struct {
	Proto string
	Port  uint16
	Err   error // names its user
}
