package network_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// rules lists all of nftables without values that change by themselves.
func rules(t *testing.T) string {
	t.Helper()
	return networktest.Run(t, "nft -s list ruleset")
}

func links(t *testing.T) string {
	t.Helper()
	var names []string
	for line := range strings.Lines(networktest.Run(t, "ip -o link")) {
		names = append(names, strings.Fields(line)[1])
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// TestRecover starts a second process after the first one, when someone has removed all rules and
// the bridge.
func TestRecover(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		out := newOutside(t)
		r := newRig(t, func(c *netconf.Config) { c.IPv6 = true })
		one, gone, two := r.setup(1, port("tcp", 8080, 80), port("udp", 8080, 80)), r.setup(2, port("tcp", 8081, 80)), r.setup(3)
		for _, p := range []string{"tcp", "udp"} {
			one.ns.Serve(t, p, 80)
		}
		range1, err := r.net.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		before := rules(t)
		r.start() // only a restart
		if err := r.net.Recover(t.Context(), []core.NetworkRequest{one.req, gone.req, two.req}); err != nil {
			t.Fatal(err)
		}
		if after := rules(t); after != before {
			t.Errorf("rules after a restart:\n%s\nbefore:\n%s", after, before)
		}
		if range2, err := r.net.Info(t.Context()); err != nil || !slices.Equal(range1.Ranges, range2.Ranges) {
			t.Errorf("ranges %v, before %v", range2.Ranges, range1.Ranges)
		}
		for _, b := range []box{one, gone, two} {
			r.check(b)
		}
		if err := r.net.Close(); err != nil {
			t.Fatal(err)
		}
		networktest.Run(t, "nft flush ruleset")
		networktest.Run(t, "ip link del longshore0")
		if err := r.net.Check(t.Context(), one.req); err == nil {
			t.Error("check finds nothing missing")
		}
		r.net = nil
		r.start()
		if err := r.net.Recover(t.Context(), []core.NetworkRequest{one.req, two.req}); err != nil {
			t.Fatal(err)
		}
		for _, b := range []box{one, two} {
			r.check(b)
		}
		for _, p := range []string{"tcp", "udp"} {
			wantAnswer(t, out.ns, p, at(out.host4, 8080), out.addr4.String())
			wantAnswer(t, out.ns, p, at(out.host6, 8080), out.addr6.String())
			wantAnswer(t, two.ns, p, at(one.addr(true), 80), two.addr(true).String())
		}
		if ids, err := r.net.Sandboxes(t.Context()); err != nil || !slices.Equal(ids, []core.ID{one.req.Sandbox, two.req.Sandbox}) {
			t.Errorf("left: %v, %v", ids, err)
		}
		// The port and name of the lost one are free again, its address rests.
		again := r.setup(2, port("tcp", 8081, 80))
		if again.addr(true) == gone.addr(true) {
			t.Errorf("%s was given away without a rest", again.addr(true))
		}
		if strings.Count(links(t), " ls") != 3 {
			t.Errorf("links: %s", links(t))
		}
		// After a boot no sandbox is alive, and nothing exists.
		for _, b := range []box{one, two, again} {
			b.ns.Close()
		}
		networktest.Await(t, networktest.LinkNews(), "links to go", func() bool { return !strings.Contains(links(t), " ls") })
		if err := r.net.Close(); err != nil {
			t.Fatal(err)
		}
		networktest.Run(t, "nft flush ruleset")
		networktest.Run(t, "ip link del longshore0")
		r.net = nil
		r.start()
		if err := r.net.Recover(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if ids, err := r.net.Sandboxes(t.Context()); err != nil || len(ids) != 0 {
			t.Errorf("left: %v, %v", ids, err)
		}
		if strings.Contains(links(t), "longshore0") {
			t.Error("a bridge was made for nobody")
		}
		r.check(r.setup(1, port("tcp", 8080, 80)))
	})
}

func TestRulesArePutBack(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.Run(t, "nft flush ruleset") // others' rules would not be put back
		out := newOutside(t)
		r := newRig(t, nil)
		one := r.setup(1, port("tcp", 8080, 80))
		one.ns.Serve(t, "tcp", 80)
		whole := rules(t)
		for _, harm := range []string{
			"nft flush ruleset", "nft delete table inet longshore", "nft flush table inet longshore", "nft flush chain inet longshore postrouting",
		} {
			networktest.Run(t, harm)
			networktest.Await(t, networktest.RuleNews(), "rules after "+harm, func() bool { return rules(t) == whole })
			wantAnswer(t, out.ns, "tcp", at(out.host4, 8080), out.addr4.String())
		}
		// A missing element is noticed only when it is needed.
		networktest.Run(t, "nft flush map inet longshore ports4")
		if err := r.net.Check(t.Context(), one.req); err == nil {
			t.Error("check does not miss the port")
		}
		r.down(one)
		two := r.setup(2, port("tcp", 8080, 80))
		r.check(two)
	})
}

func TestBridgeRemoved(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		one := r.setup(1)
		one.ns.Serve(t, "tcp", 80)
		networktest.Run(t, "ip link del longshore0")
		two := r.setup(2)
		r.check(two)
		if err := r.net.Check(t.Context(), one.req); err == nil {
			t.Error("check does not miss the bridge")
		}
		if err := r.net.Recover(t.Context(), []core.NetworkRequest{one.req, two.req}); err != nil {
			t.Fatal(err)
		}
		r.check(one)
		wantAnswer(t, two.ns, "tcp", at(one.addr(true), 80), two.addr(true).String())
	})
}

// TestAddressOfAKeptNamespace: somebody keeps a sandbox's namespace after its end. Its address
// must not be in use twice.
func TestAddressOfAKeptNamespace(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, func(c *netconf.Config) { c.PodCIDR = "10.9.0.0/29" })
		first := r.setup(1)
		r.down(first)
		if second := r.setup(2); second.addr(true) == first.addr(true) {
			t.Fatalf("%s was given away without a rest", first.addr(true))
		}
		r.ahead += 31 * 1e9
		third := r.setup(3)
		if third.addr(true) != first.addr(true) {
			t.Fatalf("third has %s, want %s after its rest", third.addr(true), first.addr(true))
		}
		if n := strings.Count(links(t), " ls"); n != 2 {
			t.Errorf("%d links: %s", n, links(t))
		}
		third.ns.Serve(t, "tcp", 80)
		wantAnswer(t, nil, "tcp", at(third.addr(true), 80), third.req.Last.Gateways[0].String())
	})
}

// TestChurn: after 200 sandboxes everything is as before.
func TestChurn(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, func(c *netconf.Config) { c.IPv6 = true })
		ports := func(i uint16) []core.Port {
			return []core.Port{port("tcp", 20000+i, 80), port("sctp", 20000+i, 80), {Proto: "udp", HostIP: netip.MustParseAddr("127.0.0.1"), Host: 20000 + i, Container: 80}}
		}
		first := r.setup(1000, ports(999)...)
		r.down(first)
		first.ns.Close()
		idle := func() bool { return !strings.Contains(links(t), " ls") }
		networktest.Await(t, networktest.LinkNews(), "the first link to go", idle)
		before, fds := rules(t)+links(t), descriptors(t)
		const workers, each = 10, 20
		errs := make(chan error, workers)
		for w := range workers {
			go func() {
				for i := range each {
					n := w*each + i
					ns := networktest.NewNamespace(t)
					req := r.request(ns, n, ports(uint16(n))...)
					st, err := r.net.Setup(t.Context(), req)
					req.Last = st
					if err == nil {
						err = r.net.Check(t.Context(), req)
					}
					if err == nil {
						err = r.net.Teardown(t.Context(), req)
					}
					ns.Close()
					if err != nil {
						errs <- fmt.Errorf("sandbox %d: %w", n, err)
						return
					}
				}
				errs <- nil
			}()
		}
		for range workers {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		networktest.Await(t, networktest.LinkNews(), "links to go", idle)
		if after := rules(t) + links(t); after != before {
			t.Errorf("after:\n%s\nbefore:\n%s", after, before)
		}
		if ids, err := r.net.Sandboxes(t.Context()); err != nil || len(ids) != 0 {
			t.Errorf("left: %v, %v", ids, err)
		}
		if now := descriptors(t); now > fds {
			t.Errorf("%d descriptors, %d before", now, fds)
		}
		if hosts := strings.Count(networktest.Run(t, "ip neigh show dev longshore0"), "REACHABLE"); hosts != 0 {
			t.Errorf("%d neighbours are reachable", hosts)
		}
	})
}

// descriptors counts the open descriptors of this process, without namespaces and those of the
// test framework.
func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/thread-self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestRelease: nothing is left on the host but the setting for forwarding, which others may need
// too.
func TestRelease(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.Run(t, "iptables -P FORWARD DROP")
		networktest.Run(t, "iptables-legacy -P FORWARD DROP")
		legacy := networktest.Run(t, "iptables-legacy -S")
		before := rules(t) + links(t)
		r := newRig(t, func(c *netconf.Config) { c.IPv6 = true })
		if err := r.net.Release(t.Context()); err != nil {
			t.Errorf("before anything was made: %v", err)
		}
		for _, restart := range []bool{false, true} {
			one := r.setup(1, port("tcp", 8080, 80))
			if err := r.net.Release(t.Context()); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("under a sandbox: %v", err)
			}
			r.check(one)
			r.down(one)
			one.ns.Close()
			if restart {
				r.start()
			}
			if err := r.net.Release(t.Context()); err != nil {
				t.Error(err)
			}
			networktest.Await(t, networktest.LinkNews(), "the link to go", func() bool { return !strings.Contains(links(t), " ls") })
			if after := rules(t) + links(t); after != before {
				t.Errorf("after:\n%s\nbefore:\n%s", after, before)
			}
			if after := networktest.Run(t, "iptables-legacy -S"); after != legacy {
				t.Errorf("old filter after:\n%s\nbefore:\n%s", after, legacy)
			}
		}
		r.check(r.setup(2))
	})
}
