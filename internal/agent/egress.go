package agent

import (
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/egress"
	"github.com/longshore/longshore/internal/engine/networks"
	"github.com/longshore/longshore/internal/engine/scope"
)

// lastRefused returns the last refusals of a sandbox's egress list, oldest first.
func lastRefused(n *node, id core.ID) (list []core.EgressRefusal) {
	f, err := os.Open(n.network.EgressLog(id))
	var records []egress.Record
	if err == nil {
		defer func() { _ = f.Close() }()
		records, err = egress.LastRefused(f)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.log.Warn("could not read the egress log of a sandbox", "sandbox", string(id), "error", err.Error())
	}
	for _, r := range records {
		list = append(list, core.EgressRefusal{At: r.Time, Kind: r.Kind, Name: r.Name, Addr: r.Addr, Proto: r.Proto, Port: r.Port, UID: r.UID, Count: r.Count, Reason: r.Reason})
	}
	return list
}

// The bounds of the events about refusals. A round is a health check of the name server.
const (
	maxAnnounced = 100 // of one sandbox
	roundEvents  = 5   // of one sandbox in a round
	roundBoxes   = 20  // sandboxes with events in a round
)

// refusals announces the names and connections that egress lists refuse: each one once.
type refusals struct {
	records scope.Records
	last    func(core.ID) []core.EgressRefusal
	log     *slog.Logger
	since   time.Time // the start of the agent
	boxes   map[core.ID]*announced
}

// announced has the number of a sandbox's refusals, and the notes of its events.
type announced struct {
	count uint64
	seen  map[string]bool
}

// round announces new refusals. all has their numbers by sandboxes.
func (r *refusals) round(all map[core.ID]uint64) {
	for id := range r.boxes {
		if _, ok := all[id]; !ok {
			delete(r.boxes, id)
		}
	}
	busy := 0
	for id, count := range all {
		b := r.boxes[id]
		if b == nil {
			b = &announced{seen: map[string]bool{}}
			r.boxes[id] = b
		}
		if b.count == count || len(b.seen) >= maxAnnounced {
			continue
		}
		if busy++; busy > roundBoxes {
			return
		}
		var notes []string
		for _, refused := range r.last(id) {
			note := "the egress list refused " + refusalText(refused)
			if len(notes) == roundEvents || len(b.seen) >= maxAnnounced {
				break
			}
			if refused.At.After(r.since) && !b.seen[note] {
				b.seen[note] = true
				notes = append(notes, note)
			}
		}
		if len(notes) < roundEvents {
			b.count = count
		}
		if len(notes) == 0 {
			continue
		}
		if err := networks.AnnounceRefused(r.records, id, notes); err != nil {
			r.log.Warn("could not announce the refusals of an egress list", "sandbox", string(id), "error", err.Error())
		}
	}
}

// refusalText returns the name or the destination of a refusal. The name is a workload's.
func refusalText(r core.EgressRefusal) string {
	name := r.Name
	if name != "" && !egress.ValidName(name) {
		name = strconv.QuoteToASCII(name[:min(len(name), 253)])
	}
	if !r.Addr.IsValid() {
		return name
	}
	at := r.Addr.String()
	if r.Port > 0 {
		at = netip.AddrPortFrom(r.Addr, r.Port).String()
	}
	return strings.TrimSpace(strings.Join([]string{name, r.Proto, at}, " "))
}
