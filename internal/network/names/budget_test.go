package names

import (
	"math"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// TestBudget: a burst is taken at once, then the rate holds, and an excess is reported once.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newBudget(nil)
		reports := 0
		l.exceeded = func() { reports++ }
		taken := 0
		for l.take() {
			taken++
		}
		if taken != questionBurst {
			t.Errorf("a burst of %d, want %d", taken, questionBurst)
		}
		begun := time.Now()
		for range questionRate {
			if !l.wait(t.Context()) {
				t.Fatal("the wait ended")
			}
		}
		if took := time.Since(begun); took < time.Second-time.Millisecond || took > time.Second+2*questionPause {
			t.Errorf("%d questions took %v", questionRate, took)
		}
		if reports != 1 {
			t.Errorf("%d reports, want 1", reports)
		}
	})
}

// flood is a socket at which questions arrive without end.
type flood struct {
	net.PacketConn
	question []byte
	closed   atomic.Bool
	limit    int64 // ends the flood; a server without a budget would read on forever
	read     atomic.Int64
}

func (f *flood) ReadFrom(b []byte) (int, net.Addr, error) {
	if f.closed.Load() || f.read.Load() >= f.limit {
		return 0, nil, net.ErrClosed
	}
	f.read.Add(1)
	return copy(b, f.question), &net.UDPAddr{}, nil
}
func (f *flood) WriteTo(b []byte, _ net.Addr) (int, error) { return len(b), nil }
func (f *flood) Close() error                              { f.closed.Store(true); return nil }

// TestAFloodIsReadAtTheRate: the server reads a sandbox's questions no faster than its budget allows, and
// without a budget all of them.
func TestAFloodIsReadAtTheRate(t *testing.T) {
	q := question(t, "db.", dnsmessage.TypeA, false)
	const all = 20 * questionBurst
	read := func(t *testing.T, bounded bool) int64 {
		f := &flood{question: q, limit: all}
		z := testZone()
		b := newBox(f, nil, asks{}, func(_ []string, q []byte, stream bool) ([]byte, error) { return Answer([]Zone{z}, q, stream) }, nil)
		if !bounded {
			b.budget.burst, b.budget.own.tokens = 2*all, 2*all
		}
		b.ended.Go(b.packets)
		<-time.After(time.Second)
		synctest.Wait()
		n := f.read.Load()
		_ = f.Close()
		b.cancel(errDropped)
		b.ended.Wait()
		return n
	}
	synctest.Test(t, func(t *testing.T) {
		if n := read(t, true); n > questionBurst+questionRate+1 || n < questionBurst+questionRate/2 {
			t.Errorf("%d questions were read in a second, want at most %d", n, questionBurst+questionRate)
		}
		if n := read(t, false); n != all {
			t.Errorf("without a budget %d questions were read, want %d", n, all)
		}
	})
}

// TestANeighbourOfAFlood has its answer at once, over both protocols, while the budget of another sandbox
// is used up.
func TestANeighbourOfAFlood(t *testing.T) {
	s := newServer(t)
	z := testZone()
	s.must(request{Op: opZone, Network: "a", Zone: &z})
	c := s.sandbox(request{Sandbox: "neighbour", Networks: []string{"a"}})
	q := question(t, "db.", dnsmessage.TypeA, false)
	f := &flood{question: q, limit: math.MaxInt64}
	b := alone(t, f, time.Hour)
	used := make(chan struct{})
	b.budget.exceeded = func() { close(used) }
	b.serve()
	<-used
	c.want("the neighbour", "Success 10.1.0.3", q)
}
