package pages

import (
	"encoding/json"
	"io"
	"time"

	"github.com/longshore/longshore/internal/sleep/ledger"
)

// Touch is a page that a thread has waited for.
type Touch struct {
	Pid  int    `json:"p"`
	Addr uint64 `json:"a"`
}

// MaxTouched bounds the number of blocks that are restored first, and with it the size of a message.
const MaxTouched = 512

// The server does not restore pages ahead while threads wait for pages one after the other, because both compete for
// processors. Its patience ends some time after its start, or when the program reads much of its memory: a garbage
// collector does.
const (
	quiet    = 5 * time.Millisecond // since the last fault
	patience = 250 * time.Millisecond
	burst    = 160                   // faults
	pause    = 20 * time.Millisecond // after it, faults are no part of the wake
)

// preloadTime bounds how long the first pages delay a wake.
const preloadTime = 12 * time.Millisecond

// hot is a list of pages that come before all others.
type hot struct {
	queue   []Touch // of the last wakes, not yet restored
	touched []Touch
	known   map[*ledger.Block]struct{} // those of touched
	full    bool                       // no further pages are touched
	faults  int                        // since the start
	begun   time.Time
	last    time.Time // of a fault
}

func newHot(queue []Touch) *hot {
	now := time.Now()
	return &hot{queue: queue, known: map[*ledger.Block]struct{}{}, begun: now, last: now}
}

// readHot reads the pages of the last wakes. It is no error if there are none.
func readHot(r io.Reader) (queue []Touch) {
	b, err := io.ReadAll(io.LimitReader(r, 2*maxPacket))
	if err != nil || json.Unmarshal(b, &queue) != nil {
		return nil
	}
	return queue
}

// fault notes a fault at an address in a segment.
func (h *hot) fault(p *space, g segment, addr uint64) {
	h.faults++
	before := h.last
	h.last = time.Now()
	if h.last.Sub(before) > pause && len(h.touched) > 0 || h.last.Sub(h.begun) > patience {
		h.full = true
	}
	block := &p.source.Blocks[g.block]
	if _, ok := h.known[block]; ok || p.forked || h.full || len(h.touched) == MaxTouched {
		return
	}
	h.known[block] = struct{}{}
	h.touched = append(h.touched, Touch{Pid: p.source.Pid, Addr: addr})
}

// next returns the next segment of the queue that is not restored.
func (h *hot) next(s *server) (*space, segment) {
	for len(h.queue) > 0 {
		t := h.queue[0]
		h.queue = h.queue[1:]
		for _, p := range s.spaces {
			if p.source.Pid != t.Pid || p.gone || p.missing == 0 || p.forked {
				continue
			}
			if i := p.find(t.Addr &^ (ledger.PageSize - 1)); i < len(p.segments) && p.lacks(p.segments[i]) && !s.ahead.has(p, &p.source.Blocks[p.segments[i].block]) {
				return p, p.segments[i]
			}
		}
	}
	return nil, segment{}
}

// wait returns how long the server waits for faults before it restores pages that are not in the queue.
func (h *hot) wait() time.Duration {
	if h.faults > burst {
		return 0
	}
	now := time.Now()
	return min(quiet-now.Sub(h.last), patience-now.Sub(h.begun))
}
