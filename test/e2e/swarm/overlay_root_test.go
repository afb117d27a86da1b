package swarm

import "testing"

// TestAStackBesideADockerd: a common stack over a dockerd and a node of ours: all of its tasks reach each
// other, and nothing is left of it on ours.
func TestAStackBesideADockerd(t *testing.T) {
	beside(t, func(t *testing.T) {
		long(t) // the one over several nodes of each kind is for CI
		x := newMixed(t, 1, 1)
		x.deploy("shop", x.shop())
		run := x.settled(map[string]int{"shop_web": 4, "shop_data": 2, "shop_edge": 2})
		x.agree("deployed", run, "shop_front", "shop_back")
		x.docker("stack", "rm", "shop")
		x.ours[0].none()
		x.ours[0].node.Check()
	})
}
