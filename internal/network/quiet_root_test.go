package network_test

import (
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestLinksAreQuiet: an end of a pair has an IPv6 address only if we set one. The kernel would add
// its own at once.
func TestLinksAreQuiet(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		for i, ipv6 := range []bool{false, true} {
			r := newRig(t, func(c *netconf.Config) { c.IPv6 = ipv6 })
			b := r.setup(i + 1)
			for link, addrs := range linkLocal(t, "") {
				if link != "longshore0" {
					t.Errorf("IPv6 %v: the host's %s has %s", ipv6, link, addrs)
				}
			}
			eth0 := func() bool { _, has := linkLocal(t, "nsenter --net="+b.ns.Path+" ")["eth0"]; return has }
			if ipv6 { // the kernel adds it a moment after the link is up
				roottest.Eventually(t, "eth0 has a link-local address", eth0)
			} else if eth0() {
				t.Error("without IPv6, eth0 has a link-local address")
			}
			r.down(b)
		}
	})
}

// linkLocal returns the link-local IPv6 addresses, by the link's name.
func linkLocal(t *testing.T, in string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for line := range strings.Lines(networktest.Run(t, in+"ip -6 -o address show scope link")) {
		f := strings.Fields(line)
		found[f[1]] = f[3]
	}
	return found
}
