package network_test

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestStatsCountWhatTheSandboxSends: the stats are the sandbox's sent and received packets, not
// those of the host's end of its link, and a call for several returns the same as a call for one.
func TestStatsCountWhatTheSandboxSends(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		one, two := r.setup(1), r.setup(2)
		count := func(b box, with ...core.NetworkRequest) core.NetStats {
			t.Helper()
			got, err := r.net.Stats(t.Context(), append(with, b.req))
			if err != nil || len(got[b.req.Sandbox]) != 1 || len(got) != 1+len(with) {
				t.Fatalf("%+v, %v", got, err)
			}
			return got[b.req.Sandbox][0]
		}
		two.ns.Serve(t, "udp", 80)
		wantAnswer(t, one.ns, "udp", at(two.addr(true), 80), one.addr(true).String()) // from here on they know each other's MAC addresses
		before := count(one)
		const n = 200
		one.ns.Do(t, func() error {
			for range n { // nobody listens, and the kernel answers that some times per second
				if err := networktest.Send("udp", at(two.addr(true), 9)); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
					return err
				}
			}
			return nil
		})
		after := count(one, two.req)
		sent, received := after.TxPackets-before.TxPackets, after.RxPackets-before.RxPackets
		if sent < n || received >= n || after.TxBytes-before.TxBytes < n*uint64(len("knock")) {
			t.Errorf("%d datagrams sent: told of %d sent and %d received, from %+v to %+v", n, sent, received, before, after)
		}
		r.down(one)
		if got, err := r.net.Stats(t.Context(), []core.NetworkRequest{two.req}); err != nil || len(got) != 1 {
			t.Errorf("%+v, %v", got, err)
		}
		r.down(two)
	})
}

// TestStatsAreOfOurNamespace: the first thread of the process, which /proc/self describes, may have
// stayed in a namespace that it could not leave. The stats are of ours.
func TestStatsAreOfOurNamespace(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		one := r.setup(1)
		defer r.down(one)
		firstThreadInto(t, networktest.NewNamespace(t))
		got, err := r.net.Stats(t.Context(), []core.NetworkRequest{one.req})
		if err != nil || len(got[one.req.Sandbox]) != 1 {
			t.Fatalf("with the first thread in another namespace: %+v, %v", got, err)
		}
	})
}

// firstThreadInto puts the first thread of the process into a namespace, where it stays.
func firstThreadInto(t *testing.T, ns *networktest.Namespace) {
	t.Helper()
	entered := make(chan error)
	first <- func() {
		fd, err := unix.Open(ns.Path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			_ = unix.Close(fd)
		}
		entered <- err
	}
	if err := <-entered; err != nil {
		t.Fatal(err)
	}
	ours, err := os.Readlink("/proc/thread-self/ns/net")
	theirs, err2 := os.Readlink("/proc/self/ns/net")
	if ours == theirs || err != nil || err2 != nil {
		t.Fatalf("the first thread is in %s, this one in %s: %v, %v", theirs, ours, err, err2)
	}
}
