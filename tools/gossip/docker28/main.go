// Command docker28 is a member of a Swarm's gossip by the networkdb of docker 28.
package main

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/docker/docker/libnetwork/networkdb"

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
		if a, err := netip.ParseAddr(p.IP); err == nil && p.Name != m.name {
			list = append(list, a)
		}
	}
	return list
}

// Watch implements peer.Member. This version tells of changes alone, so what there is is read after it has begun to.
func (m *member) Watch(network string, say func(e peer.Entry, gone bool)) error {
	events, _ := m.db.Watch("", network)
	tell := func(table, key string, value []byte, gone bool) {
		if !m.Has(network, table, key) {
			say(peer.Entry{Network: network, Table: table, Key: key, Value: value}, gone)
		}
	}
	for _, table := range []string{"overlay_peer_table", "endpoint_table"} {
		for key, e := range m.db.GetTableByNetwork(table, network) {
			tell(table, key, e.Value, false)
		}
	}
	go func() {
		for {
			switch e := (<-events.C).(type) {
			case networkdb.CreateEvent:
				tell(e.Table, e.Key, e.Value, false)
			case networkdb.UpdateEvent:
				tell(e.Table, e.Key, e.Value, false)
			case networkdb.DeleteEvent:
				tell(e.Table, e.Key, e.Value, true)
			}
		}
	}()
	return nil
}
