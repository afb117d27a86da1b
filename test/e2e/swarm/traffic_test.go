package swarm

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// beat is the time between two of the questions that traffic asks.
const beat = 250 * time.Millisecond

// pings are echo requests from inside of a namespace to an address.
type pings struct {
	what string
	conn net.PacketConn
	to   netip.Addr
	stop context.CancelFunc
	done sync.WaitGroup

	mu   sync.Mutex // guards sent, back
	sent []time.Time
	back map[int]time.Duration // by their numbers
}

// ping begins to ask an address from a task, each beat.
func (p placed) ping(t *testing.T, to netip.Addr) *pings {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	g := &pings{what: fmt.Sprintf("%s pings %s", p, to), to: to, stop: cancel, back: map[int]time.Duration{}}
	p.ns().Do(t, func() (err error) {
		g.conn, err = new(net.ListenConfig).ListenPacket(t.Context(), "ip4:icmp", "0.0.0.0")
		return err
	})
	id := uint16(time.Now().UnixNano())
	g.done.Go(func() { g.ask(ctx, id) })
	go g.hear(id)
	t.Cleanup(func() {
		cancel()
		_ = g.conn.Close()
	})
	return g
}

// ask sends a request each beat.
func (g *pings) ask(ctx context.Context, id uint16) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		g.mu.Lock()
		n := len(g.sent)
		g.sent = append(g.sent, time.Now())
		g.mu.Unlock()
		_, _ = g.conn.WriteTo(echo(id, uint16(n)), &net.IPAddr{IP: g.to.AsSlice()})
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// hear notes the answers until the connection is closed.
func (g *pings) hear(id uint16) {
	buf := make([]byte, 1500)
	for {
		n, from, err := g.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if n < 8 || buf[0] != 0 || binary.BigEndian.Uint16(buf[4:]) != id || from.String() != g.to.String() {
			continue
		}
		g.mu.Lock()
		// The numbers have 16 bits: two hours of beats.
		if k := int(binary.BigEndian.Uint16(buf[6:])); k < len(g.sent) && g.back[k] == 0 {
			g.back[k] = time.Since(g.sent[k])
		}
		g.mu.Unlock()
	}
}

// echo is an ICMP echo request.
func echo(id, seq uint16) []byte {
	b := make([]byte, 8, 64)
	b[0] = 8
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], seq)
	b = append(b, make([]byte, 56)...)
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum))
	return b
}

// lost are the moments of those that were not answered.
func (g *pings) lost() (at []time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for n, sent := range g.sent {
		if _, ok := g.back[n]; !ok {
			at = append(at, sent)
		}
	}
	return at
}

// end ends it, waits for answers that are under way, and returns how many were sent and which are lost.
func (g *pings) end() (sent int, lost []time.Time) {
	g.stop()
	g.done.Wait()
	deadline := time.NewTimer(calm)
	defer deadline.Stop()
	for lost = g.lost(); len(lost) > 0; lost = g.lost() {
		select {
		case <-time.After(beat):
			continue
		case <-deadline.C:
		}
		break
	}
	_ = g.conn.Close()
	return len(g.sent), lost
}

// gets are questions to a web server from inside of a namespace, one each beat.
type gets struct {
	what string
	stop context.CancelFunc
	done sync.WaitGroup

	mu    sync.Mutex // guards asked, by, wrong
	asked int
	by    map[string]int // answers, by their text
	wrong []string
}

// keepAsking begins to ask a web server from inside of a namespace.
func keepAsking(t *testing.T, what string, ns *networktest.Namespace, host string) *gets {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	g := &gets{what: what + " asks " + host, stop: cancel, by: map[string]int{}}
	g.done.Go(func() {
		tick := time.NewTicker(beat)
		defer tick.Stop()
		for {
			began := time.Now()
			got, err := getFrom(ns, host, calm)
			g.mu.Lock()
			g.asked++
			if err != nil {
				g.wrong = append(g.wrong, fmt.Sprintf("%s: %v after %.2f s", began.Format("05.00"), err, time.Since(began).Seconds()))
			} else {
				g.by[got]++
			}
			g.mu.Unlock()
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		g.done.Wait()
	})
	return g
}

// end ends it, and returns the number of requests and those without an answer.
func (g *gets) end() (asked int, wrong []string) {
	g.stop()
	g.done.Wait()
	return g.asked, g.wrong
}

// traffic is all requests and pings while something happens.
type traffic struct {
	t     *testing.T
	pings []*pings
	gets  []*gets
}

// between begins to ask every task of the others from each of run: by address, and the services by
// name from our nodes. It is between different nodes only.
func between(t *testing.T, run []placed) *traffic {
	t.Helper()
	r := &traffic{t: t}
	for _, p := range run {
		for _, q := range run {
			if p.node == q.node || !p.sees(q) {
				continue
			}
			for network, addr := range q.addrs {
				if network != "ingress" && p.addrs[network].IsValid() {
					r.pings = append(r.pings, p.ping(t, addr))
					r.gets = append(r.gets, keepAsking(t, p.String(), p.ns(), addr.String()))
					break
				}
			}
		}
	}
	return r
}

// whole ends it, and fails when anything was not answered.
func (r *traffic) whole() {
	r.t.Helper()
	for _, g := range r.pings {
		g.stop()
	}
	sent, asked := 0, 0
	for _, g := range r.pings {
		n, lost := g.end()
		if sent += n; len(lost) > 0 {
			at := []string{}
			for _, l := range lost {
				at = append(at, l.Format("05.00"))
			}
			r.t.Errorf("%s: %d of %d lost, at %s", g.what, len(lost), n, strings.Join(at, " "))
		}
	}
	for _, g := range r.gets {
		n, wrong := g.end()
		if asked += n; len(wrong) > 0 {
			r.t.Errorf("%s: %d of %d not answered: %s", g.what, len(wrong), n, strings.Join(wrong[:min(5, len(wrong))], "; "))
		}
	}
	r.t.Logf("%d pings, %d requests", sent, asked)
	if sent == 0 || asked == 0 {
		r.t.Error("nothing was asked")
	}
}

// answersFrom waits until a web server has been answered for by all of these tasks, and by no other.
func (x *mixed) answersFrom(what string, ns *networktest.Namespace, host string, tasks []string) {
	x.t.Helper()
	seen, began := map[string]int{}, time.Now()
	var last error
	defer func() {
		if x.t.Failed() {
			x.t.Logf("%s: %s was answered by %v, not %v; %v", what, host, seen, tasks, last)
			return
		}
		x.t.Logf("%s: %s is answered by all: after %.1f s", what, host, time.Since(began).Seconds())
	}()
	roottest.Eventually(x.t, what+" answers", func() bool {
		got, err := getFrom(ns, host, impatience)
		if last = err; err != nil {
			clear(seen)
			return false
		}
		if !slices.Contains(tasks, got) {
			clear(seen) // it may be on its way out
			last = fmt.Errorf("answered by %s", got)
			return false
		}
		seen[got]++
		return len(seen) == len(tasks)
	})
}
