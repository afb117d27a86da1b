package rtnetlink

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
)

func ip(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %v: %v: %s", args, err, out)
	}
	return string(out)
}

// TestBesideTheIpProgram: the program ip shows the package's changes, and the other way round.
func TestBesideTheIpProgram(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		ip(t, "link", "add", "name", "first", "type", "veth", "peer", "name", "second")
		ip(t, "link", "set", "second", "up")
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/first/disable_ipv6", []byte("0"), 0); err != nil { // the host's default may differ
			t.Fatal(err)
		}
		ip(t, "addr", "add", "198.51.100.1/32", "peer", "198.51.100.2/32", "dev", "second")
		c, err := Open()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		links, err := c.Links()
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(links, func(l Link) bool { return l.Name == "first" })
		if at < 0 || len(links) < 3 || links[at].MTU != 1500 || len(links[at].MAC) != 6 || links[at].Stats == nil || links[at].Flags&unix.IFF_UP != 0 {
			t.Fatalf("%+v", links)
		}
		index := links[at].Index
		for what, err := range map[string]error{
			"MAC":  c.SetMAC(index, []byte{2, 0, 0, 0, 0, 9}),
			"name": c.SetName(index, "net0"),
			"MTU":  c.SetMTU(index, 1400),
			"up":   c.SetFlags(index, unix.IFF_UP|unix.IFF_NOARP, unix.IFF_UP|unix.IFF_NOARP),
		} {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		v4, v6 := netip.MustParsePrefix("192.0.2.7/24"), netip.MustParsePrefix("2001:db8::7/64")
		for _, p := range []netip.Prefix{v4, v6, v4} {
			if err := c.ReplaceAddress(Address{Link: index, Prefix: p}); err != nil {
				t.Errorf("%s: %v", p, err)
			}
		}
		out := ip(t, "addr", "show", "net0")
		for _, want := range []string{"NOARP", "UP", "mtu 1400", "02:00:00:00:00:09", "192.0.2.7/24 brd 192.0.2.255", "2001:db8::7/64"} {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in\n%s", want, out)
			}
		}
		addresses, err := c.Addresses()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"192.0.2.7/24", "2001:db8::7/64", "198.51.100.1/32"} { // and not the peer's
			if !strings.Contains(fmt.Sprint(addresses), want) {
				t.Errorf("no %s in %v", want, addresses)
			}
		}
		gateway := netip.MustParseAddr("192.0.2.1")
		for _, r := range []Route{
			{Link: index, Gateway: gateway, MTU: 1300},
			{Link: index, To: netip.MustParsePrefix("203.0.113.0/24"), Source: v4.Addr(), Scope: unix.RT_SCOPE_LINK},
			{Link: index, IPv6: true, Gateway: netip.MustParseAddr("2001:db8::1")},
		} {
			if err := c.ReplaceRoute(r); err != nil {
				t.Errorf("%+v: %v", r, err)
			}
		}
		out = ip(t, "route") + ip(t, "-6", "route")
		for _, want := range []string{"default via 192.0.2.1 dev net0 mtu 1300", "203.0.113.0/24 dev net0 scope link src 192.0.2.7", "default via 2001:db8::1 dev net0"} {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in\n%s", want, out)
			}
		}
		for ipv6, want := range map[bool]string{false: "192.0.2.1", true: "2001:db8::1"} {
			routes, err := c.Routes(ipv6)
			if i := slices.IndexFunc(routes, func(r Route) bool { return r.To.Bits() == 0 }); err != nil || i < 0 || routes[i].Gateway.String() != want || routes[i].Link != index || routes[i].To.Addr().Is4() == ipv6 {
				t.Errorf("IPv6 %t: %+v, %v", ipv6, routes, err)
			}
		}
		if err := c.ReplaceNeighbor(Neighbor{Address: gateway, MAC: []byte{2, 0, 0, 0, 0, 1}, Link: index, State: unix.NUD_PERMANENT}); err != nil {
			t.Error(err)
		}
		if out := ip(t, "neigh"); !strings.Contains(out, "192.0.2.1 dev net0 lladdr 02:00:00:00:00:01 PERMANENT") {
			t.Errorf("neighbours are\n%s", out)
		}
		if err := c.SetName(index, "second"); !errors.Is(err, unix.EEXIST) {
			t.Errorf("a name that another link has: %v", err)
		}
		if err := c.SetMTU(1<<20, 1400); !errors.Is(err, unix.ENODEV) {
			t.Errorf("a link that there is not: %v", err)
		}
		if links, err := c.Links(); err != nil || len(links) != 3 { // after refusals too
			t.Errorf("%v, %v", links, err)
		}
	})
}
