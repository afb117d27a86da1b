package network_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

func TestOverlaysKeepTheContract(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.OverlayContract(t, func(t *testing.T) networktest.OverlaySubject {
			r := newRig(t, nil)
			t.Cleanup(func() {
				if r.net != nil {
					if err := r.net.Release(context.Background()); err != nil {
						t.Error(err)
					}
				}
			})
			var subject func() networktest.OverlaySubject
			subject = func() networktest.OverlaySubject {
				return networktest.OverlaySubject{
					Overlays: r.net.Overlays, Local: netip.MustParseAddr("192.0.2.1"),
					Subject: networktest.Subject{Network: r.net, Namespace: func(t *testing.T) string { return networktest.NewNamespace(t).Path }},
					Restart: func(t *testing.T, live ...core.NetworkRequest) networktest.OverlaySubject {
						r.start()
						if err := r.net.Recover(t.Context(), live); err != nil {
							t.Fatal(err)
						}
						return subject()
					},
				}
			}
			return subject()
		})
	})
}

func TestBuiltinKeepsTheContract(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.Contract(t, func(t *testing.T) networktest.Subject {
			r := newRig(t, nil)
			for _, name := range []string{"app", "back"} {
				if _, err := r.net.Define(t.Context(), core.NetworkDefinition{Name: name}); err != nil {
					t.Fatal(err)
				}
			}
			return networktest.Subject{
				Network: r.net, Ports: true, Ranges: true, Further: []string{"app", "back"},
				Namespace: func(t *testing.T) string { return networktest.NewNamespace(t).Path },
			}
		})
	})
}
