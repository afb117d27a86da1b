package ports

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper/keepertest"
)

// freePort returns a port that no program of this machine has.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return netip.MustParseAddrPort(l.Addr().String()).Port()
}

// listen listens at an address as other programs do.
func listen(network, addr string, port uint16) error {
	at := net.JoinHostPort(addr, fmt.Sprint(port))
	if network[:3] == "udp" {
		p, err := net.ListenPacket(network, at)
		if err == nil {
			_ = p.Close()
		}
		return err
	}
	l, err := net.Listen(network, at)
	if err == nil {
		_ = l.Close()
	}
	return err
}

// wantTaken asserts whether other programs get a port.
func wantTaken(t *testing.T, proto string, port uint16, taken bool) {
	t.Helper()
	for _, at := range []struct{ network, addr string }{{proto, ""}, {proto + "4", "127.0.0.1"}, {proto + "4", "0.0.0.0"}} {
		if err := listen(at.network, at.addr, port); errors.Is(err, unix.EADDRINUSE) != taken || !taken && err != nil {
			t.Errorf("listen at %s %s:%d: %v, want it taken: %v", at.network, at.addr, port, err, taken)
		}
	}
}

func TestOtherProgramsDoNotGetAPort(t *testing.T) {
	port := freePort(t)
	all := []Claim{{Proto: "tcp", Port: port}, {Proto: "udp", Port: port}}
	var c Claims
	if err := c.Take("one", all); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Open(all); err != nil {
			t.Fatal(err)
		}
	}
	wantTaken(t, "tcp", port, true)
	wantTaken(t, "udp", port, true)
	for _, addr := range []string{"127.0.0.1", "::1"} {
		if conn, err := net.Dial("tcp", net.JoinHostPort(addr, fmt.Sprint(port))); !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EADDRNOTAVAIL) {
			t.Errorf("a connection to %s: %v, %v", addr, conn, err)
		}
	}
	var d Claims // another sandbox of another agent
	for _, err := range []error{d.Open(all[:1]), c.Take("two", all[1:])} {
		var of *core.PortError
		if !errdefs.IsFailedPrecondition(err) || !errors.As(err, &of) || of.Host != port || of.HostIP.IsValid() {
			t.Errorf("taken twice: %v", err)
		}
	}
	c.Drop("one")
	wantTaken(t, "tcp", port, false)
	wantTaken(t, "udp", port, false)
	if len(c.sockets)+len(d.sockets) > 0 {
		t.Errorf("left %v, %v", c.sockets, d.sockets)
	}
}

// TestTheHolderKeepsPorts: while there is no agent, and for the next one.
func TestTheHolderKeepsPorts(t *testing.T) {
	h := keepertest.NewHolder(t)
	var claims []Claim
	first := freePort(t)
	for i := range uint16(perName + 2) {
		claims = append(claims, Claim{Proto: "udp", IP: netip.MustParseAddr("127.0.0.1"), Port: first + i})
	}
	claims = append(claims, Claim{Proto: "tcp", Port: first})
	c := &Claims{Holder: h}
	if err := errors.Join(c.Take("one", claims), c.Open(claims)); err != nil {
		t.Fatal(err)
	}
	c.Hold("one")
	names := func(want ...string) {
		t.Helper()
		if got, err := h.Names(t.Context()); err != nil || !slices.Equal(got, want) {
			t.Errorf("the holder has %q, %v; want %q", got, err, want)
		}
	}
	names("ports/one/0", "ports/one/1")
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	wantTaken(t, "tcp", first, true)
	next := &Claims{Holder: h}
	if err := next.Take("one", claims); err != nil {
		t.Fatal(err)
	}
	next.Reopen("one", claims)
	if len(next.sockets) != len(claims) {
		t.Errorf("the next agent has %v", next.sockets)
	}
	next.Sweep(map[core.ID]bool{"one": true})
	names("ports/one/0", "ports/one/1")
	wantTaken(t, "tcp", first, true)
	next.Drop("one")
	names()
	wantTaken(t, "tcp", first, false)
	// An agent that finds nothing in the holder binds the ports itself, and the holder gets them.
	if err := next.Take("one", claims[:1]); err != nil {
		t.Fatal(err)
	}
	next.Reopen("one", claims[:1])
	names("ports/one/0")
	if err := listen("udp", "127.0.0.1", first); !errors.Is(err, unix.EADDRINUSE) {
		t.Error(err)
	}
	_ = next.Close()
	// A sandbox that is gone keeps no port.
	(&Claims{Holder: h}).Sweep(nil)
	names()
	if err := listen("udp", "127.0.0.1", first); err != nil {
		t.Error(err)
	}
}

func TestWithoutAHolder(t *testing.T) {
	port := freePort(t)
	c := &Claims{Holder: &keepertest.Holder{Old: true}}
	claim := []Claim{{Proto: "tcp", Port: port}}
	if err := errors.Join(c.Take("one", claim), c.Open(claim)); err != nil {
		t.Fatal(err)
	}
	c.Hold("one")
	wantTaken(t, "tcp", port, true)
	c.Drop("one")
	wantTaken(t, "tcp", port, false)
}

func TestFirst(t *testing.T) {
	first := freePort(t)
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", first))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	var c Claims
	want := Claim{Proto: "tcp", Port: first}
	if _, err := c.First("one", want, first); !errdefs.IsResourceExhausted(err) {
		t.Errorf("a range of one port, which a process has: %v", err)
	}
	got, err := c.First("one", want, first+20)
	if err != nil || got.Port <= first {
		t.Fatalf("%v, %v", got, err)
	}
	wantTaken(t, "tcp", got.Port, true)
	if other, err := c.First("two", want, first+20); err != nil || other.Port <= got.Port {
		t.Errorf("the next sandbox has %v, %v; the first one %v", other, err, got)
	}
	c.Drop("one")
	c.Drop("two")
	if _, err := c.First("one", Claim{Proto: "icmp", Port: 1}, 9); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
	if len(c.all)+len(c.sockets) > 0 {
		t.Errorf("left %v, %v", c.all, c.sockets)
	}
}
