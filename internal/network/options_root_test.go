package network_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper/keepertest"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// in sets up a sandbox on a network, with a server at port 80.
func (r *rig) in(n int, network string, ports ...core.Port) box {
	r.t.Helper()
	ns := networktest.NewNamespace(r.t)
	req := r.request(ns, n, ports...)
	req.Config.Name = network
	b := r.do(ns, req)
	ns.Serve(r.t, "tcp", 80)
	return b
}

// wantReach asserts whether a sandbox gets an answer from an address.
func wantReach(t *testing.T, from box, to netip.Addr, reaches bool) {
	t.Helper()
	var err error
	if reaches {
		_, err = ask(from.ns, "tcp", at(to, 80))
	} else {
		err = from.ns.Try(func() error { return connect(to, 80) })
	}
	if (err == nil) != reaches {
		t.Errorf("%s asks %s: %v, want an answer: %v", from.addr(true), to, err, reaches)
	}
}

// connect connects to a port of an IPv4 address that must not be reached, and gives up after a short time.
func connect(to netip.Addr, port int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Usec: 300_000}); err != nil {
		return err
	}
	return unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: to.As4()})
}

// TestIsolatedSandboxesDoNotReachEachOther: not through the bridge, the host or published ports, also after their links were taken
// off the bridge. They reach other machines, and the host reaches their published ports.
func TestIsolatedSandboxesDoNotReachEachOther(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		out := newOutside(t)
		out.ns.Serve(t, "tcp", 80)
		r := newRig(t, nil)
		r.define(core.NetworkDefinition{Name: "apart", Isolated: true})
		r.define(core.NetworkDefinition{Name: "inside", Isolated: true, Internal: true})
		r.define(core.NetworkDefinition{Name: "app"})
		one, two := r.in(1, "apart"), r.in(2, "apart", port("tcp", 18080, 80))
		apart := func(when string) {
			t.Helper()
			t.Log(when)
			wantReach(t, one, two.addr(true), false)
			wantReach(t, one, out.addr4, true)
			if err := one.ns.Try(func() error { return connect(out.host4, 18080) }); err == nil {
				t.Error("it reaches the other one's published port")
			}
			if _, err := networktest.Ask("tcp", "127.0.0.1:18080"); err != nil {
				t.Errorf("the published port from the host: %v", err)
			}
		}
		apart("at first")
		// The gateway forwards nothing back to the bridge.
		if ip := one.ip(t, "route", "add", two.addr(true).String()+"/32", "via", gatewayOf(one)); ip != "" {
			t.Fatal(ip)
		}
		apart("by the gateway")
		for _, b := range []box{one, two} {
			networktest.Run(t, "ip link set "+r.linkOf(b, "apart")+" nomaster")
		}
		r.start()
		if err := r.net.Recover(t.Context(), []core.NetworkRequest{one.req, two.req}); err != nil {
			t.Fatal(err)
		}
		apart("after a recovery")
		three, four := r.in(3, "inside"), r.in(4, "inside")
		wantReach(t, three, four.addr(true), false)
		five, six := r.in(5, "app"), r.in(6, "app")
		wantReach(t, five, six.addr(true), true)
		for _, b := range []box{one, two, three, four, five, six} {
			r.down(b)
		}
	})
}

func gatewayOf(b box) string { return b.req.Last.Gateways[0].String() }

// linkOf returns the name of the host's end of a sandbox's link.
func (r *rig) linkOf(b box, network string) string {
	r.t.Helper()
	peer := b.ip(r.t, "-o", "link", "show", "type", "veth") // N: eth0@ifINDEX: …
	_, index, _ := strings.Cut(peer, "@if")
	index, _, _ = strings.Cut(index, ":")
	for line := range strings.Lines(networktest.Run(r.t, "ip -o link show type veth")) {
		if number, rest, _ := strings.Cut(line, ": "); number == index {
			name, _, _ := strings.Cut(rest, "@")
			return name
		}
	}
	r.t.Fatalf("sandbox on %s has no link: %q", network, peer)
	return ""
}

// TestBridgesWithNamesOfTheirOwn: they are as separate from each other, and from other networks, as those with names
// that were chosen for them, and a name that another link has is refused.
func TestBridgesWithNamesOfTheirOwn(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.define(core.NetworkDefinition{Name: "one", Interface: "br-one"})
		r.define(core.NetworkDefinition{Name: "two", Interface: "br-two"})
		r.define(core.NetworkDefinition{Name: "three"})
		boxes := []box{r.in(1, "one"), r.in(2, "two"), r.in(3, "three"), r.in(4, core.NetworkDefault)}
		apart := func() {
			t.Helper()
			for i, from := range boxes {
				for j, to := range boxes {
					wantReach(t, from, to.addr(true), i == j)
				}
			}
		}
		apart()
		if got := networktest.Run(t, "ip -o link show br-one"); !strings.Contains(got, "br-one") {
			t.Error(got)
		}
		r.start()
		var live []core.NetworkRequest
		for _, b := range boxes {
			live = append(live, b.req)
		}
		if err := r.net.Recover(t.Context(), live); err != nil {
			t.Fatal(err)
		}
		apart()
		networktest.Run(t, "ip link add other type bridge")
		networktest.Run(t, "ip addr add 198.51.100.1/24 dev other")
		for name, is := range map[string]func(error) bool{"other": errdefs.IsAlreadyExists, "br-one": errdefs.IsAlreadyExists, "a name that is too long": errdefs.IsInvalidArgument, "lsu-1": errdefs.IsInvalidArgument, "a/b": errdefs.IsInvalidArgument} {
			if _, err := r.net.Define(t.Context(), core.NetworkDefinition{Name: "four", Interface: name}); !is(err) {
				t.Errorf("bridge %q: %v", name, err)
			}
		}
		// Another program may have made one of that name since.
		r.define(core.NetworkDefinition{Name: "later", Interface: "br-later"})
		networktest.Run(t, "ip link add br-later type bridge")
		req := r.request(networktest.NewNamespace(t), 5)
		req.Config.Name = "later"
		if _, err := r.net.Setup(t.Context(), req); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("a bridge of another program: %v", err)
		}
		networktest.Run(t, "ip link del br-later")
		for i, b := range boxes {
			r.down(b)
			if i < 3 {
				if err := r.net.Undefine(t.Context(), b.req.Config.Name); err != nil {
					t.Error(err)
				}
			}
		}
		if got := networktest.Run(t, "ip -o link show type bridge"); strings.Contains(got, "br-") || strings.Contains(got, "lsu-") || !strings.Contains(got, "other") {
			t.Errorf("left: %s", got)
		}
	})
}

// TestNetworksWithoutMasquerading: another machine sees the sandbox's own address.
func TestNetworksWithoutMasquerading(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		out := newOutside(t)
		out.ns.Serve(t, "tcp", 80)
		r := newRig(t, nil)
		r.define(core.NetworkDefinition{Name: "hidden"})
		r.define(core.NetworkDefinition{Name: "seen", NoMasquerade: true})
		hidden, seen := r.in(1, "hidden"), r.in(2, "seen")
		networktest.Run(t, "nsenter --net="+out.ns.Path+" ip route add default via "+out.host4.String())
		wantAnswer(t, hidden.ns, "tcp", at(out.addr4, 80), out.host4.String())
		wantAnswer(t, seen.ns, "tcp", at(out.addr4, 80), seen.addr(true).String())
		r.down(hidden)
		r.down(seen)
	})
}

// TestTheAddressOfHostPorts: ports that name no address are at the network's own, and others where they say.
func TestTheAddressOfHostPorts(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		out := newOutside(t)
		r := newRig(t, nil)
		r.define(core.NetworkDefinition{Name: "app", HostIP: netip.MustParseAddr("127.0.0.1")})
		b := r.in(1, "app", port("tcp", 18080, 80), core.Port{Proto: "tcp", Host: 18081, Container: 80, HostIP: out.host4})
		for to, reaches := range map[string]bool{"127.0.0.1:18080": true, at(out.host4, 18080): false, "127.0.0.1:18081": false, at(out.host4, 18081): true} {
			ap := netip.MustParseAddrPort(to)
			if err := connect(ap.Addr(), int(ap.Port())); (err == nil) != reaches {
				t.Errorf("%s: %v, want an answer: %v", to, err, reaches)
			}
		}
		if got := b.req.Last.Ports[0].HostIP.String(); got != "127.0.0.1" {
			t.Errorf("the status says %s", got)
		}
		r.down(b)
		if _, err := r.net.Define(t.Context(), core.NetworkDefinition{Name: "six", HostIP: netip.MustParseAddr("::1")}); !errdefs.IsInvalidArgument(err) {
			t.Error(err)
		}
	})
}

// TestNetworksWithoutIPv4 have addresses of IPv6 only.
func TestNetworksWithoutIPv4(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.define(core.NetworkDefinition{Name: "six", NoIPv4: true, IPv6: true})
		one, two := r.in(1, "six"), r.in(2, "six")
		if len(one.req.Last.Addrs) != 1 || !one.addr(false).Is6() {
			t.Errorf("addresses %v", one.req.Last.Addrs)
		}
		if _, err := ask(one.ns, "tcp", at(two.addr(false), 80)); err != nil {
			t.Error(err)
		}
		r.down(one)
		r.down(two)
		for _, def := range []core.NetworkDefinition{
			{Name: "none", NoIPv4: true}, {Name: "four", NoIPv4: true, IPv6: true, Subnets: []core.Subnet{{Range: netip.MustParsePrefix("198.51.100.0/24")}}},
		} {
			if _, err := r.net.Define(t.Context(), def); !errdefs.IsInvalidArgument(err) {
				t.Errorf("%s: %v", def.Name, err)
			}
		}
	})
}

// TestPublishedPortsAreTaken: other programs of the host do not get a sandbox's port, also while there is no agent, and
// connections go to the sandbox. It is free again when the sandbox is gone.
func TestPublishedPortsAreTaken(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		h := keepertest.NewHolder(t)
		r := newRig(t, nil)
		r.holder = h
		r.start()
		ns := networktest.NewNamespace(t)
		b := r.do(ns, r.request(ns, 1, port("tcp", 18080, 80), port("udp", 18053, 53), core.Port{Proto: "tcp", Host: 18080, HostLast: 18082, Container: 81}, core.Port{Proto: "tcp", Container: 82}))
		ns.Serve(t, "tcp", 80)
		ns.Serve(t, "udp", 53)
		ns.Serve(t, "tcp", 81)
		if p := b.req.Last.Ports[2]; p.Host != 18081 || p.HostLast != 0 {
			t.Errorf("chosen of a range: %+v", p)
		}
		chosen := b.req.Last.Ports[3].Host
		taken := func(when string, want bool) {
			t.Helper()
			for _, n := range []uint16{18080, 18081, chosen} {
				l, err := net.Listen("tcp", fmt.Sprintf(":%d", n))
				if err == nil {
					_ = l.Close()
				}
				if errors.Is(err, unix.EADDRINUSE) != want {
					t.Errorf("%s: listen at %d: %v", when, n, err)
				}
			}
			p, err := net.ListenPacket("udp", ":18053")
			if err == nil {
				_ = p.Close()
			}
			if errors.Is(err, unix.EADDRINUSE) != want {
				t.Errorf("%s: listen at 18053: %v", when, err)
			}
		}
		reach := func(when string) {
			t.Helper()
			for _, n := range []int{18080, 18081} {
				if _, err := networktest.Ask("tcp", fmt.Sprintf("127.0.0.1:%d", n)); err != nil {
					t.Errorf("%s: %v", when, err)
				}
			}
			if _, err := networktest.Ask("udp", "127.0.0.1:18053"); err != nil {
				t.Errorf("%s: %v", when, err)
			}
			if err := connect6(18080); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s: ::1 is not refused at once, so that clients try 127.0.0.1: %v", when, err)
			}
		}
		taken("at first", true)
		reach("at first")
		if err := r.net.Close(); err != nil {
			t.Error(err)
		}
		r.net = nil
		taken("without an agent", true)
		reach("without an agent")
		r.start()
		if err := r.net.Recover(t.Context(), []core.NetworkRequest{b.req}); err != nil {
			t.Fatal(err)
		}
		taken("with the next agent", true)
		reach("with the next agent")
		publish := func(want []core.Port) core.NetworkStatus {
			t.Helper()
			st, err := r.net.Publish(t.Context(), b.req, want)
			if err != nil {
				t.Fatal(err)
			}
			return st
		}
		was := b.req.Last.Ports
		if b.req.Last = publish(nil); len(b.req.Last.Ports) > 0 || len(b.req.Last.Interfaces) != 1 {
			t.Errorf("after the ports were given back: %+v", b.req.Last)
		}
		taken("given back", false)
		publish(was)
		taken("published again", true)
		r.start() // the agent died before it recorded the ports
		if err := r.net.Recover(t.Context(), []core.NetworkRequest{b.req}); err != nil {
			t.Fatal(err)
		}
		taken("not recorded", false)
		blocked, err := net.Listen("tcp", ":18080")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.net.Publish(t.Context(), b.req, was); !errors.As(err, new(*core.PortError)) {
			t.Errorf("a port that another program has: %v", err)
		}
		_ = blocked.Close()
		taken("after a failure", false)
		b.req.Last = publish(was)
		taken("published once more", true)
		reach("published once more")
		r.check(b)
		r.down(b)
		taken("without the sandbox", false)
		if held, err := h.Names(t.Context()); err != nil || len(held) > 0 {
			t.Errorf("the holder has %q, %v", held, err)
		}
	})
}

// connect6 connects to a port of ::1.
func connect6(port int) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return err
	}
	return unix.Connect(fd, &unix.SockaddrInet6{Port: port, Addr: netip.IPv6Loopback().As16()})
}
