package network_test

import (
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestAFloodOfQuestionsLeavesOthersTheirAnswers: one sandbox asks without pause, the questions of
// another one are all answered. The node hears how many of the first were not.
func TestAFloodOfQuestionsLeavesOthersTheirAnswers(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		var unanswered atomic.Pointer[map[core.ID]uint64]
		r := newRig(t, nil)
		r.names = &names.Options{
			Dir: filepath.Join(r.dir, "names"), Command: []string{"/proc/self/exe", names.Arg}, Health: 100 * time.Millisecond,
			Unanswered: func(all map[core.ID]uint64) { unanswered.Store(&all) },
		}
		r.start()
		r.define(core.NetworkDefinition{Name: "app"})
		up := func(n int) box {
			ns := networktest.NewNamespace(t)
			req := r.request(ns, n)
			req.Config.Name = "app"
			return r.do(ns, req)
		}
		loud, quiet := up(1), up(2)
		want := quiet.addr(true).String()
		if err := r.net.SetNames(t.Context(), "app", map[string][]netip.Addr{"db": quiet.req.Last.Addrs}, nil); err != nil {
			t.Fatal(err)
		}
		server := nameServer(t)
		conns := make([]*net.UDPConn, 4)
		for i := range conns {
			loud.ns.Do(t, func() (err error) {
				conns[i], err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(names.Address(), 53)))
				return err
			})
		}
		question := questionOf(t, "db")
		var sent atomic.Int64
		var floods sync.WaitGroup
		for _, c := range conns {
			floods.Go(func() { // until the socket is closed
				for {
					if _, err := c.Write(question); err == nil {
						sent.Add(1)
					} else if c.SetWriteDeadline(time.Time{}) != nil {
						return
					}
				}
			})
		}
		stop := func() {
			for _, c := range conns {
				_ = c.Close()
			}
			floods.Wait()
		}
		defer stop()
		dropped := func(id core.ID) uint64 {
			if all := unanswered.Load(); all != nil {
				return (*all)[id]
			}
			return 0
		}
		roottest.Eventually(t, "the flood is dropped", func() bool { return dropped(loud.req.Sandbox) > 1000 })
		slowest, began, used := time.Duration(0), time.Now(), cpuTime(t, server)
		for range 1000 {
			begun := time.Now()
			if got := quiet.ask(t, "db")(); got != want {
				t.Fatalf("db is %s, want %s", got, want)
			}
			slowest = max(slowest, time.Since(begun))
		}
		share := 100 * float64(cpuTime(t, server)-used) / float64(time.Since(began))
		stop()
		t.Logf("%d questions were sent, %d dropped; the slowest answer to the other took %v; the server used %.0f %% of a CPU", sent.Load(), dropped(loud.req.Sandbox), slowest, share)
		if n := dropped(quiet.req.Sandbox); n > 0 {
			t.Errorf("%d questions of the quiet sandbox were dropped", n)
		}
		if now := nameServer(t); now != server {
			t.Errorf("the name server is process %d, and was %d", now, server)
		}
		r.down(loud)
		r.down(quiet)
	})
}

// cpuTime returns the time that a process has run.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	clock := int32(^uint32(pid)<<3 | 2) // as clock_getcpuclockid of the C library
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}
