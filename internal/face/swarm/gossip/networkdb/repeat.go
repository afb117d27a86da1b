package networkdb

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	lib "github.com/moby/moby/v2/daemon/libnetwork/networkdb"
)

// The times of repeat.
const (
	settled   = time.Second // after this time members that have come back know this one, too
	repeatFor = time.Minute // others may come back later than the first
)

// repeat joins all others and announces everything again when other members are back after a time without any, until
// Leave: a dockerd 28 has forgotten this member's announcements, and asks for them only after up to a minute. When
// only some were lost, they may be dead or cut off; then they ask.
func (d *DB) repeat() {
	events, cancel := d.db.Watch(lib.NodeTable, "")
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var met, alone bool
	var until time.Time
	for {
		// The library closes only after all that it tells was read.
		select {
		case <-events.Done():
			return
		case <-events.C:
			timer.Reset(settled)
			continue
		case <-timer.C:
		}
		select {
		case <-d.gone:
			continue
		default:
		}
		others := len(d.Members()) > 0
		switch {
		case !others:
			alone = met
		case alone:
			alone, until = false, time.Now().Add(repeatFor)
			d.announceAgain()
		case time.Now().Before(until):
			d.announceAgain()
		}
		met = met || others
	}
}

// announceAgain tells each other member which networks this one is in, and then announces its records as if they were
// new: the others have forgotten both while they took this member for dead.
func (d *DB) announceAgain() {
	var all []string
	for _, a := range d.Members() {
		all = append(all, netip.AddrPortFrom(a, d.own.Port()).String())
	}
	if err := d.db.Join(all); err != nil {
		d.log.Warn("could not announce this node at once to nodes that answer again", "error", err)
	}
	d.mu.Lock()
	networks := maps.Clone(d.networks)
	d.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(networks)) {
		n := networks[id]
		select {
		case <-n.begun:
		default:
			continue // nothing is announced there yet
		}
		n.mu.Lock()
		for key, value := range n.own {
			err := d.db.DeleteEntry(key.table, id, key.endpoint)
			if err == nil {
				err = d.db.CreateEntry(key.table, id, key.endpoint, value)
			}
			if err != nil {
				d.log.Warn("could not announce a record again", "network", id, "endpoint", key.endpoint, "error", err)
			}
		}
		n.mu.Unlock()
	}
}
