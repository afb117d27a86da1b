package swarm

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// everywhere is a stack of one service with a task on each node.
func (x *mixed) everywhere() string {
	return fmt.Sprintf(`version: "3.8"
services:
  app:
    image: %[1]s
%[2]s    networks: [net]
    ports: ["8080:80"]
    deploy: {mode: global}
networks:
  net: {driver: overlay, attachable: true}
`, x.ref, served)
}

// TestNodesOfAMixedSwarmComeAndGo: a dockerd that is killed or cut off is out of our nodes' names, peers and
// backends when the other dockerd has given it up, and in again when it is back; a node of ours that is
// cut off is out of dockerd's, keeps its tasks, says so, and is whole again afterwards.
func TestNodesOfAMixedSwarmComeAndGo(t *testing.T) {
	alone(t, func(t *testing.T) {
		long(t)
		x := newMixed(t, 2, 2)
		x.patient()
		x.deploy("all", x.everywhere())
		count := map[string]int{"all_app": 4}
		run := x.settled(count)
		x.agree("deployed", run, "all_net")

		// A dockerd dies, and its tasks start again with it.
		other := x.dockers[1]
		other.kill()
		left := x.gone("dockerd is killed", "dockerd1", "all_net", run)
		back := x.returning("dockerd was killed", "tasks.all_app", left)
		if err := other.Restart(); err != nil {
			t.Fatal(err)
		}
		other.answers()
		x.every("the killed dockerd has another task", func() (wrong []string) {
			now, wait := x.placed()
			for _, p := range now {
				for _, q := range run {
					if p.node == "dockerd1" && p.id == q.id {
						wait = append(wait, p.String())
					}
				}
			}
			return wait
		})
		run = x.settled(count)
		back()
		x.agree("dockerd is back", run, "all_net")
		x.published(8080, "all_app", run)

		// It is cut off.
		other.link.Cut()
		left = x.gone("dockerd is cut off", "dockerd1", "all_net", run)
		back = x.returning("dockerd was cut off", "tasks.all_app", left)
		other.link.Mend()
		run = x.settled(count)
		back()
		x.agree("dockerd has its cable back", run, "all_net")

		// A node of ours is cut off.
		mine := x.ours[0]
		before := mine.pids()
		mine.link.Cut()
		x.gone("our node is cut off", "ours0", "all_net", run)
		roottest.Eventually(t, "the node says that it hears nobody", func() bool { return mine.overlays().Gossip != "up" })
		if now := mine.pids(); !same(before, now) {
			t.Errorf("the tasks of the node that is cut off were %v, and are %v", before, now)
		}
		mine.node.Check()
		began := time.Now()
		mine.link.Mend()
		x.agree("our node has its cable back", run, "all_net")
		t.Logf("whole %.1f s after the cable was back", time.Since(began).Seconds())
		if now := mine.pids(); !same(before, now) {
			t.Errorf("the tasks of the node that was cut off were %v, and are %v", before, now)
		}
		x.docker("stack", "rm", "all")
		for _, l := range x.ours {
			l.none()
			l.node.Check()
		}
	})
}

// TestADeadMemberOfANetwork: a node of ours enters a network with a dead dockerd that is not given up yet,
// and its task is whole at once.
func TestADeadMemberOfANetwork(t *testing.T) {
	alone(t, func(t *testing.T) {
		long(t)
		x := newMixed(t, 2, 2)
		x.patient()
		x.docker("network", "create", "--driver", "overlay", "net")
		x.create("first", x.ref, "--network", "net", "--constraint", "node.labels.where==dockerd1", "--", "sleep", "1000")
		x.settled(map[string]int{"first": 1})
		x.dockers[1].kill()
		began := time.Now()
		x.create("second", x.ref, "--network", "net", "--mode", "global", "--constraint", "node.labels.where!=dockerd0", "--constraint", "node.labels.where!=dockerd1", "--env", "TASK={{.Task.ID}}",
			"--", "sh", "-c", "mkdir /www; echo $TASK >/www/index.html; exec httpd -f -p 80 -h /www")
		var run []placed
		x.every("our nodes' tasks run", func() (wrong []string) {
			all, _ := x.placed()
			if run = tasksOf(all, "second"); len(run) != 2 {
				wrong = append(wrong, fmt.Sprint(all))
			}
			return wrong
		})
		x.every("they reach each other", func() []string { return unreached(run) })
		took := time.Since(began)
		t.Logf("whole after %.1f s", took.Seconds())
		if took > besideDead {
			t.Errorf("whole after %s, which may be %s", took, besideDead)
		}
		x.docker("service", "rm", "first", "second")
	})
}

// TestANewNodeAtADeadOnesAddress: the agent is killed, the node taken out of the Swarm, and the next one at its
// address has another name in the gossip while the others still hold the dead one: it is heard.
func TestANewNodeAtADeadOnesAddress(t *testing.T) {
	beside(t, func(t *testing.T) {
		long(t)
		x := newMixed(t, 2, 1)
		x.deploy("all", x.everywhere())
		run := x.settled(map[string]int{"all_app": 3})
		x.agree("deployed", run, "all_net")
		mine := x.ours[0]
		mine.node.Kill()
		x.docker("node", "rm", "--force", mine.id)
		delete(x.names, mine.id)
		mine.link.Cut() // so that the next agent does not say goodbye for the dead one
		mine.node.Up()
		mine.cli("swarm", "leave")
		mine.link.Mend()
		mine.id = mine.join()
		x.names[mine.id] = "ours0"
		run = x.settled(map[string]int{"all_app": 3})
		x.agree("under another name", run, "all_net")
		x.published(8080, "all_app", run)
		x.docker("stack", "rm", "all")
		mine.none()
		mine.node.Check()
	})
}

// besideDead is how long two tasks may take until they reach each other on a network that has a dead member. Docker's
// library alone waits half a minute for that one.
const besideDead = 15 * time.Second

// gone waits until nobody on the other nodes finds a node's tasks any more, and says how long after the
// dockerds our nodes have noticed it. It returns the tasks of the other nodes.
func (x *mixed) gone(what, node, network string, run []placed) (left []placed) {
	x.t.Helper()
	for _, p := range run {
		if p.node != node {
			left = append(left, p)
		}
	}
	began := time.Now()
	x.every(what+": the dockerds have given it up", func() []string { return x.misheld(left, network) })
	theirs := time.Since(began)
	x.every(what+": our nodes have, too", func() (wrong []string) {
		for _, p := range left {
			if strings.HasPrefix(p.node, "ours") {
				wrong = append(wrong, p.misses(left)...)
			}
		}
		return wrong
	})
	later := time.Since(began) - theirs
	x.t.Logf("%s: the dockerds have noticed it after %.1f s, our nodes not later than %.1f s after them", what, theirs.Seconds(), later.Seconds())
	x.soon(what+": our nodes have noticed it", later)
	return left
}

// behind is the longest delay of a node of ours after a dockerd in noticing another one's change.
const behind = 2 * time.Second

// soon wants a time to be below behind. LONGSHORE_TEST_PATIENCE does not count: the cases that measure run alone.
func (x *mixed) soon(what string, later time.Duration) {
	x.t.Helper()
	if later > behind {
		x.t.Errorf("%s %.1f s later than the dockerds, which may be %s", what, later.Seconds(), behind)
	}
}

// returning watches from the tasks that are left how a node comes back: when a name has an address that none of
// them has, and when that answers. The function that it returns waits for it, and compares our nodes with the dockerd.
func (x *mixed) returning(what, name string, left []placed) func() {
	type seen struct{ named, answered time.Time }
	all := make([]seen, len(left))
	var watching sync.WaitGroup
	has := map[netip.Addr]bool{}
	for _, p := range left {
		for _, a := range p.addrs {
			has[a] = true
		}
	}
	ctx, cancel := context.WithTimeout(x.t.Context(), roottest.Patience())
	for i, p := range left {
		watching.Go(func() {
			for ctx.Err() == nil && all[i].answered.IsZero() {
				addrs, _ := p.lookUp(name)
				for _, a := range addrs {
					if has[a] {
						continue
					}
					if all[i].named.IsZero() {
						all[i].named = time.Now()
					}
					if id, _ := p.get(a.String()); id != "" {
						all[i].answered = time.Now()
					}
				}
				nodetest.Pause(often)
			}
		})
	}
	return func() {
		x.t.Helper()
		watching.Wait()
		cancel()
		var first seen
		for i, p := range left {
			if all[i].answered.IsZero() {
				x.t.Fatalf("%s: %s never reached it again", what, p)
			}
			if strings.HasPrefix(p.node, "dockerd") {
				first = all[i]
			}
		}
		for i, p := range left {
			if strings.HasPrefix(p.node, "dockerd") {
				continue
			}
			named, answered := all[i].named.Sub(first.named), all[i].answered.Sub(first.answered)
			x.t.Logf("%s, and is back: %s knows its name %+.2f s and reaches it %+.2f s after the dockerd", what, p.node, named.Seconds(), answered.Seconds())
			x.soon(what+": "+p.node+" knows its name", named)
			x.soon(what+": "+p.node+" reaches it", answered)
		}
	}
}

// back waits until a node of ours has its session again.
func (l *linked) back() {
	l.t.Helper()
	roottest.Eventually(l.t, l.link.NetNS()+" has its session again", func() bool { return l.session() == "up" })
}
