package swarm

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// logs returns the output of a task's container.
func (r *rig) logs(task string) string {
	r.t.Helper()
	for _, c := range r.containers() {
		if c.Key == task {
			return r.cli("logs", c.ID)
		}
	}
	return ""
}

// TestWhatAServiceAsksFor: tasks get secrets, configs, templates and a port of the node, and report
// their end; a task that needs an overlay never comes to this node.
func TestWhatAServiceAsksFor(t *testing.T) {
	beside(t, func(t *testing.T) {
		r := newRig(t)
		id := r.join()
		r.write("secret", "planted-secret")
		r.write("config", "a config")
		r.docker("secret", "create", "pw", r.home+"/secret")
		r.docker("config", "create", "motd", r.home+"/config")
		r.create("web", r.ref, "--replicas", "1", "--secret", "source=pw,target=password,mode=0400,uid=33", "--config", "source=motd,target=/etc/motd",
			"--env", "WHO={{.Service.Name}}.{{.Task.Slot}}", "--hostname", "{{.Service.Name}}-{{.Task.Slot}}", "--publish", "mode=host,published=8080,target=80",
			"--mount", "type=tmpfs,target=/scratch,tmpfs-size=1m", "--mount", "type=volume,source=data,target=/data", "--limit-memory", "64m", "--",
			"sh", "-c", "echo $WHO $(hostname); cat /run/secrets/password /etc/motd; stat -c '%u %a' /run/secrets/password; touch /data/x /scratch/x; mkdir -p /www; echo served >/www/index.html; exec httpd -f -p 80 -h /www")
		task := r.running("web", 1)[0]
		if !strings.Contains(task.Ports, "*:8080->80/tcp") {
			t.Errorf("ports %q", task.Ports)
		}
		roottest.Eventually(t, "the task says what it has", func() bool { return strings.Contains(r.logs(task.ID), "33 400") })
		if out := r.logs(task.ID); !strings.Contains(out, "web.1 web-1") || !strings.Contains(out, "planted-secret") || !strings.Contains(out, "a config") {
			t.Errorf("it wrote %q", out)
		}
		roottest.Eventually(t, "the port is served", func() bool { return get(t, "http://10.99.0.1:8080/") == "served\n" })

		// An update takes the port from the task before.
		r.docker("service", "update", "--detach", "--env-add", "B=c", "web")
		r.eventually("web", "another task has the port", func(l []psTask) bool {
			return in(l, "Running") == 1 && l[0].ID != task.ID && get(t, "http://10.99.0.1:8080/") == "served\n"
		})

		r.create("bad", r.ref, "--restart-condition", "none", "--", "sh", "-c", "exit 3")
		failed := r.eventually("bad", "it has failed", func(l []psTask) bool { return in(l, "Failed") == 1 })[0]
		if got := r.docker("inspect", "--type", "task", "--format", "{{.Status.ContainerStatus.ExitCode}} {{.Status.State}}", failed.ID); got != "3 failed" || failed.Error == "" {
			t.Errorf("%s, error %q", got, failed.Error)
		}
		r.create("job", r.ref, "--restart-condition", "none", "--", "true")
		r.eventually("job", "it is complete", func(l []psTask) bool { return in(l, "Complete") == 1 })
		// Any user may listen at a low port, unless the service says otherwise.
		const low = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start; httpd -p 80"
		r.create("low", r.ref, "--user", "65534", "--restart-condition", "none", "--", "sh", "-c", low)
		r.eventually("low", "it is complete", func(l []psTask) bool { return in(l, "Complete") == 1 })
		r.create("high", r.ref, "--user", "65534", "--restart-condition", "none", "--sysctl", "net.ipv4.ip_unprivileged_port_start=81", "--", "sh", "-c", low)
		high := r.eventually("high", "it has failed", func(l []psTask) bool { return in(l, "Failed") == 1 })[0]
		roottest.Eventually(t, "its sysctl is what it asked for", func() bool { return strings.HasPrefix(r.logs(high.ID), "81\n") })
		r.create("none", "127.0.0.1:1/none:1", "--restart-condition", "none")
		if l := r.eventually("none", "it is rejected", func(l []psTask) bool { return in(l, "Rejected") == 1 }); !strings.Contains(l[0].Error, "127.0.0.1:1/none:1") {
			t.Errorf("without an image: %q", l[0].Error)
		}
		r.create("hosted", r.ref, "--network", "host", "--", "sleep", "1000")
		r.running("hosted", 1)

		// The node has not named overlays: their tasks never come.
		r.docker("network", "create", "--driver", "overlay", "mesh")
		r.create("meshed", r.ref, "--network", "mesh", "--", "sleep", "1000")
		if l := r.eventually("meshed", "it is pending", func(l []psTask) bool { return in(l, "Pending") == 1 && l[0].Error != "" }); !strings.Contains(l[0].Error, "missing plugin") {
			t.Errorf("on an overlay: %q", l[0].Error)
		}

		r.docker("node", "update", "--availability", "drain", id)
		r.eventually("hosted", "its task is shut down", func(l []psTask) bool { return in(l, "Shutdown") == 1 && in(l, "Running") == 0 })
		r.docker("node", "update", "--availability", "active", id)
		r.running("hosted", 1)
		for _, name := range []string{"web", "bad", "job", "low", "high", "none", "hosted", "meshed"} {
			r.docker("service", "rm", name)
		}
		r.none()
		r.node.Check()
		r.cli("swarm", "leave")
		roottest.Eventually(t, "the manager sees that the node has left", func() bool { return r.nodeState(id) == "down" })
		r.docker("node", "rm", id)
		if log := r.node.LogTail(1 << 20); strings.Contains(log, "planted-secret") || strings.Contains(log, r.Token) {
			t.Error("the agent's log tells a secret")
		}
	})
}

// get returns the answer at an address, "" for none.
func get(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(resp.Body)
	return string(body)
}

// TestWhoDies: tasks notice neither the agent's death nor the manager's, and their ends meanwhile
// are reported.
func TestWhoDies(t *testing.T) {
	beside(t, func(t *testing.T) {
		r := newRig(t)
		r.patient()
		id := r.join()
		r.create("web", r.ref, "--replicas", "2", "--restart-condition", "none", "--", "sh", "-c", "trap 'exit 4' USR1; while :; do sleep 1000 & wait; done")
		before := r.running("web", 2)
		first := r.pids()

		r.node.Kill()
		r.node.Up()
		roottest.Eventually(t, "the agent has a session again", func() bool { return r.session() == "up" })
		if now := r.pids(); !same(first, now) {
			t.Errorf("the agent's death was noticed: %v, then %v", first, now)
		}

		r.kill()
		r.up()
		roottest.Eventually(t, "there is a session with the manager's successor", func() bool { return r.session() == "up" && r.nodeState(id) == "ready" })
		if now := r.pids(); !same(first, now) {
			t.Errorf("the manager's death was noticed: %v, then %v", first, now)
		}

		// One ends while the manager is away.
		r.kill()
		for _, c := range r.containers() {
			if c.Key == before[0].ID {
				r.cli("kill", "--force", "--signal", "USR1", c.ID)
				r.cli("wait", c.ID)
			}
		}
		r.up()
		r.eventually("web", "the end is told", func(l []psTask) bool { return in(l, "Failed") == 1 && in(l, "Running") == 1 })
		if got := r.docker("inspect", "--type", "task", "--format", "{{.Status.ContainerStatus.ExitCode}}", before[0].ID); got != "4" {
			t.Errorf("exit code %s", got)
		}
		r.docker("service", "rm", "web")
		r.none()
		r.node.Check()
	})
}

// session is how the node's is.
func (r *rig) session() string {
	r.t.Helper()
	var s struct{ Session string }
	if err := json.Unmarshal([]byte(r.cli("swarm", "status", "--json")), &s); err != nil {
		r.t.Fatal(err)
	}
	return s.Session
}

// pids are those of the containers that run, by their keys.
func (r *rig) pids() map[string]int {
	r.t.Helper()
	all := map[string]int{}
	for _, c := range r.containers() {
		if c.State == "running" {
			all[c.Key] = c.Pid
		}
	}
	return all
}

func same(a, b map[string]int) bool {
	for k, v := range a {
		if v == 0 || b[k] != v {
			return false
		}
	}
	return len(a) == len(b) && len(a) > 0
}
