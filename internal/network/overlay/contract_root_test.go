package overlay_test

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/ingress"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/overlay"
	"github.com/longshore/longshore/internal/network/ports"
	"github.com/longshore/longshore/internal/roottest"
)

func TestOverlaysKeepTheContractOfDrivers(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.DriverContract(t, func(t *testing.T) networktest.DriverSubject {
			dir, kv, log := t.TempDir(), &networktest.KV{}, slog.New(slog.DiscardHandler)
			var d *overlay.Driver
			open := func(t *testing.T) networktest.Driver {
				if d != nil {
					if err := d.Stop(); err != nil {
						t.Error(err)
					}
				}
				none := func() ([]netip.Prefix, error) { return nil, nil }
				var err error
				d, err = overlay.New(overlay.Options{
					Dir: filepath.Join(dir, "overlays"), KV: kv, Names: names.New(names.Options{Dir: filepath.Join(dir, "names"), Logger: log}),
					Ingress:  ingress.New(filepath.Join(dir, "ingress"), &ports.Claims{}, none, log),
					MakeRoom: func(core.Overlay, []core.Overlay) error { return nil },
					Taken:    func() map[netip.Prefix]string { return map[netip.Prefix]string{} }, Logger: log,
				})
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			open(t)
			subnet := netip.MustParsePrefix("10.68.0.0/24")
			for i, name := range []string{"back", "other"} {
				r := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 68, byte(i), 0}), 24)
				err := d.Open(t.Context(), core.Overlay{
					Name: name, MTU: 1400, Local: netip.MustParseAddr("192.0.2.1"),
					Subnets: []core.OverlaySubnet{{Range: r, Gateway: r.Addr().Next(), VNI: uint32(6000 + i)}},
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			t.Cleanup(func() {
				if err := d.Withdraw(context.Background()); err != nil {
					t.Error(err)
				}
				if err := d.Stop(); err != nil {
					t.Error(err)
				}
			})
			return networktest.DriverSubject{
				Driver: d, Network: core.OverlayNetwork("back"), Restart: open,
				Attachment: func(n int) core.Attachment {
					a := subnet.Addr()
					for range n + 1 {
						a = a.Next()
					}
					return core.Attachment{Network: core.OverlayNetwork("back"), Interface: "eth0", Addrs: []netip.Prefix{netip.PrefixFrom(a, subnet.Bits())}}
				},
			}
		})
	})
}
