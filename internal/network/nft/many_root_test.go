package nft_test

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/nft"
	"github.com/longshore/longshore/internal/roottest"
)

// TestManyFlows: when a backend goes, we do not hold all other flows of a machine, which any
// program may have, and connections to other backends stay.
func TestManyFlows(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		l := newLAN(t, 1, 2, 3)
		l.serve(2, 80)
		l.serve(3, 80)
		ns, vip := l.open(1), at4(100)
		b := nft.NewBalancer(nft.BalancerOptions{})
		set(t, b, ns, nft.Service{Addr: vip, Backends: of(at4, 2, 3)})
		conns := map[int]conn{}
		for range 2 {
			c := l.connect(1, vip, 80)
			conns[c.to] = c
		}
		const most = 60000
		l.machines[1].Do(t, func() error {
			s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(s) }()
			for port := range most {
				// A port at which nobody listens is answered by an error, which the next call returns.
				_ = unix.Sendto(s, []byte("x"), 0, &unix.SockaddrInet4{Port: port + 1, Addr: at4(2).As4()})
			}
			return nil
		})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := b.Set(ns, []nft.Service{{Addr: vip, Backends: of(at4, 2)}}); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if used := (after.TotalAlloc - before.TotalAlloc) / most; used > 400 {
			t.Errorf("%d bytes for each of what the machine has asked", used)
		}
		conns[2].echo(t)
		conns[3].reset(t)
	})
}
