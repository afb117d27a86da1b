package network_test

import (
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

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
