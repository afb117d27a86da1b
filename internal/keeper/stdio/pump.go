package stdio

import (
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// outLimit is the size at which a batch of formatted records is written. The buffer
// has room for one more record.
const outLimit = 64 << 10

// Source is one stream of output.
type Source struct {
	FD     int
	TTY    bool
	Stderr bool
	// Serial identifies the process for the life of the keeper and its successors.
	Serial uint64
	// Sinks are the process's sinks, in their order; a nil one does not take
	// this stream.
	Sinks []*Sink
	// Taps get a copy of the output from now on; the process never waits for them.
	Taps []*Tap
	// AtOnce makes unfinished lines be written without waiting for their newline.
	AtOnce bool

	part time.Time // until when an unfinished line waits in the pipe
	room int       // size of the pipe, once it was read
}

// Tap is the pipe of an attached client.
type Tap struct {
	FD   int
	Gone bool // the reader has gone
}

// what describes one sink's share of a transaction.
type what struct {
	data, ts []byte
	stderr   bool
	out      []byte
}

// Pump carries out transactions, one after the other.
type Pump struct {
	j   *Journal
	out []byte
	now func() time.Time
	ts  [stampLen]byte
}

// NewPump returns a pump over a journal that was recovered.
func NewPump(j *Journal) *Pump {
	return &Pump{j: j, out: make([]byte, 0, outLimit+maxText+overhead), now: time.Now}
}

func (p *Pump) stamp() []byte { return stamp(p.ts[:0], p.now()) }

// Move reads once from a source, at most 64 KiB, and writes that to its sinks and
// taps. An unfinished line may stay in the pipe: see Source.Part. Move returns how
// many bytes it moved, 0 if there is nothing now, and how many of them a sink did not
// take.
func (p *Pump) Move(s *Source) (moved int, lost uint64) {
	var data []byte
	most := chunk
	if s.waitsForLines() {
		if most, data = p.cut(s); most == 0 {
			return 0, 0
		}
	} else {
		s.part = time.Time{}
	}
	buf := p.j.begin(s, p.stamp(), most, data)
	if buf == nil {
		return 0, 0
	}
	var n int
	for {
		var err error
		n, err = unix.Read(s.FD, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			p.j.set(idle)
			return 0, 0
		}
		break
	}
	atomic.StoreUint32(&p.j.h.n, uint32(n))
	lost = p.deliver(s, buf[:n], (*Sink).put)
	for _, t := range s.Taps {
		t.offer(buf[:n])
	}
	return n, lost
}

// deliver is the writing half of a transaction.
func (p *Pump) deliver(s *Source, data []byte, put func(*Sink, *slot, what) int) (lost uint64) {
	p.j.set(writing)
	w := what{data: data, ts: p.j.h.ts[:stampLen], stderr: s.Stderr, out: p.out}
	for i, k := range s.Sinks {
		if k == nil || i >= MaxSinks {
			continue
		}
		before := k.lost
		lost = max(lost, uint64(put(k, &p.j.h.slots[i], w)))
		if k.lost != before {
			p.j.unmarked(s.Serial, i, k)
		}
	}
	if lost > 0 {
		p.j.addLost(s.Serial, lost)
	}
	p.j.set(idle)
	return lost
}

// Recover completes the transaction that a crash cut short. find returns a process's
// source, or nil if the process is not known any more. Recover reports whether it
// wrote anything.
func (p *Pump) Recover(find func(serial uint64, stderr bool) *Source) bool {
	state := atomic.LoadUint32(&p.j.h.state)
	if state != reading && state != writing {
		return false
	}
	n := int(min(p.j.h.n, chunk))
	if state == reading {
		n = p.j.consumed()
	}
	s := find(p.j.h.serial, p.j.h.stderr != 0)
	if n == 0 || s == nil {
		p.j.set(idle)
		return false
	}
	p.deliver(s, p.j.data[:n], (*Sink).redo)
	return true
}

// End ends a process's sinks; see Sink.End. It returns those with content that still needs a
// reader.
func (p *Pump) End(sinks []*Sink) (waiting []*Sink) {
	for _, k := range sinks {
		if k.End(p.stamp()) {
			waiting = append(waiting, k)
		}
	}
	return waiting
}

// offer gives a tap as much as it has room for.
func (t *Tap) offer(b []byte) {
	if t.Gone {
		return
	}
	if _, err := writeSome(t.FD, b); errors.Is(err, unix.EPIPE) {
		t.Gone = true
	}
}

func storeState(p *uint32, v uint32) { atomic.StoreUint32(p, v) }
