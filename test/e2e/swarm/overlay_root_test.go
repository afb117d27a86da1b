package swarm

import (
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// TestAStackBesideADockerd: a common stack over a dockerd and a node of ours: all of its tasks reach each
// other, also while our agent is dead and when the next one has come, which says how it is with the networks;
// and nothing is left of it on ours.
func TestAStackBesideADockerd(t *testing.T) {
	beside(t, func(t *testing.T) {
		long(t) // the one over several nodes of each kind is for CI
		x := newMixed(t, 1, 1)
		x.deploy("shop", x.shop())
		run := x.settled(map[string]int{"shop_web": 4, "shop_data": 2, "shop_edge": 2})
		x.agree("deployed", run, "shop_front", "shop_back")
		ours := x.ours[0]
		x.patient()
		asked := between(t, run)
		ours.node.Kill()
		ours.node.Up()
		roottest.Eventually(t, "the node is back among the others", func() bool {
			out := ours.cli("swarm", "status")
			return strings.Contains(out, "overlays     up "+dockerdAddr(0)) && strings.Contains(out, "network    shop_back: tasks") && !strings.Contains(out, "not announced")
		})
		x.agree("after the agent's death", run, "shop_front", "shop_back")
		asked.whole()
		x.docker("stack", "rm", "shop")
		ours.none()
		ours.node.Check()
	})
}
