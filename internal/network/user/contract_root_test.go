package user_test

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/bridge"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/ports"
	"github.com/longshore/longshore/internal/network/user"
	"github.com/longshore/longshore/internal/roottest"
)

func TestUserNetworksKeepTheContractOfDrivers(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.DriverContract(t, func(t *testing.T) networktest.DriverSubject {
			store, leases, log := &networktest.KV{}, &networktest.KV{}, slog.New(slog.DiscardHandler)
			var d *user.Driver
			open := func(t *testing.T) networktest.Driver {
				if d != nil {
					if err := d.Stop(); err != nil {
						t.Error(err)
					}
				}
				var err error
				d, err = user.New(user.Options{
					Bridge: bridge.Options{Config: netconf.DefaultConfig(), Claims: &ports.Claims{}, Logger: log}, Store: store, Leases: leases,
					Used: func() ([]netip.Prefix, error) { return nil, nil }, Names: names.New(names.Options{Dir: t.TempDir(), Logger: log}),
				})
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			open(t)
			for _, name := range []string{"app", "other"} {
				if _, err := d.Define(t.Context(), core.NetworkDefinition{Name: name}); err != nil {
					t.Fatal(err)
				}
			}
			t.Cleanup(func() {
				for _, def := range d.Defined() {
					if err := d.Undefine(context.Background(), def.Name); err != nil {
						t.Error(err)
					}
				}
			})
			return networktest.DriverSubject{Driver: d, Network: "app", Restart: open}
		})
	})
}
