package vxlan_test

import (
	"testing"
	"time"

	"github.com/longshore/longshore/internal/roottest"
)

// TestAnAddressComesHere: a task that gets the address which one on another node had is reached at once by those
// beside it that have talked to the former, also while it says nothing itself.
func TestAnAddressComesHere(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		nodes := newNodes(t, 2)
		a, b := nodes[0], nodes[1]
		a.open()
		b.open()
		x, there := a.task("10.0.1.10/24"), b.task("10.0.1.9/24")
		a.knows(there)
		b.knows(x)
		there.ns.Serve(t, "tcp", 80)
		x.reaches(there, 80)
		if err := b.net.Detach(there.addr.String()); err != nil {
			t.Fatal(err)
		}
		if err := a.net.DropPeer(there.addr.String()); err != nil {
			t.Fatal(err)
		}
		here := a.task("10.0.1.9/24")
		here.ns.Serve(t, "tcp", 80)
		began := time.Now()
		x.reaches(here, 80)
		// It takes a minute where the bridge sends to the former place.
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("it is reached after %s", took)
		}
	})
}
