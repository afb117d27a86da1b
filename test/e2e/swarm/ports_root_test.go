package swarm

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// TestPortsThatTheNodeChooses: each task of a service has a port of its own, which docker shows,
// and keeps it over the agent's death.
func TestPortsThatTheNodeChooses(t *testing.T) {
	beside(t, func(t *testing.T) {
		r := newRig(t)
		r.patient()
		r.join()
		r.create("web", r.ref, "--replicas", "3", "--publish", "mode=host,target=80", "--", "sh", "-c", "mkdir /www; hostname >/www/index.html; exec httpd -f -p 80 -h /www")
		told := r.chosen("web", 3)
		answers := map[string]bool{}
		for _, port := range told {
			url := fmt.Sprintf("http://10.99.0.1:%s/", port)
			roottest.Eventually(t, "port "+port+" is served", func() bool { return get(t, url) != "" })
			answers[get(t, url)] = true
		}
		if len(answers) != 3 {
			t.Errorf("ports %v answer %v", told, answers)
		}

		r.node.Kill()
		r.node.Up()
		roottest.Eventually(t, "the agent has a session again", func() bool { return r.session() == "up" })
		r.docker("service", "scale", "--detach", "web=5")
		now := r.chosen("web", 5)
		for task, port := range told {
			if now[task] != port {
				t.Errorf("task %s had port %s, and has %s", task, port, now[task])
			}
			if get(t, fmt.Sprintf("http://10.99.0.1:%s/", port)) == "" {
				t.Errorf("port %s is not served any more", port)
			}
		}

		// On the node's own network ports are discarded, as by dockerd.
		r.create("hosted", r.ref, "--network", "host", "--publish", "mode=host,target=80", "--", "sleep", "1000")
		if task := r.running("hosted", 1)[0]; task.Ports != "" {
			t.Errorf("on the node's network it has ports %q", task.Ports)
		}
		for _, name := range []string{"web", "hosted"} {
			r.docker("service", "rm", name)
		}
		r.none()
		r.node.Check()
	})
}

var chosenPort = regexp.MustCompile(`^\*:(\d+)->80/tcp$`)

// chosen waits until n tasks of a service run and returns the port of each, all different, by the
// tasks' ids.
func (r *rig) chosen(service string, n int) map[string]string {
	r.t.Helper()
	told, seen := map[string]string{}, map[string]bool{}
	for _, task := range r.running(service, n) {
		if in([]psTask{task}, "Running") == 0 {
			continue
		}
		m := chosenPort.FindStringSubmatch(task.Ports)
		if m == nil || seen[m[1]] {
			r.t.Fatalf("task %s has ports %q, others have %v", task.Name, task.Ports, seen)
		}
		told[task.ID], seen[m[1]] = m[1], true
	}
	return told
}
