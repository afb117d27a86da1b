package vxlan_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/network/vxlan"
	"github.com/longshore/longshore/internal/roottest"
)

// TestManyTellOfOneAddress: a member that tells of one address by as many keys as the gossip takes, and
// takes all of it back, does not keep the network from its tasks.
func TestManyTellOfOneAddress(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNodes(t, 1)[0]
		n.open()
		list := map[string]vxlan.Peer{}
		var keys []string
		for i := range 1 << 16 {
			keys = append(keys, fmt.Sprintf("%064x", i))
			list[keys[i]] = vxlan.Peer{Addr: netip.MustParseAddr("10.0.1.9"), MAC: "02:42:0a:00:01:09", Node: netip.MustParseAddr("192.0.2.9")}
		}
		began := time.Now()
		if err := n.net.SetPeers(list); err != nil {
			t.Fatal(err)
		}
		n.want("192.0.2.9", 2)
		if err := n.net.DropPeers(keys[1:]); err != nil {
			t.Fatal(err)
		}
		n.want("192.0.2.9", 2)
		if err := n.net.DropPeers(keys[:1]); err != nil {
			t.Fatal(err)
		}
		n.want("", 0)
		if took := time.Since(began); took > roottest.Patience()/4 {
			t.Errorf("it took %s", took)
		}
	})
}
