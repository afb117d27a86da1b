package gossiptest

import (
	"net"
	"net/netip"
	"testing"
)

// Free returns an address of loopback at which nobody listens now, by TCP or UDP.
func Free(t testing.TB) netip.AddrPort {
	t.Helper()
	for {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		at := netip.MustParseAddrPort(l.Addr().String())
		u, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", at.String())
		_ = l.Close()
		if err == nil {
			_ = u.Close()
			return at
		}
	}
}
