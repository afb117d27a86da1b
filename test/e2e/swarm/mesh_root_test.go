package swarm

import (
	"fmt"
	"testing"

	"github.com/longshore/longshore/internal/network/networktest"
)

// TestPublishedPortsOfAMixedSwarm: a port that a service publishes answers at our node, for tasks of
// dockerd's and of ours in turn, from the node itself, by its loopback too, from its tasks, from dockerd's
// machine and from another one. It survives the agent's death, and follows the service.
func TestPublishedPortsOfAMixedSwarm(t *testing.T) {
	beside(t, func(t *testing.T) {
		x := newMixed(t, 1, 1)
		x.deploy("shop", fmt.Sprintf(`version: "3.8"
services:
  web:
    image: %s
%s    ports: ["8080:80"]
    deploy: {replicas: 4}
`, x.ref, served))
		on := func(run []placed) (tasks []string) {
			nodes := map[string]bool{}
			for _, p := range run {
				tasks = append(tasks, p.id)
				nodes[p.node] = true
			}
			if len(nodes) != 2 {
				t.Errorf("tasks are on %v", nodes)
			}
			return tasks
		}
		ours, dockerd, other := &networktest.Namespace{Path: x.ours[0].link.NetNS()}, &networktest.Namespace{Path: x.link.NetNS()}, networktest.Own()
		everywhere := func(what string, tasks []string) {
			t.Helper()
			at := oursAddr(0) + ":8080"
			x.answersFrom(what+": our node", ours, at, tasks)
			x.answersFrom(what+": our node's loopback", ours, "127.0.0.1:8080", tasks)
			x.answersFrom(what+": our node, from dockerd's machine", dockerd, at, tasks)
			x.answersFrom(what+": our node, from another machine", other, at, tasks)
		}
		run := x.settled(map[string]int{"shop_web": 4})
		tasks := on(run)
		everywhere("deployed", tasks)
		for _, p := range run {
			if p.node == "ours0" { // by the node's bridge, also to itself
				x.answersFrom(p.String()+": our node", p.ns(), oursAddr(0)+":8080", tasks)
			}
		}

		g := keepAsking(t, "another machine", other, oursAddr(0)+":8080")
		for range 3 {
			x.ours[0].node.Kill()
			x.ours[0].node.Up()
			everywhere("the agent was killed", tasks)
		}
		if asked, wrong := g.end(); len(wrong) > 0 || asked == 0 {
			t.Errorf("%d of %d not answered while the agent was killed: %v", len(wrong), asked, wrong)
		}

		x.docker("service", "scale", "--detach", "shop_web=6")
		everywhere("scaled up", on(x.settled(map[string]int{"shop_web": 6})))
		x.docker("service", "scale", "--detach", "shop_web=2")
		everywhere("scaled down", on(x.settled(map[string]int{"shop_web": 2})))
		x.docker("stack", "rm", "shop")
		x.ours[0].none()
		x.ours[0].node.Check()
	})
}
