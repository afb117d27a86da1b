package swarm

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/longshore/longshore/test/nodetest"
)

// busy is a stack with a task of one service on each node, which nobody touches, and others that end
// while nobody looks.
func (x *mixed) busy() string {
	return fmt.Sprintf(`version: "3.8"
services:
  kept:
    image: %[1]s
%[2]s    networks: [net]
    ports: ["8080:80"]
    deploy: {mode: global}
  brief:
    image: %[1]s
%[2]s    networks: [net]
    deploy: {replicas: 2, restart_policy: {delay: 0s}, placement: {constraints: ["node.labels.kind==ours"], max_replicas_per_node: 1}}
networks:
  net: {driver: overlay}
`, x.ref, served)
}

// tasksOf are the tasks of a service.
func tasksOf(run []placed, service string) (list []placed) {
	for _, p := range run {
		if p.service == service {
			list = append(list, p)
		}
	}
	return list
}

// sweptIn is how long after an agent's start other nodes may still have the records of a task that has ended before.
const sweptIn = 2 * time.Second

// TestKillsUnderOverlayTraffic kills agents fifty times at random, and keepers beside, while tasks of all nodes ping
// each other and ask each other's web servers, by address, by the service's and at published ports. Nothing is lost. If
// a task ends while its agent is dead, the next agent removes its records; in the end no node has too many, too few or
// wrong ones.
func TestKillsUnderOverlayTraffic(t *testing.T) {
	alone(t, func(t *testing.T) {
		long(t)
		kills := 50
		if s := os.Getenv("LONGSHORE_SWARM_KILLS"); s != "" {
			var err error
			if kills, err = strconv.Atoi(s); err != nil {
				t.Fatal(err)
			}
		}
		seed := uint64(time.Now().UnixNano())
		t.Logf("%d kills of agents, seed %d", kills, seed)
		rnd := rand.New(rand.NewPCG(seed, 0))
		x := newMixed(t, 2, 2)
		x.patient()
		for _, l := range x.ours {
			x.docker("node", "update", "--label-add", "kind=ours", l.id)
		}
		x.deploy("busy", x.busy())
		count := map[string]int{"busy_kept": 4, "busy_brief": 2}
		run := x.settled(count)
		x.agree("deployed", run, "busy_net")
		kept := tasksOf(run, "busy_kept")
		x.published(8080, "busy_kept", run)
		r := between(t, kept)
		for n, l := range x.ours {
			r.gets = append(r.gets, keepAsking(t, "a client", shoreNS(), oursAddr(n)+":8080"))
			for _, p := range kept {
				if p.node == x.names[l.id] {
					r.gets = append(r.gets, keepAsking(t, p.String(), p.ns(), p.vips["busy_net"].String()))
				}
			}
		}
		killed, longest := map[string]int{}, 0.0
		for done := 0; killed["agent"]+killed["both"] < kills; done++ {
			l := x.ours[rnd.IntN(len(x.ours))]
			who := []string{"agent", "keeper", "both"}[rnd.IntN(3)]
			killed[who]++
			if who != "keeper" {
				l.node.Kill()
			}
			if who != "agent" {
				l.node.KillKeeper()
			}
			var ended placed
			if who != "keeper" {
				nodetest.Pause(rnd.IntN(1000))
				if done%3 == 0 {
					for _, p := range tasksOf(run, "busy_brief") {
						if p.node == x.names[l.id] {
							ended = p
						}
					}
					if ended.pid == 0 { // which would be the test's own process group
						t.Fatalf("no task of busy_brief is on %s: %v", x.names[l.id], run)
					}
					_ = syscall.Kill(ended.pid, syscall.SIGKILL)
				}
				began := time.Now()
				l.node.Up()
				if ended.id != "" {
					killed["task"]++
					x.every(ended.String()+" has ended: its records are gone", func() (wrong []string) {
						for n, d := range x.dockers {
							for _, k := range d.network("busy_net").Services["busy_brief"].Tasks {
								if k.Name == ended.name {
									wrong = append(wrong, fmt.Sprintf("dockerd%d has it", n))
								}
							}
						}
						return wrong
					})
					longest = max(longest, time.Since(began).Seconds())
				}
			}
			l.node.KeeperBack()
			l.back()
			l.told()
			nodetest.Pause(rnd.IntN(1500))
			if done%10 == 9 || killed["agent"]+killed["both"] == kills || ended.id != "" {
				run = x.settled(count)
				x.agree(fmt.Sprintf("after %d kills", done+1), run, "busy_net")
				for _, l := range x.ours {
					l.node.Check()
				}
			}
		}
		for i, p := range tasksOf(run, "busy_kept") {
			if p.id != kept[i].id || p.pid != kept[i].pid {
				t.Errorf("%s was process %d, and is %s with %d", kept[i], kept[i].pid, p, p.pid)
			}
		}
		r.whole()
		if longest > sweptIn.Seconds() {
			t.Errorf("the records of a task that had ended were there %.1f s after the agent's start, which may be %s", longest, sweptIn)
		}
		t.Logf("killed %v; the records of a task that had ended meanwhile were gone not later than %.1f s after the start", killed, longest)
		x.docker("stack", "rm", "busy")
		for _, l := range x.ours {
			l.none()
			l.node.Check()
		}
	})
}
