package core

import (
	"context"
	"net/netip"
	"strings"
)

// Overlays are this node's networks over several nodes, and the node's interface on the ingress
// network, which leads to the published ports of the whole cluster. An overlay is the data path
// alone: the caller of Open supplies the interfaces of other nodes, names, and the backends of
// services.
//
// An Attachment with addresses and with OverlayNetwork(name) as its Network puts a sandbox on an
// overlay. Errors carry a class of errdefs.
type Overlays interface {
	// Able returns FailedPrecondition with reason and advice if this machine cannot have overlays.
	// Encrypted ones may need more than others.
	Able(ctx context.Context, encrypted bool) error
	// Open makes an overlay, or adopts an existing one with its sandboxes, peers, names and services.
	// InvalidArgument for a definition that is not valid; AlreadyExists if one of its VXLAN ids or ranges
	// is in use on this machine; FailedPrecondition as Able.
	Open(ctx context.Context, o Overlay) error
	// Close removes an overlay. It is idempotent. FailedPrecondition while sandboxes are on it, or the
	// Ingress.
	Close(ctx context.Context, name string) error
	// List returns those that are open, also those that an earlier agent has opened, by name.
	List() []Overlay
	// SetPeers makes interfaces of other nodes reachable, each in place of the key's former peer, and
	// removes the peers of the keys in drop. Two keys may have one address while a task moves. It sets
	// all valid peers; the error, InvalidArgument, names the others.
	SetPeers(ctx context.Context, name string, set map[string]OverlayPeer, drop []string) error
	// Prune removes the peers and services of an earlier agent that were not set again. Call it
	// when all are set.
	Prune(ctx context.Context, name string) error
	// SetNames sets the records of an overlay's name server: the addresses of each name, in lower
	// case, and the name of each address.
	SetNames(ctx context.Context, name string, byName map[string][]netip.Addr, owners map[netip.Addr]string) error
	// SetServices sets the backends of each service address for the sandboxes on an overlay. It cuts
	// connections to removed backends. It sets all valid services; the error, InvalidArgument, names the
	// others.
	SetServices(ctx context.Context, name string, services []OverlayService) error
	// SetKeys sets the keys of encrypted overlays, the one to send by first. They are kept in memory
	// alone: after a start nothing is received from new peers until they are set.
	SetKeys(ctx context.Context, keys []OverlayKey) error
	// SetGossip sets this node's TCP and UDP port for the gossip of overlays, and the known members. Packets of
	// sandboxes to that port are dropped. Port 0 ends the restriction.
	SetGossip(ctx context.Context, port uint16, members []netip.Addr) error
	// OpenIngress gives the node its own interface on an overlay, from which it forwards published
	// ports. It is idempotent, and replaces another one.
	OpenIngress(ctx context.Context, in Ingress) error
	// CloseIngress removes that interface and all published ports. It is idempotent.
	CloseIngress(ctx context.Context) error
	// Publish forwards these ports of the host, and no others, to backends on the Ingress' network,
	// at each of the host's addresses and on loopback. It returns the ports that a process of the
	// host or a sandbox uses; the next call tries them again. FailedPrecondition without an
	// Ingress.
	Publish(ctx context.Context, ports []PublishedPort) ([]TakenPort, error)
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
