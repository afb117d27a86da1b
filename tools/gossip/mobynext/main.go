// Command mobynext is a member of a Swarm's gossip by the networkdb of moby's newest tag.
package main

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/moby/moby/v2/daemon/libnetwork/networkdb"

	"github.com/longshore/longshore/test/e2e/gossip/peer"
)

type member struct {
	*peer.Own
	db   *networkdb.NetworkDB
	name string
}

func main() {
	if err := peer.Serve(os.Stdin, os.Stdout, &member{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Open implements peer.Member.
func (m *member) Open(name string, at netip.AddrPort, keys [][]byte) (err error) {
	c := networkdb.DefaultConfig()
	c.NodeID, c.BindAddr, c.AdvertiseAddr, c.BindPort, c.Keys = name, at.Addr().String(), at.Addr().String(), int(at.Port()), append([][]byte{}, keys...)
	if m.db, err = networkdb.New(c); err == nil {
		m.Own, m.name = peer.NewOwn(m.db, keys), name
	}
	return err
}

// Members implements peer.Member.
func (m *member) Members() (list []netip.Addr) {
	for _, p := range m.db.ClusterPeers() {
		if p.Name != m.name {
			list = append(list, p.IP)
		}
	}
	return list
}

// Watch implements peer.Member.
func (m *member) Watch(network string, say func(e peer.Entry, gone bool)) error {
	events, _ := m.db.Watch("", network)
	go func() {
		for e := range events.C {
			if e, ok := e.(networkdb.WatchEvent); ok && !m.Has(network, e.Table, e.Key) {
				say(peer.Entry{Network: network, Table: e.Table, Key: e.Key, Value: e.Value}, e.Value == nil)
			}
		}
	}()
	return nil
}
