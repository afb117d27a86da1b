package nft

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

func backends(addrs ...string) (list []Backend) {
	for _, a := range addrs {
		list = append(list, Backend{Addr: netip.MustParseAddr(a)})
	}
	return list
}

func TestServicesThatCannotBe(t *testing.T) {
	vip := netip.MustParseAddr("10.0.1.11")
	for name, list := range map[string][]Service{
		"nothing":               {{}},
		"address and port":      {{Addr: vip, Proto: unix.IPPROTO_TCP, Port: 80}},
		"port of no protocol":   {{Port: 80}},
		"protocol without port": {{Proto: unix.IPPROTO_TCP}},
		"no port in icmp":       {{Proto: unix.IPPROTO_ICMP, Port: 80}},
		"loopback":              {{Addr: netip.MustParseAddr("127.0.0.1")}},
		"every address":         {{Addr: netip.IPv4Unspecified()}},
		"multicast":             {{Addr: netip.MustParseAddr("224.0.0.1")}},
		"broadcast":             {{Addr: netip.MustParseAddr("255.255.255.255")}},
		"mapped":                {{Addr: netip.MustParseAddr("::ffff:10.0.1.11")}},
		"zone":                  {{Addr: netip.MustParseAddr("fe80::1%eth0")}},
		"twice":                 {{Addr: vip}, {Addr: vip, Backends: backends("10.0.1.2")}},
		"port twice":            {{Proto: unix.IPPROTO_TCP, Port: 80, Backends: backends("10.0.1.2")}, {Proto: unix.IPPROTO_TCP, Port: 80, Backends: backends("10.0.1.3")}},
		"itself":                {{Addr: vip, Backends: backends("10.0.1.11")}},
		"one leads to another":  {{Addr: vip, Backends: backends("10.0.1.12")}, {Addr: netip.MustParseAddr("10.0.1.12")}},
		"no backend":            {{Addr: vip, Backends: []Backend{{}}}},
		"backend of loopback":   {{Addr: vip, Backends: backends("127.0.0.1")}},
		"two families":          {{Addr: vip, Backends: backends("fd00::1")}},
		"port of two families":  {{Proto: unix.IPPROTO_TCP, Port: 80, Backends: backends("10.0.1.2", "fd00::1")}},
		"backend twice":         {{Addr: vip, Backends: backends("10.0.1.2", "10.0.1.2")}},
		"another port":          {{Addr: vip, Backends: []Backend{{Addr: netip.MustParseAddr("10.0.1.2"), Port: 80}}}},
	} {
		if _, err := checkServices(list); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := NewBalancer(BalancerOptions{}).Set(nil, []Service{{Proto: unix.IPPROTO_TCP, Port: 80, Backends: backends("10.0.1.2")}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a port where only addresses are looked for: %v", err)
	}
	good := []Service{
		{Addr: vip, Backends: backends("10.0.1.2", "10.0.1.3")},
		{Addr: netip.MustParseAddr("10.0.1.13")},
		{Addr: netip.MustParseAddr("fd00::1"), Backends: backends("fd00::2")},
		{Proto: unix.IPPROTO_TCP, Port: 80, Backends: backends("10.0.1.2")},
		{Proto: unix.IPPROTO_TCP, Port: 80, Backends: backends("fd00::2")},
		{Proto: unix.IPPROTO_UDP, Port: 80, Backends: []Backend{{Addr: vip.Next(), Port: 81}, {Addr: vip.Next(), Port: 82}}},
	}
	if all, err := checkServices(good); err != nil || len(all) != len(good) {
		t.Errorf("%d of %d, %v", len(all), len(good), err)
	}
}

// TestTurns: the order of backends does not depend on the list's; it begins at the client's first
// one, and leaves out those that drain.
func TestTurns(t *testing.T) {
	list := backends("10.0.1.4", "10.0.1.2", "10.0.1.3", "10.0.1.5")
	list[2].Draining = true
	for first, want := range [][]Backend{backends("10.0.1.2", "10.0.1.4", "10.0.1.5"), backends("10.0.1.4", "10.0.1.5", "10.0.1.2"), backends("10.0.1.5", "10.0.1.2", "10.0.1.4"), backends("10.0.1.2", "10.0.1.4", "10.0.1.5")} {
		if got := (Service{Backends: list}).taking(uint32(first)); !slices.Equal(got, want) {
			t.Errorf("first %d: %v, want %v", first, got, want)
		}
	}
	if got := (Service{Backends: list[2:3]}).taking(1<<31 + 1); got != nil {
		t.Errorf("%v takes connections", got)
	}
}

// TestChainsHaveNamesOfTheirOwn: two services of one chain would lead to each other's backends.
func TestChainsHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]serviceKey{}
	for _, k := range []serviceKey{
		{addr: netip.MustParseAddr("10.0.1.1"), is4: true},
		{addr: netip.MustParseAddr("10.0.11.1"), is4: true},
		{addr: netip.MustParseAddr("fd00::1")},
		{addr: netip.MustParseAddr("fd00::1:0")},
		{proto: 6, port: 80, is4: true},
		{proto: 6, port: 80},
		{proto: 17, port: 80, is4: true},
		{proto: 6, port: 8080, is4: true},
		{proto: 132, port: 80},
	} {
		if other, there := seen[k.chain()]; there {
			t.Errorf("%v and %v: %s", k, other, k.chain())
		}
		seen[k.chain()] = k
	}
}

func TestPortsThatCannotBeExposed(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.9")
	for name, ports := range map[string][]Exposed{
		"port 0": {{unix.IPPROTO_TCP, 0, 80}}, "target 0": {{unix.IPPROTO_TCP, 80, 0}}, "icmp": {{unix.IPPROTO_ICMP, 80, 80}}, "twice": {{unix.IPPROTO_TCP, 80, 80}, {unix.IPPROTO_TCP, 80, 81}},
	} {
		if err := Expose(nil, addr, ports); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Expose(nil, netip.MustParseAddr("127.0.0.1"), nil); !errdefs.IsInvalidArgument(err) {
		t.Errorf("loopback: %v", err)
	}
}
