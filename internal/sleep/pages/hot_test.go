package pages

import (
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/sleep/ledger"
)

// TestHotPages: the pages of the queue come in its order, and those that the program has or that are unknown are left out. Faults
// behind a pause are not noted.
func TestHotPages(t *testing.T) {
	source := &ledger.Space{Pid: 7}
	p := &space{source: source, has: make(ledger.Bitmap, 8), missing: 24}
	for i := range 3 {
		addr := uint64(i+1) << 20
		source.Blocks = append(source.Blocks, ledger.Block{Addr: addr, Pages: 8})
		p.segments = append(p.segments, segment{addr: addr, pages: 8, block: i, bit: uint64(8 * i)})
	}
	for page := range uint64(8) { // the process has the second block
		p.set(8 + page)
	}
	s := &server{spaces: []*space{p}, ahead: &ahead{}}
	h := newHot(readHot(strings.NewReader(`[{"p":7,"a":3149824},{"p":8,"a":1048576},{"p":7,"a":2097152},{"p":7,"a":1048576},{"p":7,"a":99999999}]`)))
	var got []int
	for {
		q, g := h.next(s)
		if q == nil {
			break
		}
		got = append(got, g.block)
	}
	if len(got) != 2 || got[0] != 2 || got[1] != 0 {
		t.Errorf("the blocks %v come first, want 2 and 0", got)
	}
	h.fault(p, p.segments[2], 3<<20+5000)
	h.fault(p, p.segments[2], 3<<20)
	h.last = h.last.Add(-2 * pause)
	h.fault(p, p.segments[0], 1<<20)
	if len(h.touched) != 1 || h.touched[0] != (Touch{Pid: 7, Addr: 3<<20 + 5000}) {
		t.Errorf("touched: %v", h.touched)
	}
	if w := h.wait(); w <= 0 || w > quiet {
		t.Errorf("directly after a fault the server waits for %v", w)
	}
	h.last, h.begun = time.Now(), time.Now().Add(-2*patience)
	if w := h.wait(); w > 0 {
		t.Errorf("when its patience has ended, the server waits for %v", w)
	}
	h = newHot(nil)
	for i := range burst + 1 {
		h.fault(p, p.segments[0], uint64(i)<<12)
	}
	if w := h.wait(); w > 0 {
		t.Errorf("after %d faults the server waits for %v", burst+1, w)
	}
}
