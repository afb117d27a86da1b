package core

import (
	"context"
	"net/netip"
	"strings"
)

// Overlays are the networks of this node that reach over several nodes, and the node's place on
// the one by which ports of the whole cluster are reached. An overlay is the data path alone:
// whoever opens it says where the interfaces of other nodes are, what they are called and which of
// them answer for a service.
//
// A sandbox is on an overlay by an Attachment with the Network that OverlayNetwork returns, whose
// addresses are given. Errors carry a class of errdefs.
type Overlays interface {
	// Able says why there can be no overlay on this machine, and what to do; FailedPrecondition.
	// Encrypted ones may need more than others.
	Able(ctx context.Context, encrypted bool) error
	// Open makes an overlay, or adopts one that is there with its sandboxes and with what earlier
	// calls have told of it. InvalidArgument for what cannot be; AlreadyExists when this machine has one of
	// its VXLAN ids or ranges for something else; FailedPrecondition as Able.
	Open(ctx context.Context, o Overlay) error
	// Close takes an overlay away. It is idempotent. FailedPrecondition while sandboxes are on it, or the
	// Ingress.
	Close(ctx context.Context, name string) error
	// List returns those that are open, also those that an earlier agent has opened, by name.
	List() []Overlay
	// SetPeers makes interfaces of other nodes reachable, each in place of what its key was before, and
	// takes back the keys in drop. Two keys may tell of one address while a task moves. Those peers that
	// can be are set, whatever the others are: the error, InvalidArgument, names the others.
	SetPeers(ctx context.Context, name string, set map[string]OverlayPeer, drop []string) error
	// Prune forgets what an earlier agent has set and nobody has told this one: when all is known.
	Prune(ctx context.Context, name string) error
	// SetNames sets what the name server of sandboxes on an overlay answers: the addresses of each
	// name, in lower case, and the name of each address.
	SetNames(ctx context.Context, name string, byName map[string][]netip.Addr, owners map[netip.Addr]string) error
	// SetServices sets to which backends sandboxes on an overlay reach by a service's address.
	// Connections to backends that are not among them any more are cut. Those services that can be are set,
	// whatever the others are: the error, InvalidArgument, names the others.
	SetServices(ctx context.Context, name string, services []OverlayService) error
	// SetKeys sets the keys of encrypted overlays, the one to send by first. They are kept in memory
	// alone: after a start nothing is received from new peers until they are set.
	SetKeys(ctx context.Context, keys []OverlayKey) error
	// SetGossip sets this node's TCP and UDP port for the gossip of overlays, and the known members. Packets of
	// sandboxes to that port are dropped. Port 0 ends the restriction.
	SetGossip(ctx context.Context, port uint16, members []netip.Addr) error
	// OpenIngress gives the node its own interface on an overlay, from which it leads its published
	// ports. It is idempotent, and replaces another one.
	OpenIngress(ctx context.Context, in Ingress) error
	// CloseIngress takes that away with all published ports. It is idempotent.
	CloseIngress(ctx context.Context) error
	// Publish leads these ports of the host, and no others any more, to backends on the Ingress'
	// network, at each of the host's addresses and on loopback. It returns those that are not led
	// because a process of the host, or a sandbox, has them; the next call tries again.
	// FailedPrecondition without an Ingress.
	Publish(ctx context.Context, ports []PublishedPort) ([]TakenPort, error)
}

// OverlayNetwork is what an Attachment calls an overlay.
func OverlayNetwork(name string) string { return overlayPrefix + name }

// OverlayName is the inverse of OverlayNetwork: the name of the overlay that an Attachment means, if
// it means one.
func OverlayName(network string) (name string, ok bool) {
	return strings.CutPrefix(network, overlayPrefix)
}

// overlayPrefix keeps overlays apart from networks that users define, whose names have no colon.
const overlayPrefix = "overlay:"

// Overlay says what a network over several nodes is. It is the same on all nodes but for Local.
type Overlay struct {
	Name    string          `json:"name"` // letters, digits and _.-
	Subnets []OverlaySubnet `json:"subnets"`
	Port    uint16          `json:"port,omitempty"` // UDP; 0: 4789
	MTU     int             `json:"mtu"`            // of sandboxes' interfaces
	// Local is the node's address to which other nodes send.
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
	Node netip.Addr // to which packets for it are sent
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

// OverlayKey encrypts what nodes send to each other. All nodes have the same.
type OverlayKey struct {
	Key [16]byte
	ID  uint32 // differs between the keys of a cluster; it is no secret
}

// Ingress is the node's own interface on an overlay.
type Ingress struct {
	Network string         // the overlay's Name
	Addrs   []netip.Prefix // the first is the source of what the node leads to backends
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
	Err   error // who has it
}
