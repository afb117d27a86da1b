package networkdb

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	lib "github.com/moby/moby/v2/daemon/libnetwork/networkdb"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
)

// TestAFlood: a member with the right key can announce as much as it likes. The records kept of a
// network are bounded, in number and in bytes, so is the log of the rest, and a removal makes room.
func TestAFlood(t *testing.T) {
	var logged bytes.Buffer
	w := watch{log: slog.New(slog.NewTextHandler(&logged, nil)), have: map[recordKey]knownRecord{}}
	told := 0 // the watcher's records
	event := func(key string, r gossip.Record) (taken bool) {
		t.Helper()
		ev := lib.WatchEvent{Table: "overlay_peer_table", NetworkID: "net", Key: key}
		if r != nil {
			table, value, err := gossip.Encode(r)
			if err != nil {
				t.Fatal(err)
			}
			ev.Table, ev.Value = table, value
		}
		c, ok := w.take(ev)
		switch {
		case ok && c.Gone:
			told--
		case ok:
			told++
		}
		return ok && !c.Gone
	}
	peer := func(n int) gossip.Peer {
		addr := netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
		return gossip.Peer{Addr: netip.PrefixFrom(addr, 8), MAC: fmt.Sprintf("02:42:0a:%02x:%02x:%02x", byte(n>>16), byte(n>>8), byte(n)), Tunnel: netip.MustParseAddr("192.0.2.2")}
	}
	for n := range maxRecords + 1000 {
		if taken := event(fmt.Sprint(n), peer(n)); taken != (n < maxRecords) {
			t.Fatalf("record %d is taken: %t", n, taken)
		}
	}
	if len(w.have) != maxRecords || told != maxRecords {
		t.Errorf("%d records are kept, %d are told", len(w.have), told)
	}
	if event("0", nil) || !event("another", peer(1)) || event("one more", peer(2)) {
		t.Error("what has gone does not make room for one other")
	}
	for key := range w.have {
		event(key.endpoint, nil)
	}
	if len(w.have) != 0 || w.size != 0 || told != 0 {
		t.Errorf("%d records of %d bytes are left, %d are told", len(w.have), w.size, told)
	}
	long := strings.Repeat("a", 240)
	big := gossip.Endpoint{Name: "web.1.x", Service: "web", Addr: netip.MustParseAddr("10.0.1.2")}
	for n := range 60 {
		big.Aliases = append(big.Aliases, fmt.Sprint(long, n))
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	taken := 0
	for n := range 2 * maxBytes / (60 * len(long)) {
		if event(fmt.Sprint("big", n), big) {
			taken++
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if w.size > maxBytes || taken != len(w.have) || w.size < maxBytes*9/10 {
		t.Errorf("%d records of %d bytes are kept, %d were taken", len(w.have), w.size, taken)
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 2*maxBytes {
		t.Errorf("they take %d bytes", grown)
	}
	// A longer one in place of a short one counts, too.
	event("big0", nil)
	short := big
	short.Aliases = nil
	for n := 0; event(fmt.Sprint("short", n), short); n++ {
		continue
	}
	if kept := len(w.have); event("short0", big) || len(w.have) != kept-1 || w.size > maxBytes {
		t.Errorf("a longer record is taken: %d of %d bytes", len(w.have), w.size)
	}
	if n := strings.Count(logged.String(), "left out"); n != maxWarnings {
		t.Errorf("%d lines about what is left out", n)
	}
}
