package network_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestBackendsOfAPublishedPortComeAndGo: one that drains keeps its connections and gets no others;
// one that is gone loses them; and a port without any refuses, by TCP and UDP.
func TestBackendsOfAPublishedPortComeAndGo(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		o := newOutside(t)
		m := newMesh(t, r, meshRange)
		if _, err := r.net.PublishAll(nil); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("without an ingress: %v", err)
		}
		m.openIngress()
		for at, n := range map[int]int{0: 11, 1: 12} {
			ns := m.task(n, at)
			m.serve(ns, n, "tcp", 8080)
			m.serve(ns, n, "udp", 8080)
		}
		to := at(o.host4, 8080)
		m.publish([]core.PublishedPort{m.port("tcp", 8080), m.port("udp", 8080)})
		for _, proto := range []string{"tcp", "udp"} {
			refused(t, nil, proto, "127.0.0.1:8080")
			refused(t, o.ns, proto, to)
		}
		both := []core.PublishedPort{m.port("tcp", 8080, 11, 12), m.port("udp", 8080, 11, 12)}
		m.publish(both)
		answers(t, o.ns, "udp", to, m.addr(2), 11, 12)
		open := map[int]session{}
		for len(open) < 2 {
			s, err := dial(t, o.ns, "tcp", to)
			if err != nil {
				t.Fatal(err)
			}
			open[s.task] = s
		}
		both[0].Backends[0].Draining = true
		m.publish(both)
		answers(t, o.ns, "tcp", to, m.addr(2), 12)
		open[11].echo(t)
		m.publish([]core.PublishedPort{m.port("tcp", 8080, 12)})
		open[11].over(t)
		open[12].echo(t)
		answers(t, o.ns, "tcp", to, m.addr(2), 12)
		refused(t, o.ns, "udp", to)
		m.publish(nil)
		open[12].over(t)

		// Backends that nobody can answer for are left out, and named.
		odd := m.port("tcp", 8080, 12)
		for _, a := range []string{"8.8.8.8", "10.0.0.0", "10.0.0.1", "10.0.0.2", "127.0.0.1", "::1"} {
			odd.Backends = append(odd.Backends, core.OverlayBackend{Addr: netip.MustParseAddr(a)})
		}
		odd.Backends = append(odd.Backends, core.OverlayBackend{}, core.OverlayBackend{Addr: m.addr(12), Draining: true})
		if _, err := r.net.PublishAll([]core.PublishedPort{odd}); !errdefs.IsInvalidArgument(err) || strings.Count(err.Error(), "backend") != 7 {
			t.Errorf("backends that cannot be: %v", err)
		}
		answers(t, o.ns, "tcp", to, m.addr(2), 12)
		for _, list := range [][]core.PublishedPort{{m.port("tcp", 0, 12)}, {m.port("icmp", 1, 12)}, {m.port("tcp", 80, 12), m.port("", 80)}} {
			if _, err := r.net.PublishAll(list); !errdefs.IsInvalidArgument(err) {
				t.Errorf("%v: %v", list, err)
			}
		}
		answers(t, o.ns, "tcp", to, m.addr(2), 12)
	})
}

// TestAPublishedPortThatIsTaken: a port that a process or a sandbox has is none of ours, keeps the
// others from nothing, and is led when it is free; a sandbox does not get one that is published.
func TestAPublishedPortThatIsTaken(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		m := newMesh(t, r, meshRange)
		m.openIngress()
		m.serve(m.task(11, 1), 11, "tcp", 8080)
		stop, err := networktest.Serve(t, "tcp", netip.MustParseAddrPort("0.0.0.0:8081"))
		if err != nil {
			t.Fatal(err)
		}
		c := r.setup(3, port("tcp", 8082, 80))
		list := []core.PublishedPort{m.port("tcp", 8080, 11), m.port("tcp", 8081, 11), m.port("tcp", 8082, 11)}
		m.publish(list, 8081, 8082)
		answers(t, nil, "tcp", "127.0.0.1:8080", m.addr(2), 11)
		wantAnswer(t, nil, "tcp", "127.0.0.1:8081", "127.0.0.1")
		trouble, hint := r.net.Trouble()
		if !strings.Contains(trouble, "tcp *:8081") || !strings.Contains(trouble, "tcp *:8082: taken by sandbox "+string(c.req.Sandbox)) || hint == "" {
			t.Errorf("trouble %q, %q", trouble, hint)
		}
		stop()
		r.down(c)
		m.publish(list)
		refused(t, nil, "tcp", "127.0.0.1:8081") // by the task, where nothing listens
		if trouble, _ := r.net.Trouble(); trouble != "" {
			t.Errorf("trouble %q", trouble)
		}
		for _, again := range []bool{false, true} {
			if again { // the next agent does not know of any port yet
				r.start()
				if err := r.net.Recover(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
			}
			ns := networktest.NewNamespace(t)
			if _, err := r.net.Setup(t.Context(), r.request(ns, 4, port("tcp", 8082, 80))); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "publish") {
				t.Errorf("a sandbox takes a published port: %v", err)
			}
		}
		if err := r.net.CloseIngress(m.on); err != nil {
			t.Fatal(err)
		}
		d := r.setup(5, port("tcp", 8082, 80))
		d.ns.Serve(t, "tcp", 80)
		wantAnswer(t, nil, "tcp", "127.0.0.1:8082", d.req.Last.Gateways[0].String())
	})
}

// TestTheIngressIsClosed: from the overlay nothing comes to the node or past it, also not from a
// machine that routes through it; and from sandboxes and from other machines nothing but published
// ports comes into its namespace.
func TestTheIngressIsClosed(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, func(c *netconf.Config) { c.PodCIDR = "10.77.0.0/16" })
		o := newOutside(t)
		m := newMesh(t, r, meshRange)
		m.openIngress()
		task, near := m.task(12, 1), m.task(11, 0)
		m.serve(near, 11, "tcp", 8080)
		box := r.setup(1)
		box.ns.Serve(t, "tcp", 80)
		if _, err := networktest.Serve(t, "tcp", netip.MustParseAddrPort("0.0.0.0:22")); err != nil {
			t.Fatal(err)
		}
		m.publish([]core.PublishedPort{m.port("tcp", 8080, 11)})
		inner := r.net.IngressAddr()
		host := inner.Prev()
		answers(t, nil, "tcp", "127.0.0.1:8080", m.addr(2), 11)

		// A task on the other machine that routes all by our node.
		networktest.Run(t, "nsenter --net="+task.Path+" ip route add default via 10.0.0.2")
		var none knocks
		for _, to := range []netip.Addr{m.addr(2), inner, host, o.host4, machine(0), o.addr4, box.addr(true)} {
			for _, port := range []uint16{8080, 22, 80} {
				none.knock(t, task, netip.AddrPortFrom(to, port))
			}
		}
		answers(t, task, "tcp", at(m.addr(11), 8080), m.addr(12), 11)
		none.silent(t)
		counted := networktest.Run(t, "nsenter --net="+r.dir+"/ingress nft list chain inet longshore-gate closed")
		var dropped int
		if _, after, ok := strings.Cut(counted, "counter packets "); !ok {
			t.Errorf("no counter: %s", counted)
		} else if _, err := fmt.Sscan(after, &dropped); err != nil || dropped < len(none) {
			t.Errorf("%d of %d were dropped where they came in, %v: %s", dropped, len(none), err, counted)
		}

		// Sandboxes, and other machines that route by our node.
		networktest.Run(t, "nsenter --net="+o.ns.Path+" ip route add default via 192.0.2.1")
		networktest.Run(t, "nsenter --net="+m.far.Path+" ip route add default via 198.51.100.1")
		for ns, node := range map[*networktest.Namespace]netip.Addr{box.ns: o.host4, o.ns: o.host4, m.far: machine(0)} {
			var none knocks
			for _, to := range []netip.Addr{inner, m.addr(11), m.addr(2)} {
				for _, port := range []uint16{8080, 22} {
					none.knock(t, ns, netip.AddrPortFrom(to, port))
				}
			}
			answers(t, ns, "tcp", at(node, 8080), m.addr(2), 11)
			none.silent(t)
		}
		// A published port leads to nothing else of the host.
		refused(t, nil, "tcp", at(inner, 22))
	})
}

// TestPublishedPortsChangeUnderRequests: twenty ports get and lose backends, come and go, during
// requests to others; none of these is ever refused.
func TestPublishedPortsChangeUnderRequests(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		o := newOutside(t)
		m := newMesh(t, r, meshRange)
		m.openIngress()
		for at, n := range map[int]int{0: 11, 1: 12} {
			ns := m.task(n, at)
			m.serve(ns, n, "tcp", 8080)
		}
		always := m.port("tcp", 8080, 11, 12)
		m.publish([]core.PublishedPort{always})
		kept, err := dial(t, o.ns, "tcp", at(o.host4, 8080))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		var asking sync.WaitGroup
		asked := make([]int, 2)
		for i, from := range []*networktest.Namespace{nil, o.ns} {
			asking.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					s, err := dial(t, from, "tcp", at(o.host4, 8080))
					if err != nil {
						t.Errorf("while others change: %v", err)
						return
					}
					_ = s.Close()
					asked[i]++
				}
			})
		}
		for round := range 20 {
			list := []core.PublishedPort{always}
			for i := range 20 {
				if (i+round)%3 > 0 {
					list = append(list, m.port([]string{"tcp", "udp"}[i%2], uint16(9000+i), [][]int{nil, {11}, {12}, {11, 12}}[(i+round)%4]...))
				}
			}
			m.publish(list)
		}
		close(done)
		asking.Wait()
		kept.echo(t)
		if asked[0] == 0 || asked[1] == 0 {
			t.Errorf("asked %v times", asked)
		}
	})
}

// TestTheIngressOverIPv6: a network of IPv6 has the host's IPv6 addresses lead to it.
func TestTheIngressOverIPv6(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		o := newOutside(t)
		m := newMesh(t, r, "fd00:a::/64")
		m.openIngress()
		for at, n := range map[int]int{0: 0x11, 1: 0x12} {
			m.serve(m.task(n, at), n, "tcp", 8080)
		}
		m.publish([]core.PublishedPort{m.port("tcp", 8080, 0x11, 0x12)})
		answers(t, nil, "tcp", at(o.host6, 8080), m.addr(2), 0x11, 0x12)
		answers(t, o.ns, "tcp", at(o.host6, 8080), m.addr(2), 0x11, 0x12)
		refused(t, nil, "tcp", "[::1]:8080")
		refused(t, nil, "tcp", "127.0.0.1:8080")
		if err := r.net.CloseIngress(m.on); err != nil {
			t.Fatal(err)
		}
		m.left(1)
	})
}

// TestTheIngressIsOpenedAgain: it is adopted, replaced, repaired and removed, whichever process has
// made it.
func TestTheIngressIsOpenedAgain(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		m := newMesh(t, r, meshRange)
		if err := r.net.CloseIngress(m.on); err != nil { // there is none
			t.Fatal(err)
		}
		m.openIngress()
		m.serve(m.task(12, 1), 12, "tcp", 8080)
		m.publish([]core.PublishedPort{m.port("tcp", 8080, 12)})
		answers(t, nil, "tcp", "127.0.0.1:8080", m.addr(2), 12)
		kept, err := dial(t, nil, "tcp", "127.0.0.1:8080")
		if err != nil {
			t.Fatal(err)
		}
		m.openIngress()
		answers(t, nil, "tcp", "127.0.0.1:8080", m.addr(2), 12)

		// The next process; it gets wrong arguments before the right ones.
		r.start()
		m.on = m.open(0)
		for _, in := range []core.Ingress{
			{Network: "ingress"},
			{Network: "ingress", Addrs: []netip.Prefix{{}}},
			{Network: "ingress", Addrs: []netip.Prefix{netip.MustParsePrefix("10.9.0.2/24")}},
			{Network: "ingress", Addrs: []netip.Prefix{m.prefix(1)}},
			{Network: "ingress", Addrs: []netip.Prefix{m.prefix(2)}, MAC: "01:00:00:00:00:00"},
		} {
			if err := r.net.OpenIngress(in, m.on, m.subnets); !errdefs.IsInvalidArgument(err) {
				t.Errorf("%v: %v", in, err)
			}
			kept.echo(t)
		}
		m.openIngress()
		kept.echo(t)
		m.publish([]core.PublishedPort{m.port("tcp", 8080, 12)})
		kept.echo(t)

		// Somebody has taken away parts of it.
		for _, line := range []string{"ip link del longshore-in0", "nft delete table inet longshore-ingress", "nsenter --net=" + r.dir + "/ingress ip link del net0"} {
			networktest.Run(t, line)
			m.openIngress()
			m.publish([]core.PublishedPort{m.port("tcp", 8080, 12)})
			answers(t, nil, "tcp", "127.0.0.1:8080", m.addr(2), 12)
		}

		// Another address of the node.
		in := m.ingress()
		in.Addrs = []netip.Prefix{m.prefix(3)}
		if err := r.net.OpenIngress(in, m.on, m.subnets); err != nil {
			t.Fatal(err)
		}
		m.know(m.farOn, 3, 0)
		m.publish([]core.PublishedPort{m.port("tcp", 8080, 12)})
		answers(t, nil, "tcp", "127.0.0.1:8080", m.addr(3), 12)

		// A process that has not opened it removes it.
		r.start()
		m.on = m.open(0)
		for range 2 {
			if err := r.net.CloseIngress(m.on); err != nil {
				t.Fatal(err)
			}
			m.left(0)
		}
		refused(t, nil, "tcp", "127.0.0.1:8080")
		m.openIngress()
		if err := r.net.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		m.left(1) // its other end is gone
	})
}

// TestPublishedPortsPassFirewalls: other programs' rules drop unknown traffic.
func TestPublishedPortsPassFirewalls(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		o := newOutside(t)
		m := newMesh(t, r, meshRange)
		networktest.Run(t, "iptables -P FORWARD DROP")
		m.openIngress()
		m.serve(m.task(12, 1), 12, "tcp", 8080)
		m.publish([]core.PublishedPort{m.port("tcp", 8080, 12)})
		answers(t, o.ns, "tcp", at(o.host4, 8080), m.addr(2), 12)
		for _, line := range []string{
			"iptables -F FORWARD", "nft add table inet wall", "nft add chain inet wall through { type filter hook forward priority 10 ; policy drop ; }",
		} {
			networktest.Run(t, line)
		}
		networktest.Await(t, networktest.RuleNews(), "the accepts", func() bool {
			return strings.Count(rules(t), `ifname "longshore-in0" counter`) >= 4
		})
		answers(t, o.ns, "tcp", at(o.host4, 8080), m.addr(2), 12)
		networktest.Run(t, "nft flush ruleset")
		networktest.Await(t, networktest.RuleNews(), "our own rules", func() bool { return strings.Contains(rules(t), "chain entry") })
		answers(t, o.ns, "tcp", at(o.host4, 8080), m.addr(2), 12)
	})
}

// TestAPublishedPortOfSCTP: the packets come to the task, where the kernel has no sockets of SCTP
// too.
func TestAPublishedPortOfSCTP(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		o := newOutside(t)
		m := newMesh(t, r, meshRange)
		m.openIngress()
		task := m.task(12, 1)
		m.publish([]core.PublishedPort{m.port("sctp", 8080, 12)})
		saw, port, err := networktest.KnockSCTP(t, o.ns, netip.AddrPortFrom(o.host4, 8080), task)
		if err != nil || saw != m.addr(2) || port != 8080 {
			t.Errorf("from %s to port %d: %v", saw, port, err)
		}
	})
}
