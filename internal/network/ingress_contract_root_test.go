package network_test

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestTheIngressKeepsTheContract runs the suite with the kernel's own rules as what is led.
func TestTheIngressKeepsTheContract(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		newOutside(t)
		networktest.Ingress(t, func(t *testing.T) networktest.IngressSubject {
			r := newRig(t, func(c *network.Config) { c.PodCIDR = "10.77.0.0/16" })
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
