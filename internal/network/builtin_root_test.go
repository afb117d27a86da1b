package network_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestBuiltinReaches tries every connection: from sandbox, host and another machine, to addresses
// and to host ports, by every protocol and family.
func TestBuiltinReaches(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		out := newOutside(t)
		r := newRig(t, func(c *netconf.Config) { c.IPv6 = true })
		var ports []core.Port
		protos := []string{"tcp", "udp"}
		for _, p := range []string{"tcp", "udp", "sctp"} {
			ports = append(ports, port(p, 8080, 80))
		}
		one, two := r.setup(1, ports...), r.setup(2)
		for _, p := range protos {
			one.ns.Serve(t, p, 80)
			out.ns.Serve(t, p, 7)
		}
		if mtu := one.req.Last.Interfaces[0].MTU; mtu != 1400 {
			t.Errorf("mtu %d, want the default route's 1400", mtu)
		}
		for _, p := range protos {
			for _, gw := range one.req.Last.Gateways {
				is4 := gw.Is4()
				far, host := out.addr4, out.host4
				if !is4 {
					far, host = out.addr6, out.host6
				}
				a := one.addr(is4)
				wantAnswer(t, two.ns, p, at(a, 80), two.addr(is4).String())
				wantAnswer(t, nil, p, at(a, 80), gw.String())
				wantAnswer(t, one.ns, p, at(far, 7), host.String()) // masquerade
				wantAnswer(t, out.ns, p, at(host, 8080), far.String())
				wantAnswer(t, nil, p, at(host, 8080), host.String())
				wantAnswer(t, nil, p, at(gw, 8080), gw.String())
				wantAnswer(t, one.ns, p, at(host, 8080), gw.String()) // to itself (hairpin)
				wantAnswer(t, two.ns, p, at(gw, 8080), gw.String())
				if !is4 {
					if _, err := ask(nil, p, "[::1]:8080"); !errors.Is(err, unix.ECONNREFUSED) {
						t.Errorf("%s [::1]:8080: %v, want it refused at once", p, err)
					}
				} else {
					wantAnswer(t, nil, p, "127.0.0.1:8080", gw.String())
				}
			}
		}
		for _, tc := range []struct {
			from     *networktest.Namespace
			to, seen netip.Addr
		}{
			{out.ns, out.host4, out.addr4},
			{out.ns, out.host6, out.addr6},
			{two.ns, out.host4, one.req.Last.Gateways[0]},
			{one.ns, out.host6, one.req.Last.Gateways[1]},
			{nil, netip.MustParseAddr("127.0.0.1"), one.req.Last.Gateways[0]},
		} {
			seen, arrived, err := networktest.KnockSCTP(t, tc.from, netip.AddrPortFrom(tc.to, 8080), one.ns)
			if err != nil || arrived != 80 || seen != tc.seen {
				t.Errorf("sctp to %s: at port %d from %s, %v; want 80 from %s", tc.to, arrived, seen, err, tc.seen)
			}
		}
		for _, b := range []box{one, two} {
			r.check(b)
			r.down(b)
			if err := r.net.Check(t.Context(), b.req); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("check after teardown: %v", err)
			}
		}
	})
}

func TestHostIP(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.Run(t, "sysctl -q -w net.ipv4.ip_nonlocal_bind=0") // else a host's port may be at any address
		out := newOutside(t)
		r := newRig(t, nil)
		local, up := port("tcp", 8080, 80), port("tcp", 8080, 81)
		local.HostIP, up.HostIP = netip.MustParseAddr("127.0.0.1"), out.host4
		one := r.setup(1, local, up) // the same number on two addresses
		one.ns.Serve(t, "tcp", 80)
		one.ns.Serve(t, "tcp", 81)
		gw := one.req.Last.Gateways[0]
		wantAnswer(t, nil, "tcp", "127.0.0.1:8080", gw.String())
		wantAnswer(t, out.ns, "tcp", at(out.host4, 8080), out.addr4.String())
		if got, err := ask(nil, "tcp", at(gw, 8080)); err == nil {
			t.Errorf("a port of two addresses answers %q on a third", got)
		}
		for _, tc := range []struct {
			name string
			port core.Port
			is   func(error) bool
			says string
		}{
			{"every address, one taken", port("tcp", 8080, 80), errdefs.IsFailedPrecondition, string(one.req.Sandbox)},
			{"the same address", up, errdefs.IsFailedPrecondition, string(one.req.Sandbox)},
			{"no address of ours", core.Port{Proto: "tcp", HostIP: out.addr4, Host: 99, Container: 80}, errdefs.IsInvalidArgument, "not an address of this host"},
			{"another family", core.Port{Proto: "tcp", HostIP: out.host6, Host: 99, Container: 80}, errdefs.IsFailedPrecondition, "family"},
			{"IPv6 loopback", core.Port{Proto: "tcp", HostIP: netip.IPv6Loopback(), Host: 99, Container: 80}, errdefs.IsInvalidArgument, "::1"},
			{"port zero", port("tcp", 99, 0), errdefs.IsInvalidArgument, "zero"},
		} {
			ns := networktest.NewNamespace(t)
			if _, err := r.net.Setup(t.Context(), r.request(ns, 2, tc.port)); !tc.is(err) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%s: %v, want %q in it", tc.name, err, tc.says)
			}
		}
		if ids, err := r.net.Sandboxes(t.Context()); err != nil || len(ids) != 1 {
			t.Errorf("after failures: %v, %v", ids, err)
		}
	})
}

func TestPortOfAProcess(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		for _, proto := range []string{"tcp", "udp"} {
			for i, listen := range []string{"0.0.0.0:9000", "[::]:9001", "127.0.0.1:9002"} {
				addr := netip.MustParseAddrPort(listen)
				if _, err := networktest.Serve(t, proto, addr); err != nil {
					t.Fatal(err)
				}
				ns := networktest.NewNamespace(t)
				_, err := r.net.Setup(t.Context(), r.request(ns, i, port(proto, addr.Port(), 80)))
				if !errdefs.IsFailedPrecondition(err) {
					t.Errorf("%s %s is served by a process: %v", proto, listen, err)
				}
				if err == nil || !strings.Contains(err.Error(), "network.test (pid 1)") {
					t.Errorf("%s %s: %v does not name who listens", proto, listen, err)
				}
			}
		}
		if ids, err := r.net.Sandboxes(t.Context()); err != nil || len(ids) != 0 {
			t.Errorf("after failures: %v, %v", ids, err)
		}
	})
}

// TestChosenPorts: a port that nobody names is one that nobody else has, and stays the sandbox's
// over a restart of the agent.
func TestChosenPorts(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		out := newOutside(t)
		r := newRig(t, func(c *netconf.Config) { c.HostPorts = "7001-7003" })
		if _, err := networktest.Serve(t, "tcp", netip.MustParseAddrPort("0.0.0.0:7002")); err != nil {
			t.Fatal(err)
		}
		none := func(why string) {
			t.Helper()
			ns := networktest.NewNamespace(t)
			if _, err := r.net.Setup(t.Context(), r.request(ns, 3, port("tcp", 0, 80))); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "7001-7003") {
				t.Errorf("%s: %v", why, err)
			}
		}
		one, two := r.setup(1, port("tcp", 0, 80)), r.setup(2, port("tcp", 0, 80), port("udp", 7001, 80), port("udp", 0, 81))
		first, second := one.req.Last.Ports[0].Host, two.req.Last.Ports[0].Host
		if first == second || first == 7002 || second == 7002 {
			t.Fatalf("chosen %d and %d", first, second)
		}
		if udp := two.req.Last.Ports[2].Host; udp != 7002 && udp != 7003 {
			t.Errorf("udp port %d", udp)
		}
		none("two are given away and a process has the third")
		r.start()
		if err := r.net.Recover(t.Context(), []core.NetworkRequest{one.req, two.req}); err != nil {
			t.Fatal(err)
		}
		none("after a restart")
		for _, b := range []box{one, two} {
			r.check(b)
			b.ns.Serve(t, "tcp", 80)
			wantAnswer(t, out.ns, "tcp", at(out.host4, b.req.Last.Ports[0].Host), out.addr4.String())
		}
		r.down(one)
		if three := r.setup(3, port("tcp", 0, 80)); three.req.Last.Ports[0].Host != first {
			t.Errorf("%d is free, and %d was chosen", first, three.req.Last.Ports[0].Host)
		}
	})
}

func TestSandboxesDoNotReachTheHostsLoopback(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		one := r.setup(1)
		if _, err := networktest.Serve(t, "udp", netip.MustParseAddrPort("127.0.0.1:53")); err != nil {
			t.Fatal(err)
		}
		// A sandbox that may change its own routes sends to 127.0.0.1 through the bridge.
		in := "nsenter --net=" + one.ns.Path + " "
		networktest.Run(t, in+"sysctl -qw net.ipv4.conf.all.route_localnet=1")
		networktest.Run(t, in+"ip addr del 127.0.0.1/8 dev lo")
		networktest.Run(t, in+"ip route add 127.0.0.1 via "+one.req.Last.Gateways[0].String())
		networktest.Run(t, "nft add table inet seen")
		networktest.Run(t, "nft add counter inet seen hits")
		networktest.Run(t, "nft add chain inet seen in { type filter hook input priority 0 ; }")
		networktest.Run(t, "nft add rule inet seen in iifname longshore0 counter name hits")
		one.ns.Do(t, func() error { return networktest.Send("udp", "127.0.0.1:53") })
		one.ns.Do(t, func() error { return networktest.Send("udp", at(one.req.Last.Gateways[0], 53)) })
		if got := networktest.Run(t, "nft list counter inet seen hits"); !strings.Contains(got, "packets 1 ") {
			t.Errorf("want the packet to the gateway only: %s", got)
		}
	})
}

// In a /31 and a /32 every address is leased and can be reached.
func TestSmallRanges(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		out := newOutside(t)
		r := newRig(t, func(c *netconf.Config) { c.PodCIDR = "10.7.0.4/31,10.7.1.9/32,fd00:7::6/127" })
		one := r.setup(1)
		if _, err := r.net.Setup(t.Context(), r.request(networktest.NewNamespace(t), 9)); err != nil {
			t.Fatal(err)
		}
		if err := r.net.Teardown(t.Context(), core.NetworkRequest{Sandbox: networktest.SandboxID(9)}); err != nil {
			t.Fatal(err)
		}
		r.conf.PodCIDR = "10.7.0.4/31,10.7.1.9/32"
		r.start()
		if err := r.net.Recover(t.Context(), []core.NetworkRequest{one.req}); err != nil {
			t.Fatal(err)
		}
		r.ahead += 1000 * 1e9
		two, three := r.setup(2), r.setup(3)
		got := []string{one.addr(true).String(), two.addr(true).String(), three.addr(true).String()}
		if want := "10.7.0.4 10.7.0.5 10.7.1.9"; strings.Join(got, " ") != want {
			t.Errorf("leased %v, want %s", got, want)
		}
		if _, err := r.net.Setup(t.Context(), r.request(networktest.NewNamespace(t), 4)); !errdefs.IsResourceExhausted(err) {
			t.Errorf("one too many: %v", err)
		}
		one.ns.Serve(t, "tcp", 80)
		out.ns.Serve(t, "tcp", 7)
		for _, b := range []box{two, three} {
			wantAnswer(t, b.ns, "tcp", at(one.addr(true), 80), b.addr(true).String())
			wantAnswer(t, b.ns, "tcp", at(out.addr4, 7), out.host4.String())
		}
		wantAnswer(t, out.ns, "tcp", at(out.addr4, 7), out.addr4.String())
		if got, err := ask(nil, "tcp", at(one.addr(false), 80)); err != nil {
			t.Errorf("IPv6 from the host: %q, %v", got, err)
		}
	})
}

func TestLoopbackOnly(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		ns := networktest.NewNamespace(t)
		req := r.request(ns, 1)
		req.Config.Name = core.NetworkNone
		b := r.do(ns, req)
		ns.Serve(t, "tcp", 80)
		wantAnswer(t, ns, "tcp", "127.0.0.1:80", "127.0.0.1")
		if links := networktest.Run(t, "nsenter --net="+ns.Path+" ip -o link"); strings.Count(links, "\n") != 1 {
			t.Errorf("links: %s", links)
		}
		r.check(b)
		r.down(b)
	})
}

func TestRates(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		ns := networktest.NewNamespace(t)
		req := r.request(ns, 1)
		req.Config.IngressRate, req.Config.EgressRate = 8_000_000, 16_000_000
		r.check(r.do(ns, req))
		if q := networktest.Run(t, "tc qdisc show"); !strings.Contains(q, "rate 8Mbit") {
			t.Errorf("what is received is not limited: %s", q)
		}
		if q := networktest.Run(t, "nsenter --net="+ns.Path+" tc qdisc show dev eth0"); !strings.Contains(q, "rate 16Mbit") {
			t.Errorf("what is sent is not limited: %s", q)
		}
		ns.Serve(t, "tcp", 80)
		wantAnswer(t, nil, "tcp", at(netip.MustParseAddr("10.0.0.2"), 80), "10.0.0.1")
	})
}

// TestUDPFlowsAreForgotten: a client that never stops sending is not served by the translation of
// its first packet.
func TestUDPFlowsAreForgotten(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		out := newOutside(t)
		r := newRig(t, nil)
		r.down(r.setup(9)) // with rules the kernel tracks connections
		var client *networktest.Client
		out.ns.Do(t, func() (err error) {
			client, err = networktest.NewClient(t, at(out.host4, 8080))
			return err
		})
		if err := client.Send(); err != nil { // to a port without a server
			t.Fatal(err)
		}
		for n := range 2 {
			b := r.setup(n, port("udp", 8080, 80))
			b.ns.Serve(t, "udp", 80)
			// Close waits until the old flows are forgotten.
			r.start()
			if err := r.net.Recover(t.Context(), []core.NetworkRequest{b.req}); err != nil {
				t.Fatal(err)
			}
			if saw, err := client.Ask(); err != nil || saw != out.addr4.String() {
				t.Errorf("sandbox %d: served as %q, %v", n, saw, err)
			}
			r.down(b)
			b.ns.Close()
		}
	})
}
