package guestagent

import (
	"context"
	"net"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/guest/vsock"
	"github.com/longshore/longshore/internal/roottest"
)

// tcpPort is HostPort for the tests, which have no vsock.
func tcpPort(a net.Addr) (uint32, bool) {
	at, ok := a.(*net.TCPAddr)
	return uint32(at.Port), ok
}

func dialFrom(t *testing.T, l net.Listener) (c net.Conn, port uint32) {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	port, _ = tcpPort(c.LocalAddr())
	return c, port
}

func atEnd(c net.Conn) bool {
	_, err := c.Read(make([]byte, 1))
	return err != nil
}

func TestStreamPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := NewStreamPort(l, tcpPort)
	defer p.Close()
	// A call may come before its connection is accepted.
	first, port := dialFrom(t, l)
	got, err := p.Take(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := got.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if b := make([]byte, 1); atEnd(first) {
		t.Errorf("%q was not sent by the connection that the port names", b)
	}
	_ = got.Close()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Take(gone, port); !errdefs.IsNotFound(err) {
		t.Errorf("the same port again: %v", err)
	}
	// The oldest ones end when too many wait.
	oldest, oldestPort := dialFrom(t, l)
	for range maxWaiting {
		dialFrom(t, l)
	}
	if !atEnd(oldest) {
		t.Error("the oldest connection has not ended")
	}
	if _, err := p.Take(gone, oldestPort); !errdefs.IsNotFound(err) {
		t.Errorf("the oldest one's port: %v", err)
	}
	left, _ := dialFrom(t, l)
	p.Close()
	if !atEnd(left) {
		t.Error("a connection stays open when the port is closed")
	}
	if _, err := p.Take(t.Context(), 1); !errdefs.IsNotFound(err) {
		t.Errorf("of a closed port: %v", err)
	}
}

// TestAStreamPortIsForOnePeer closes the connections of others, as those of a container that connects to the guest's own
// address. HostPort tells them apart.
func TestAStreamPortIsForOnePeer(t *testing.T) {
	for a, want := range map[net.Addr]bool{vsock.Addr{CID: vsock.Host, Port: 7}: true, vsock.Addr{CID: 1, Port: 7}: false, vsock.Addr{CID: 3, Port: 7}: false, &net.TCPAddr{}: false} {
		if _, ok := HostPort(a); ok != want {
			t.Errorf("%v is the host's: %v", a, ok)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := NewStreamPort(l, func(net.Addr) (uint32, bool) { return 0, false })
	defer p.Close()
	c, _ := dialFrom(t, l)
	roottest.Eventually(t, "it is closed", func() bool { return atEnd(c) })
}
