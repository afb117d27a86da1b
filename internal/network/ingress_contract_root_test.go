package network_test

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestTheIngressKeepsTheContract runs the suite, and reads the open ports from the kernel's own
// rules.
func TestTheIngressKeepsTheContract(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		newOutside(t)
		networktest.Ingress(t, func(t *testing.T) networktest.IngressSubject {
			r := newRig(t, func(c *netconf.Config) { c.PodCIDR = "10.77.0.0/16" })
			s := networktest.IngressSubject{Overlays: r.net.Overlays}
			for i, o := range []*core.Overlay{&s.Overlay, &s.Other} {
				p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), 0}), 24)
				*o = core.Overlay{
					Name: fmt.Sprint("published", i), MTU: 1450, Local: netip.MustParseAddr("192.0.2.1"),
					Subnets: []core.OverlaySubnet{{Range: p, Gateway: p.Addr().Next(), VNI: uint32(4096 + i)}},
				}
				if err := s.Overlays.Open(t.Context(), *o); err != nil {
					t.Fatal(err)
				}
			}
			t.Cleanup(func() {
				ctx := context.WithoutCancel(t.Context())
				if err := r.net.Release(ctx); err != nil {
					t.Error(err)
				}
				if out, err := exec.CommandContext(ctx, "sh", "-c", "nft list tables && ip -o link").CombinedOutput(); err != nil || strings.Contains(string(out), "longshore") {
					t.Errorf("left: %s, %v", out, err)
				}
			})
			s.Take = func(t *testing.T, proto string, port uint16) func() {
				stop, err := networktest.Serve(t, proto, netip.AddrPortFrom(netip.IPv4Unspecified(), port))
				if err != nil {
					t.Fatal(err)
				}
				return stop
			}
			s.Led = func(t *testing.T, proto string, port uint16) bool {
				return strings.Contains(networktest.Run(t, "nft list ruleset"), fmt.Sprintf("%s . %d comment \"published\" :", proto, port))
			}
			return s
		})
	})
}

// TestWhatIsMissingOfTheIngressIsTold: another program has taken parts of it away.
func TestWhatIsMissingOfTheIngressIsTold(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		newOutside(t)
		r := newRig(t, func(c *netconf.Config) { c.PodCIDR = "10.77.0.0/16" })
		p := netip.MustParsePrefix(meshRange)
		open := func() {
			t.Helper()
			if err := r.net.Overlays.Open(t.Context(), core.Overlay{
				Name: "published", MTU: 1450, Local: netip.MustParseAddr("192.0.2.1"), Subnets: []core.OverlaySubnet{{Range: p, Gateway: netip.MustParseAddr("10.0.0.1"), VNI: 4096}},
			}); err != nil {
				t.Fatal(err)
			}
			if err := r.net.Overlays.OpenIngress(t.Context(), core.Ingress{Network: "published", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}}); err != nil {
				t.Fatal(err)
			}
			if _, err := r.net.Overlays.Publish(t.Context(), []core.PublishedPort{
				{Proto: "tcp", Port: 8080, Backends: []core.OverlayBackend{{Addr: netip.MustParseAddr("10.0.0.5")}, {Addr: netip.MustParseAddr("10.0.0.6")}}},
				{Proto: "udp", Port: 8081},
			}); err != nil {
				t.Fatal(err)
			}
			if err := r.net.Overlays.Intact(); err != nil {
				t.Error(err)
			}
		}
		if err := r.net.Overlays.Intact(); err != nil {
			t.Errorf("without an ingress: %v", err)
		}
		defer func() {
			if err := r.net.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		in := "nsenter --net=" + r.dir + "/ingress "
		for _, line := range []string{
			in + "nft flush ruleset", in + "nft delete table inet longshore-balance", in + "nft flush chain inet longshore-balance prerouting",
			in + "nft flush chain inet longshore-balance port4-6-8080", in + "nft flush map inet longshore-balance ports4", in + "nft flush set inet longshore-balance selves4",
			in + "nft add rule inet longshore-balance port6-17-8081 accept", in + "nft delete table inet longshore-gate", in + "nft flush chain inet longshore-gate closed",
			"ip link del longshore-in0", "ip link set longshore-in0 down", "nft flush map inet longshore-ingress ports4", in + "ip link del net0",
			in + "ip addr flush dev net0",
		} {
			open()
			networktest.Run(t, line)
			if err := r.net.Overlays.Intact(); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("%s: %v", line, err)
			} else {
				t.Log(err)
			}
			r.start() // the next agent mends it
			if err := r.net.Recover(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		open()
	})
}
