package network_test

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestWhatOthersChangeOnTheHostIsMended: ports of the host and sandboxes answer again after each change.
func TestWhatOthersChangeOnTheHostIsMended(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		out := newOutside(t)
		r := newRig(t, nil)
		one := r.setup(1, core.Port{Proto: "tcp", Host: 8080, Container: 80})
		one.ns.Serve(t, "tcp", 80)
		answers := func() bool {
			return out.ns.Try(func() error {
				c, err := net.DialTimeout("tcp", netip.AddrPortFrom(out.host4, 8080).String(), time.Second/2) //nolint:noctx // it ends in time
				if err == nil {
					err = c.Close()
				}
				return err
			}) == nil
		}
		if !answers() {
			t.Fatal("the port answers to nobody")
		}
		if list := network.Mend(r.net, true, true); len(list) != 0 {
			t.Errorf("at first: %+v", list)
		}
		link := strings.Fields(networktest.Run(t, "ip -o link show master longshore0"))[1]
		link, _, _ = strings.Cut(link, "@")
		for _, c := range []struct{ line, text string }{
			{"ip link del longshore0", "bridge longshore0 was deleted"},
			{"ip link set longshore0 down", "bridge longshore0 is down"},
			{"ip addr flush dev longshore0", "bridge longshore0 has lost its address"},
			{"ip link set " + link + " nomaster", "link " + link + " was down or not on bridge longshore0"},
			{"ip link set " + link + " down", "link " + link + " was down or not on bridge longshore0"},
			{"sysctl -qw net.ipv4.ip_forward=0", "kernel setting net/ipv4/ip_forward is 0 instead of 1"},
			{"sysctl -qw net.ipv4.conf.longshore0.route_localnet=0", "kernel setting net/ipv4/conf/longshore0/route_localnet is 0 instead of 1"},
		} {
			networktest.Run(t, c.line)
			if !strings.Contains(c.line, "localnet") && answers() {
				t.Errorf("%s: the port answers: nothing was changed", c.line)
			}
			list := network.Mend(r.net, true, true)
			if len(list) == 0 || !strings.HasPrefix(list[0].Text, c.text) {
				t.Errorf("%s: found %+v", c.line, list)
			}
			for _, found := range list {
				if !found.Mended {
					t.Errorf("%s: %+v", c.line, found)
				}
			}
			roottest.Eventually(t, "the port answers again after "+c.line, answers)
			if again := network.Mend(r.net, true, true); len(again) != 0 {
				t.Errorf("%s: once more %+v", c.line, again)
			}
			r.check(one)
		}
		// Somebody's own setting is reported, and stays.
		networktest.Run(t, "sysctl -qw net.ipv4.conf.longshore0.forwarding=0")
		for range 2 {
			if list := network.Mend(r.net, true, true); len(list) != 1 || list[0].Mended || list[0].Hint == "" || !strings.Contains(list[0].Text, "longshore0/forwarding is 0") {
				t.Errorf("a user's setting: %+v", list)
			}
		}
		networktest.Run(t, "sysctl -qw net.ipv4.conf.longshore0.forwarding=1")
		two := r.setup(2)
		r.check(two)
	})
}

// TestAnOverlayThatOthersChangedIsMended: device, entries, master and guard.
func TestAnOverlayThatOthersChangedIsMended(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		def := anOverlay(1)
		r.open(def)
		peer := core.OverlayPeer{Addr: def.Subnets[0].Gateway.Next().Next(), MAC: "02:42:0a:00:01:09", Node: netip.MustParseAddr("192.0.2.77")}
		if err := r.net.Overlays.SetPeers(t.Context(), def.Name, map[string]core.OverlayPeer{"x": peer}, nil); err != nil {
			t.Fatal(err)
		}
		if list := network.Mend(r.net, true, true); len(list) != 0 {
			t.Errorf("at first: %+v", list)
		}
		in := "nsenter --net=" + filepath.Join(r.dir, "overlays", def.Name) + " "
		for _, line := range []string{
			in + "ip link set br0 down", in + "ip link del br0", in + "ip link set vx0 nomaster", in + "bridge fdb flush dev vx0", in + "ip neigh flush dev vx0 nud permanent",
			in + "ip link set vx0 type vxlan learning", "nft delete table inet longshore-overlay-guard", "nft flush set inet longshore-overlay-guard senders4",
		} {
			networktest.Run(t, line)
			if list := network.Mend(r.net, true, true); len(list) != 1 || !list[0].Mended {
				t.Errorf("%s: %+v", line, list)
			}
			if err := r.net.Overlays.Intact(); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
	})
}

// TestTheIngressThatOthersChangedIsMended: links, addresses and routes of both its ends. The namespace, and with it
// the connections of the published ports, stays.
func TestTheIngressThatOthersChangedIsMended(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		def := anOverlay(1)
		r.open(def)
		in := core.Ingress{Network: def.Name, Addrs: []netip.Prefix{netip.MustParsePrefix("10.99.1.2/24")}}
		if err := r.net.Overlays.OpenIngress(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := r.net.Overlays.CloseIngress(context.Background()); err != nil {
				t.Error(err)
			}
		})
		port := core.PublishedPort{Proto: "tcp", Port: 8080, Backends: []core.OverlayBackend{{Addr: netip.MustParseAddr("10.99.1.9")}}}
		if taken, err := r.net.Overlays.Publish(t.Context(), []core.PublishedPort{port}); err != nil || len(taken) != 0 {
			t.Fatal(taken, err)
		}
		if list := network.Mend(r.net, true, true); len(list) != 0 {
			t.Errorf("at first: %+v", list)
		}
		inside := "nsenter --net=" + filepath.Join(r.dir, "ingress") + " "
		first := networktest.Run(t, inside+"ip -4 -o addr show dev host0")
		for _, line := range []string{
			"ip link del longshore-in0", "ip link set longshore-in0 down", "ip addr flush dev longshore-in0",
			inside + "ip link set host0 down", inside + "ip addr flush dev host0", inside + "ip link del host0",
			inside + "ip link del net0", inside + "ip addr flush dev net0", inside + "ip route flush table 100", inside + "ip rule del table 100",
			"nft flush ruleset",
		} {
			networktest.Run(t, line)
			if err := r.net.Overlays.Intact(); err == nil {
				t.Errorf("%s: check finds nothing", line)
			}
			list := network.Mend(r.net, true, true)
			if len(list) == 0 {
				t.Errorf("%s: nothing is found", line)
			}
			for _, c := range list {
				if !c.Mended {
					t.Errorf("%s: %+v", line, c)
				}
			}
			if err := r.net.Overlays.Intact(); err != nil {
				t.Errorf("%s: %v", line, err)
			}
			if again := network.Mend(r.net, true, true); len(again) != 0 {
				t.Errorf("%s: once more %+v", line, again)
			}
		}
		if now := networktest.Run(t, inside+"ip -4 -o addr show dev host0"); strings.Fields(now)[3] != strings.Fields(first)[3] {
			t.Errorf("the address inside is %s, was %s", now, first)
		}
	})
}
