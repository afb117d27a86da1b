package bridge_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/bridge"
	"github.com/longshore/longshore/internal/network/ipam"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/ports"
	"github.com/longshore/longshore/internal/roottest"
)

func TestBridgeKeepsTheContractOfDrivers(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.DriverContract(t, func(t *testing.T) networktest.DriverSubject {
			kv := &networktest.KV{}
			var b *bridge.Bridge
			open := func(t *testing.T) networktest.Driver {
				leases, err := ipam.Open(ipam.Options{KV: kv})
				if err != nil {
					t.Fatal(err)
				}
				ranges, err := ipam.ParseRanges([]string{"10.67.0.0/24"})
				if err != nil {
					t.Fatal(err)
				}
				leases.SetRanges(ranges)
				if b != nil {
					if err := b.Stop(); err != nil {
						t.Error(err)
					}
				}
				b = bridge.New(bridge.Options{Config: netconf.DefaultConfig(), Leases: leases, Claims: &ports.Claims{}, Logger: slog.New(slog.DiscardHandler)})
				return b
			}
			t.Cleanup(func() {
				if err := b.Withdraw(context.Background()); err != nil {
					t.Error(err)
				}
				if err := b.Stop(); err != nil {
					t.Error(err)
				}
			})
			return networktest.DriverSubject{Driver: open(t), Network: core.NetworkDefault, Restart: open}
		})
	})
}
