package mesos

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/test/nodetest"
)

// attempt posts a call that the agent may not survive.
func (c *client) attempt(kind string, payload object) (code int, text string, err error) {
	body, err := json.Marshal(object{"type": kind, strings.ToLower(kind): payload})
	if err != nil {
		return 0, "", err
	}
	r, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, "http://mesos/api/v1", strings.NewReader(string(body)))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(raw), err
}

// running are the first processes of GET_CONTAINERS' list, by their names as text.
func (c *client) running() map[string]int {
	c.t.Helper()
	code, text := c.call("GET_CONTAINERS", object{"show_nested": true, "show_standalone": true})
	type name struct {
		Value  string
		Parent *name
	}
	var resp struct {
		GetContainers struct {
			Containers []struct {
				Status struct {
					ID  name `json:"container_id"`
					Pid int  `json:"executor_pid"`
				} `json:"container_status"`
			}
		} `json:"get_containers"`
	}
	if err := json.Unmarshal([]byte(text), &resp); err != nil || code != http.StatusOK {
		c.t.Fatalf("%d %q, %v", code, text, err)
	}
	all := map[string]int{}
	for _, one := range resp.GetContainers.Containers {
		id := one.Status.ID
		text := id.Value
		for p := id.Parent; p != nil; p = p.Parent {
			text = p.Value + "." + text
		}
		all[text] = one.Status.Pid
	}
	return all
}

// alive reports whether a process exists.
func alive(pid int) bool { return pid > 0 && syscall.Kill(pid, 0) == nil }

// TestTheAgentIsKilled: after the agent's death beside waits and a session, the next one knows
// the running containers, and how others have ended.
func TestTheAgentIsKilled(t *testing.T) {
	withNode(t, func(t *testing.T, n *nodetest.Node, c *client, image string) {
		a, b := id("a"), id("b")
		in, s := nested(a, "in"), nested(a, "s")
		c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("exec sleep 1000"), "container": withImage(image)}, 200, "")
		c.is("LAUNCH_CONTAINER", object{"container_id": in, "command": shell("exec sleep 1000"), "container": withImage(image)}, 200, "")
		c.is("LAUNCH_CONTAINER", object{"container_id": b, "command": shell("until [ -e go ]; do sleep 0.01; done; exit 6"), "container": withImage(image)}, 200, "")
		session := c.open(t.Context(), t, s, "echo here; sleep 4324 & sleep 4324", false)
		defer func() { _ = session.Body.Close() }()
		before := c.running()
		if len(before) != 4 {
			t.Errorf("running: %v", before)
		}
		waited := make(chan error, 2)
		for _, one := range []object{a, b} {
			go func() {
				code, text, err := c.attempt("WAIT_CONTAINER", about(one))
				if err == nil {
					t.Errorf("a wait was answered: %d %q", code, text)
				}
				waited <- err
			}()
		}
		nodetest.Eventually(t, "both wait", func() bool { return strings.Count(goroutines(t, n), ").waitContainer(") == 2 })
		n.Kill()
		<-waited
		<-waited
		if _, err := records(session.Body, ends); err == nil {
			t.Error("the session's stream has ended as if the session had")
		}
		if err := os.WriteFile(filepath.Join(n.Root, "mesos", "containers", "b", "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		nodetest.Eventually(t, "b ends without an agent", func() bool { return !alive(before["b"]) })
		n.Up()
		after := c.running()
		if len(after) != 2 || after["a"] != before["a"] || after["a.in"] != before["a.in"] || !alive(after["a.in"]) {
			t.Errorf("running: %v, before %v", after, before)
		}
		c.is("WAIT_CONTAINER", about(b), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":1536}}`)
		c.is("WAIT_NESTED_CONTAINER", about(s), 200, `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"exit_status":9}}`) // the next agent has killed it
		if left := nodetest.Processes("sleep", "4324"); len(left) > 0 {
			t.Errorf("the session's processes: %v", left)
		}
		c.is("KILL_CONTAINER", about(in), 200, "")
		c.is("WAIT_CONTAINER", about(in), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
		for _, one := range []object{a, b} {
			c.attemptKill(one)
			c.call("WAIT_CONTAINER", about(one))
			c.is("REMOVE_CONTAINER", about(one), 200, "")
		}
		n.Check()
	})
}

// goroutines are the agent's, as it tells them itself.
func goroutines(t *testing.T, n *nodetest.Node) string {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(n.State, "control-http.sock"))
	}}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://agent/debug/pprof/goroutine?debug=2", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("goroutines: %d, %v", resp.StatusCode, err)
	}
	return string(text)
}

func (c *client) attemptKill(id object) {
	c.t.Helper()
	if code, text := c.call("KILL_CONTAINER", about(id)); code != 200 && code != 404 {
		c.t.Errorf("kill: %d %q", code, text)
	}
}

// TestTheAgentDiesInALaunch: when the agent dies at any stage of a launch, a container that the
// next one lists runs, can be waited for and removed; another is nowhere, and its name is free.
func TestTheAgentDiesInALaunch(t *testing.T) {
	withNode(t, func(t *testing.T, n *nodetest.Node, c *client, image string) {
		root := id("root")
		c.is("LAUNCH_CONTAINER", object{"container_id": root, "command": shell("exec sleep 1000"), "container": withImage(image)}, 200, "")
		r := launchRound{n: n, c: c, image: image}
		for _, stage := range engine.Stages() {
			switch verb, _, _ := strings.Cut(stage, "."); verb {
			case "create_sandbox":
				t.Run(stage, func(t *testing.T) { r.dies(t, stage, "LAUNCH_CONTAINER", id("x")) })
			case "create": // and starts it too
				t.Run(stage, func(t *testing.T) { r.dies(t, stage, "LAUNCH_CONTAINER", id("x")) })
				t.Run(stage+"/nested", func(t *testing.T) { r.dies(t, stage, "LAUNCH_NESTED_CONTAINER", nested(root, "x")) })
			case "exec":
				t.Run(stage, func(t *testing.T) { r.dies(t, stage, "LAUNCH_NESTED_CONTAINER_SESSION", nested(root, "x")) })
			}
		}
		c.is("KILL_CONTAINER", about(root), 200, "")
		c.is("WAIT_CONTAINER", about(root), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
		c.is("REMOVE_CONTAINER", about(root), 200, "")
		n.Check()
	})
}

type launchRound struct {
	n     *nodetest.Node
	c     *client
	image string
}

// dies kills the agent at a stage of a launch.
func (r launchRound) dies(t *testing.T, stage, kind string, name object) {
	n := r.n
	c := *r.c
	c.t = t
	n.Kill()
	n.SetEnv("LONGSHORE_FAILPOINT=" + stage)
	n.Up()
	launch := object{"container_id": name, "command": shell("exec sleep 4325")}
	if kind != "LAUNCH_NESTED_CONTAINER_SESSION" {
		launch["container"] = withImage(r.image)
	}
	if code, text, err := c.attempt(kind, launch); err == nil {
		t.Errorf("it was answered: %d %q", code, text)
		n.Kill()
	} else if ws := n.Died(); ws.Signal() != syscall.SIGKILL {
		t.Errorf("the agent did not die at the stage: %#x", ws)
	}
	n.SetEnv()
	n.Up()
	n.Check()
	c.truth(name, kind == "LAUNCH_NESTED_CONTAINER_SESSION", stage == "exec.commit")
	// The same name again, from the beginning to the end.
	again := object{"container_id": name, "command": shell("exec sleep 4325"), "container": withImage(r.image)}
	c.is("LAUNCH_CONTAINER", again, 200, "")
	c.is("LAUNCH_CONTAINER", again, 202, "")
	c.is("KILL_CONTAINER", about(name), 200, "")
	c.is("WAIT_CONTAINER", about(name), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
	c.is("REMOVE_CONTAINER", about(name), 200, "")
	n.Check()
}

// truth compares the list with the processes, and leaves nothing of it. recorded says that the
// session got as far as its record: the next agent kills it and says so.
func (c *client) truth(name object, session, recorded bool) {
	c.t.Helper()
	text, _ := name["value"].(string)
	if name["parent"] != nil {
		text = "root." + text
	}
	if pid, listed := c.running()[text]; listed {
		if !alive(pid) || session {
			c.t.Errorf("%s is listed with process %d", text, pid)
		}
		c.is("LAUNCH_CONTAINER", object{"container_id": name, "command": shell("exec sleep 4325")}, 202, "")
		c.is("KILL_CONTAINER", about(name), 200, "")
		c.is("WAIT_CONTAINER", about(name), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
		c.is("REMOVE_CONTAINER", about(name), 200, "")
	} else {
		if recorded {
			c.is("WAIT_CONTAINER", about(name), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
		} else {
			c.is("WAIT_CONTAINER", about(name), 404, "Container "+text+" cannot be found")
		}
		c.is("KILL_CONTAINER", about(name), 404, "Container '"+text+"' cannot be found (or is already killed)")
	}
	nodetest.Eventually(c.t, "nothing of it runs", func() bool { return len(nodetest.Processes("sleep", "4325")) == 0 })
}

// TestTheAgentIsStopped: a stopped agent takes the sessions along, and all else continues.
func TestTheAgentIsStopped(t *testing.T) {
	withNode(t, func(t *testing.T, n *nodetest.Node, c *client, image string) {
		a := id("a")
		c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("exec sleep 1000"), "container": withImage(image)}, 200, "")
		session := c.open(t.Context(), t, nested(a, "s"), "echo here; sleep 4325 & sleep 4325", false)
		defer func() { _ = session.Body.Close() }()
		n.Stop()
		if left := nodetest.Processes("sleep", "4325"); len(left) > 0 {
			t.Errorf("the session's processes: %v", left)
		}
		if log := n.LogTail(4000); strings.Contains(log, "not cleaned up") {
			t.Errorf("the agent did not end as it should:\n%s", log)
		}
		n.Up()
		c.is("WAIT_NESTED_CONTAINER", about(nested(a, "s")), 200, `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"exit_status":9}}`)
		c.is("KILL_CONTAINER", about(a), 200, "")
		c.is("WAIT_CONTAINER", about(a), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
		c.is("REMOVE_CONTAINER", about(a), 200, "")
		n.Check()
	})
}
