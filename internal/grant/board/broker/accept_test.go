package broker

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
)

// TestAnAgentThatCannotBeAcceptedWaits: while the process can open no more descriptors, the board does
// not try to accept an agent again and again. Afterwards it accepts the agent.
func TestAnAgentThatCannotBeAcceptedWaits(t *testing.T) {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: t.TempDir() + "/s", Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	b, err := newBroker(int(f.Fd()), fileLimit, "")
	if err != nil {
		t.Fatal(err)
	}
	agent, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: l.Addr().String(), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = agent.Close() }()
	var events [4]unix.EpollEvent
	// wait returns how many descriptors have events.
	wait := func(ms int) int {
		t.Helper()
		n, err := unix.EpollWait(b.ep, events[:], ms)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events[:n] {
			b.handle(b.peers[int(e.Fd)].peer, e.Events)
		}
		return n
	}

	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	first, second := wait(0), wait(0)
	waits := b.pause()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if first != 1 || second != 0 {
		t.Errorf("%d and then %d descriptors had events, want 1 and then none", first, second)
	}
	if waits <= 0 || waits > int(acceptPause/time.Millisecond)+1 || b.agents != 0 {
		t.Errorf("it waits for %d ms and has %d agents", waits, b.agents)
	}
	roottest.Eventually(t, "the pause is over", func() bool { b.acceptAgain(); return b.pause() < 0 })
	if n := wait(0); n != 1 || b.agents != 1 {
		t.Errorf("after the shortage %d descriptors had events, and there are %d agents", n, b.agents)
	}
}
