package network_test

import (
	"testing"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

func TestBuiltinKeepsTheContract(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.Contract(t, func(t *testing.T) networktest.Subject {
			return networktest.Subject{
				Network: newRig(t, nil).net, Ports: true, Ranges: true,
				Namespace: func(t *testing.T) string { return networktest.NewNamespace(t).Path },
			}
		})
	})
}
