package swarm

import (
	"fmt"
	"slices"
	"testing"

	"github.com/longshore/longshore/test/nodetest"
)

// TestACutOfElevenSeconds: all tasks of a mixed Swarm reach each other, by address, name, `tasks.` and the
// service's address. Our node is then cut off for longer than the gossip waits for a member, and for less time
// than the manager waits for a node: the same tasks run on, and all reach each other again.
func TestACutOfElevenSeconds(t *testing.T) {
	beside(t, func(t *testing.T) {
		x := newMixed(t, 1, 1)
		x.patient()          // a busy machine delays heartbeats
		nodetest.Pause(7000) // a session keeps its former period, of 5 s, until its next heartbeat
		x.deploy("shop", x.shop())
		count := map[string]int{"shop_web": 4, "shop_data": 2, "shop_edge": 2}
		run := x.settled(count)
		x.agree("deployed", run, "shop_front", "shop_back")
		x.published(8080, "shop_web", run)
		here := map[string]placed{} // the task of shop_data on each node
		for _, p := range run {
			if p.service == "shop_data" {
				here[p.node] = p
			}
		}

		ours := x.ours[0]
		ours.link.Cut()
		for _, way := range [][2]string{{"ours0", "dockerd0"}, {"dockerd0", "ours0"}} {
			if got, err := here[way[0]].get(here[way[1]].addrs["shop_back"].String()); err == nil {
				t.Errorf("%s is cut off, and its %s answers %q", way[0], way[1], got)
			}
		}
		nodetest.Pause(11000)
		ours.link.Mend()

		x.agree("after the cut", run, "shop_front", "shop_back")
		x.published(8080, "shop_web", run)
		same := func(a, b placed) bool { return a.id == b.id && a.pid == b.pid && a.node == b.node }
		if now := x.settled(count); !slices.EqualFunc(run, now, same) {
			t.Errorf("other tasks run after the cut: %s, before: %s", fmt.Sprint(now), fmt.Sprint(run))
		}
		x.docker("stack", "rm", "shop")
		ours.none()
		ours.node.Check()
	})
}
