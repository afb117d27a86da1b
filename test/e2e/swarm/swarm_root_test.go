package swarm

import (
	"os"
	"strings"
	"testing"
)

// TestAServiceFromJoinToLeave: the node joins a real manager, runs its tasks, and leaves nothing.
func TestAServiceFromJoinToLeave(t *testing.T) {
	beside(t, func(t *testing.T) {
		r := newRig(t)
		if out := r.cli("swarm", "status"); !strings.Contains(out, "in no swarm") {
			t.Errorf("status before: %s", out)
		}
		id := r.join()
		if got := r.docker("node", "inspect", "--format", "{{.Description.Engine.EngineVersion}} {{.Description.Platform.OS}} {{.Spec.Role}}", id); !strings.HasPrefix(got, "longshore ") || !strings.HasSuffix(got, " linux worker") {
			t.Errorf("the manager's view of the node: %s", got)
		}
		if _, err := r.node.CLI("swarm", "join", r.Address, "--token", r.Token); err == nil || !strings.Contains(err.Error(), "already") {
			t.Errorf("a second join: %v", err)
		}
		// The manager is on the same machine, and has the port of overlay networks.
		doctor, _ := r.node.CLI("doctor")
		if !strings.Contains(doctor, "tcp port 7946, the gossip port of overlay networks, is in use by dockerd (pid ") {
			t.Errorf("doctor does not say who has port 7946:\n%s", doctor)
		}

		r.create("web", r.ref, "--", "sleep", "1000")
		tasks := r.running("web", 1)
		list := r.containers()
		if len(list) != 1 || list[0].Key != tasks[0].ID || list[0].State != "running" || list[0].Owner != "swarm" {
			t.Fatalf("containers %+v, tasks %+v", list, tasks)
		}
		r.docker("service", "scale", "--detach", "web=3")
		r.running("web", 3)
		r.docker("service", "scale", "--detach", "web=0")
		r.eventually("web", "its tasks are gone", func([]psTask) bool { return len(r.containers()) == 0 })

		r.docker("service", "scale", "--detach", "web=1")
		before := r.running("web", 1)
		r.docker("service", "update", "--detach", "--env-add", "A=b", "web")
		r.eventually("web", "its task is another one", func(l []psTask) bool {
			return in(l, "Running") == 1 && in(l, "Shutdown") >= 1 && l[0].ID != before[0].ID
		})
		r.docker("service", "rm", "web")
		r.none()
		r.node.Check()

		r.cli("swarm", "leave")
		if out := r.cli("swarm", "status"); !strings.Contains(out, "in no swarm") {
			t.Errorf("status after: %s", out)
		}
		if _, err := os.Stat(r.node.Root + "/swarm/identity.json"); !os.IsNotExist(err) {
			t.Errorf("the key is there after leaving: %v", err)
		}
	})
}
