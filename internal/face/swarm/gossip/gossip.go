// Package gossip is a node's part in the gossip of a Swarm's nodes about the locations and names of
// endpoints on overlay networks: five verbs, join, enter, announce, withdraw and watch, and their
// inverses.
//
// It knows records, but not networks, tasks or their node, nor the transport of records. Start at
// Member; package networkdb has the real one, by Docker's library, and package gossiptest the suite
// and one in memory.
package gossip

import (
	"context"
	"iter"
	"net/netip"
)

// DefaultPort is where all members of a Swarm listen, by TCP and UDP.
const DefaultPort = 7946

// Member is a node's part in the gossip. It is safe for concurrent use. Errors carry a class of
// errdefs.
type Member interface {
	// Join connects to other members by the addresses of some of them, and returns when one has
	// answered; Unavailable when none does. Those are tried again each minute in any case. It may be
	// called again.
	Join(ctx context.Context, members []netip.AddrPort) error
	// Begin starts to take part in a network, and returns when others have the news, which is soon:
	// before this member knows the network's records. Enter waits for these.
	Begin(ctx context.Context, network string) error
	// Enter takes part in a network, and returns when it has the network's records. That takes half a
	// minute while a member of it has died without notice, and long in a large Swarm, because it asks
	// each other member for all records. No other call waits for it, and it continues when ctx ends. A
	// second call waits for the first one.
	Enter(ctx context.Context, network string) error
	// Exit takes no part in a network any more, and withdraws all records there. It is idempotent.
	Exit(network string) error
	// Announce tells the other members of a network a record. It replaces the record of the same kind that
	// this member has announced for the endpoint. FailedPrecondition unless Begin has returned. Until Enter
	// has returned too, others may silently drop the record of an endpoint that was announced before.
	Announce(id ID, r Record) error
	// Withdraw removes a record; also one that an earlier process of this node has announced, with
	// the announced value in r. It is idempotent. FailedPrecondition as for Announce.
	Withdraw(id ID, r Record) error
	// Watch yields the records of other members on a network, first those that there are, then
	// changes, until ctx ends. Records of a form that they cannot have are left out.
	Watch(ctx context.Context, network string) iter.Seq[Change]
	// SetKeys replaces the keys; the first is the one to encrypt by (Keyring).
	SetKeys(keys []Key) error
	// Members returns the addresses of the other members that answer.
	Members() []netip.Addr
	// Leave says goodbye: the others forget this member's records at once. Not for a node that is
	// only started again.
	Leave()
}

// Change is a record that was announced, or that is gone.
type Change struct {
	ID     ID
	Record Record // the last announced value, also of a removed one
	Gone   bool
}
