package swarm

import (
	"slices"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// managers are the hubs that dockerd knows.
func (f *fleet) managers() []string {
	f.t.Helper()
	list := strings.Fields(f.docker("info", "--format", "{{range .Swarm.RemoteManagers}}{{.Addr}} {{end}}"))
	slices.Sort(list)
	return list
}

// container is the only container of dockerd: its id, the process and when it was started.
func (f *fleet) container() string {
	f.t.Helper()
	return f.docker("inspect", "--format", "{{.Id}} {{.State.Pid}} {{.State.StartedAt}}", f.docker("ps", "--quiet", "--no-trunc"))
}

// TestDockerdFindsAnotherHub: dockerd joins one of two hubs and learns of the other. When its hub is
// killed it goes to the other one, and back when that one is killed too; its container is not
// touched, and declarations made meanwhile reach it.
func TestDockerdFindsAnotherHub(t *testing.T) {
	beside(t, func(t *testing.T) {
		flags := append(nodetest.StartEtcd(t), "--lease", "3s")
		f := newFleet(t, flags...)
		defer f.show()
		first, second := f.hub, nodetest.StartHub(t, otherIP+":4000", append([]string{"--heartbeat", "1s"}, flags...)...)
		f.join()
		id := f.ready()
		knows := func(addrs ...string) {
			t.Helper()
			roottest.Eventually(t, "dockerd knows the hubs "+strings.Join(addrs, " "), func() bool { return slices.Equal(f.managers(), addrs) })
		}
		knows(first.Addr, second.Addr)
		const stack = "name: web\nservices:\n  app: {image: \"%[1]s\", command: [sleep, \"100000\"], deploy: {mode: global}}\n"
		f.declare(stack + "#%[2]s")
		task := f.hub.Running("web_app", 1)
		runs := f.container()

		// lost has a hub die and the other one declare something, which shows that dockerd has found it.
		lost := func(gone, left *nodetest.Hub, service string) {
			t.Helper()
			gone.Kill()
			f.hub = left
			knows(left.Addr)
			f.declare(stack + "  " + service + ": {image: \"%[1]s\", command: [\"true\"], deploy: {mode: global, restart_policy: {condition: none}}}\n#%[2]s")
			roottest.Eventually(t, service+" has run", func() bool {
				return slices.ContainsFunc(left.Tasks("web_"+service), func(n nodetest.HubTask) bool { return n.State == "complete" })
			})
			if again := f.ready(); again != id {
				t.Errorf("the node is %s, it was %s", again, id)
			}
			if now := left.Running("web_app", 1); now[0].ID != task[0].ID {
				t.Errorf("the task is another one: %+v, %+v", now, task)
			}
			if now := f.container(); now != runs {
				t.Errorf("the container was %s and is %s", runs, now)
			}
		}
		lost(first, second, "while-the-first-is-away")
		first.Up()
		knows(first.Addr, second.Addr)
		lost(second, first, "while-the-second-is-away")
		second.Up()
		knows(first.Addr, second.Addr)
		if now := f.container(); now != runs {
			t.Errorf("the container was %s and is %s", runs, now)
		}
	})
}
