package swarm

import (
	"fmt"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// inspect is one value that docker tells of an object.
func (m *manager) inspect(kind, name, format string) string {
	m.t.Helper()
	return m.docker(kind, "inspect", "--format", format, name)
}

// updated waits until the update of a service is in a state.
func (m *manager) updated(service, state string) {
	m.t.Helper()
	roottest.Eventually(m.t, "the update of "+service+" is "+state, func() bool {
		var s struct{ UpdateStatus struct{ State string } }
		if err := m.Get(m.t.Context(), "/services/"+service, &s); err != nil {
			m.t.Fatal(err)
		}
		return s.UpdateStatus.State == state
	})
}

// availability sets a node's: active, pause or drain.
func (m *manager) availability(node, value string) {
	m.t.Helper()
	m.docker("node", "update", "--availability", value, node)
}

// TestServicesThatGrowAndShrink: 3, 10 and no replicas, and one on each node.
func TestServicesThatGrowAndShrink(t *testing.T) {
	beside(t, func(t *testing.T) {
		r := newRig(t)
		r.join()
		r.create("web", r.ref, "--replicas", "3", "--", "sleep", "1000")
		three := r.running("web", 3)
		pids := r.pids()
		r.docker("service", "scale", "--detach", "web=10")
		r.running("web", 10)
		now := r.pids()
		for _, task := range three {
			if now[task.ID] != pids[task.ID] || pids[task.ID] == 0 {
				t.Errorf("task %s was touched: pid %d, then %d", task.Name, pids[task.ID], now[task.ID])
			}
		}
		if len(now) != 10 {
			t.Errorf("%d containers: %v", len(now), now)
		}
		r.create("each", r.ref, "--mode", "global", "--", "sleep", "1000")
		r.running("each", 1)
		if got := r.docker("service", "ls", "--filter", "name=each", "--format", "{{.Mode}} {{.Replicas}}"); got != "global 1/1" {
			t.Errorf("the service of one task for each node: %s", got)
		}
		r.docker("service", "scale", "--detach", "web=0")
		r.eventually("web", "its tasks are gone", func([]psTask) bool { return len(r.containers()) == 1 })
		r.docker("service", "rm", "web", "each")
		r.none()
		r.node.Check()
	})
}

// TestUpdatesAndRollbacks: task after task is replaced, by hand back again, and by the
// manager itself when the new ones fail.
func TestUpdatesAndRollbacks(t *testing.T) {
	beside(t, func(t *testing.T) {
		r := newRig(t)
		r.join()
		r.create("web", r.ref, "--replicas", "2", "--env", "V=1", "--update-monitor", "500ms", "--rollback-monitor", "100ms", "--update-failure-action", "rollback", "--", "sh", "-c", "echo version $V; [ $V != bad ] && exec sleep 1000")
		r.running("web", 2)
		version := func(want string) {
			t.Helper()
			r.eventually("web", "version "+want+" runs", func(l []psTask) bool {
				n := 0
				for _, p := range l {
					if strings.HasPrefix(p.CurrentState, "Running") && r.logs(p.ID) == "version "+want+"\n" {
						n++
					}
				}
				return n == 2 && in(l, "Running") == 2
			})
		}
		version("1")
		r.docker("service", "update", "--detach", "--env-add", "V=2", "--update-order", "start-first", "web")
		r.updated("web", "completed")
		version("2")
		r.docker("service", "rollback", "--detach", "web")
		r.updated("web", "rollback_completed")
		version("1")
		// The manager has all the time that it may need to see that a task has failed.
		r.docker("service", "update", "--detach", "--env-add", "V=bad", "--update-monitor", "1h", "web")
		r.updated("web", "rollback_completed")
		version("1")
		if got := r.inspect("service", "web", "{{.Spec.TaskTemplate.ContainerSpec.Env}}"); got != "[V=1]" {
			t.Errorf("after the update that failed: %s", got)
		}
		r.docker("service", "rm", "web")
		r.none()
		r.node.Check()
	})
}

// TestWhereTasksMayBe: constraints, a pause and a drain.
func TestWhereTasksMayBe(t *testing.T) {
	beside(t, func(t *testing.T) {
		r := newRig(t)
		id := r.join()
		r.create("here", r.ref, "--constraint", "node.id=="+id, "--constraint", "node.platform.os==linux", "--", "sleep", "1000")
		r.create("west", r.ref, "--constraint", "node.labels.zone==west", "--", "sleep", "1000")
		r.running("here", 1)
		pending := func(what string) func([]psTask) bool {
			return func(l []psTask) bool {
				return len(l) > 0 && in(l, "Pending") == 1 && strings.Contains(l[0].Error, what)
			}
		}
		r.eventually("west", "it is pending", pending("scheduling constraints not satisfied"))
		r.docker("node", "update", "--label-add", "zone=west", id)
		r.running("west", 1)
		r.docker("node", "update", "--label-rm", "zone", id)
		r.eventually("west", "it may not be here any more", func([]psTask) bool { return len(r.pids()) == 1 })

		before := r.pids()
		r.availability(id, "pause")
		r.docker("service", "scale", "--detach", "here=2")
		r.eventually("here", "the second task is pending", func(l []psTask) bool { return in(l, "Running") == 1 && in(l, "Pending") == 1 })
		if now := r.pids(); !same(before, now) {
			t.Errorf("the pause was noticed: %v, then %v", before, now)
		}
		r.availability(id, "drain")
		r.eventually("here", "its tasks have ended", func([]psTask) bool { return len(r.pids()) == 0 })
		r.availability(id, "active")
		r.running("here", 2)
		r.docker("service", "rm", "here", "west")
		r.none()
		r.node.Check()
	})
}

// TestANodeThatIsTakenOut of the Swarm while it works says so, and may leave and join
// again, as another node.
func TestANodeThatIsTakenOut(t *testing.T) {
	beside(t, func(t *testing.T) {
		r := newRig(t)
		id := r.join()
		r.create("here", r.ref, "--replicas", "2", "--constraint", "node.id=="+id, "--", "sleep", "1000")
		r.running("here", 2)
		r.docker("node", "rm", "--force", id)
		roottest.Eventually(t, "the node says that it is out", func() bool {
			return strings.Contains(r.cli("swarm", "status"), "was removed from swarm")
		})
		r.cli("swarm", "leave")
		r.none()
		r.docker("service", "rm", "here")
		if other := r.join(); other == id {
			t.Errorf("it is node %s again", id)
		}
		r.create("again", r.ref, "--", "sleep", "1000")
		r.running("again", 1)
		r.docker("service", "rm", "again")
		r.none()
		r.node.Check()
	})
}

// TestStacks: a stack on the nodes' own networks runs; one on a network of its own never comes to
// this node.
func TestStacks(t *testing.T) {
	beside(t, func(t *testing.T) {
		r := newRig(t)
		r.join()
		r.write("greeting", "hello of the stack\n")
		file := func(networks string) string {
			return fmt.Sprintf(`version: "3.8"
services:
  web:
    image: %s
    command: ["sh", "-c", "cat /run/secrets/greeting; exec sleep 1000"]
    secrets: [greeting]
    deploy: {replicas: 2}
%s
secrets:
  greeting: {file: ./greeting}
`, r.ref, networks)
		}
		r.write("outside.yml", file("    networks: [outside]\n    ports: [{mode: host, target: 80}]\n  plain:\n    image: "+r.ref+"\n    command: [sleep, \"1000\"]\n    networks: [machine]\nnetworks:\n  outside: {external: true, name: bridge}\n  machine: {external: true, name: host}"))
		r.write("own.yml", file(""))
		deploy := func(name string) {
			r.docker("stack", "deploy", "--resolve-image", "never", "-c", r.home+"/"+name+".yml", name)
		}
		deploy("outside")
		for _, task := range r.running("outside_web", 2) {
			roottest.Eventually(t, "the task has the secret", func() bool { return r.logs(task.ID) == "hello of the stack\n" })
			if !chosenPort.MatchString(task.Ports) {
				t.Errorf("task %s has ports %q", task.Name, task.Ports)
			}
		}
		r.running("outside_plain", 1)
		before := r.pids()
		deploy("outside")
		deploy("own")
		r.eventually("own_web", "it is pending", func(l []psTask) bool {
			return len(l) == 2 && in(l, "Pending") == 2 && strings.Contains(l[0].Error, "missing plugin") && strings.Contains(l[1].Error, "missing plugin")
		})
		if now := r.pids(); !same(before, now) {
			t.Errorf("the same stack again was noticed: %v, then %v", before, now)
		}
		r.docker("stack", "rm", "outside", "own")
		r.none()
		if log := r.node.LogTail(1 << 20); strings.Contains(log, "own_web") {
			t.Error("a task on an overlay network has reached the node")
		}
		r.node.Check()
	})
}
