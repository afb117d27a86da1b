package overlays

import (
	"context"
	"net/netip"

	"github.com/longshore/longshore/internal/core"
)

// Port is the part of the node that this package needs: the node's networks over several nodes, and the node's interface on the ingress
// network, which leads to the published ports of the whole cluster. An overlay is the data path
// alone: the caller of Open supplies the interfaces of other nodes, names, and the backends of
// services.
//
// An Attachment with addresses and with core.OverlayNetwork(name) as its Network puts a sandbox on an
// overlay. Errors carry a class of errdefs.
type Port interface {
	// Able returns FailedPrecondition with reason and advice if this machine cannot have overlays.
	// Encrypted ones may need more than others.
	Able(ctx context.Context, encrypted bool) error
	// Open makes an overlay, or adopts an existing one with its sandboxes, peers, names and services.
	// InvalidArgument for a definition that is not valid; AlreadyExists if one of its VXLAN ids or ranges
	// is in use on this machine; FailedPrecondition as Able.
	Open(ctx context.Context, o core.Overlay) error
	// Close removes an overlay. It is idempotent. FailedPrecondition while sandboxes are on it, or the
	// Ingress.
	Close(ctx context.Context, name string) error
	// List returns those that are open, also those that an earlier agent has opened, by name.
	List() []core.Overlay
	// SetPeers makes interfaces of other nodes reachable, each in place of the key's former peer, and
	// removes the peers of the keys in drop. Two keys may have one address while a task moves. It sets
	// all valid peers; the error, InvalidArgument, names the others.
	SetPeers(ctx context.Context, name string, set map[string]core.OverlayPeer, drop []string) error
	// Prune removes the peers and services of an earlier agent that were not set again. Call it
	// when all are set.
	Prune(ctx context.Context, name string) error
	// SetNames sets the records of an overlay's name server: the addresses of each name, in lower
	// case, and the name of each address.
	SetNames(ctx context.Context, name string, byName map[string][]netip.Addr, owners map[netip.Addr]string) error
	// SetServices sets the backends of each service address for the sandboxes on an overlay. It cuts
	// connections to removed backends. It sets all valid services; the error, InvalidArgument, names the
	// others.
	SetServices(ctx context.Context, name string, services []core.OverlayService) error
	// SetKeys sets the keys of encrypted overlays, the one to send by first. They are kept in memory
	// alone: after a start nothing is received from new peers until they are set.
	SetKeys(ctx context.Context, keys []core.OverlayKey) error
	// SetGossip sets this node's TCP and UDP port for the gossip of overlays, and the known members. Packets of
	// sandboxes to that port are dropped. Port 0 ends the restriction.
	SetGossip(ctx context.Context, port uint16, members []netip.Addr) error
	// OpenIngress gives the node its own interface on an overlay, from which it forwards published
	// ports. It is idempotent, and replaces another one.
	OpenIngress(ctx context.Context, in core.Ingress) error
	// CloseIngress removes that interface and all published ports. It is idempotent.
	CloseIngress(ctx context.Context) error
	// Publish forwards these ports of the host, and no others, to backends on the Ingress' network,
	// at each of the host's addresses and on loopback. It returns the ports that a process of the
	// host or a sandbox uses; the next call tries them again. FailedPrecondition without an
	// Ingress.
	Publish(ctx context.Context, ports []core.PublishedPort) ([]core.TakenPort, error)
}
