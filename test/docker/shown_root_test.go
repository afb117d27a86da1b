package docker_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// startShown starts a node with a read socket that shows the command line's containers, with further lines of the configuration, and
// one of these containers, theirs.
func startShown(t *testing.T, lines string) (n *nodetest.Node, full, read *side) {
	t.Helper()
	dir, err := os.MkdirTemp("", "longshore-docker-") // t.TempDir's are too long for socket addresses
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	sockets := []string{filepath.Join(dir, "docker.sock"), filepath.Join(dir, "read.sock")}
	n = nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf(
		"[face.docker]\nenabled = true\nsocket = %q\nread_socket = %q\nshow = [\"cli\"]\n%s\n", sockets[0], sockets[1], lines)})
	t.Cleanup(n.Check)
	image := n.Busybox(t)
	if out, err := n.CLI("run", "-d", "--name", "theirs", "--env", "SECRET=planted", image, "sh", "-c", "echo out; sleep 1000"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := n.CLI("rm", "-f", "theirs"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	return n, newSide("full", sockets[0], nil, prepared(t)), newSide("read", sockets[1], nil, nil)
}

// TestTheReadSocketAndOtherOwners starts a node with a read socket that shows the command line's containers: the socket lists and
// inspects them, has their logs on the full socket only, and changes none, while each container runs on.
func TestTheReadSocketAndOtherOwners(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n, ours, reader := startShown(t, "")
		for _, c := range []struct {
			side   *side
			do     string
			status int
			text   string
		}{
			{reader, "GET /containers/json", 200, `"/theirs"`},
			{reader, "GET /containers/theirs/json", 200, `"longshore.owner":"cli"`},
			{reader, "GET /containers/theirs/top", 200, "sleep 1000"},
			{ours, "GET /containers/theirs/logs?stdout=1", 200, "out"},
			{reader, "GET /containers/theirs/logs?stdout=1", 403, "only requests that list and inspect"},
			{reader, "POST /containers/theirs/kill", 403, "only requests that list and inspect"},
			{reader, "GET /containers/theirs/export", 403, "only requests that list and inspect"},
			{reader, "DELETE /containers/theirs?force=1", 403, "only requests that list and inspect"},
			{ours, "POST /containers/theirs/kill", 403, "belongs to cli"},
			{ours, "DELETE /containers/theirs?force=1", 403, "belongs to cli"},
		} {
			r := c.side.do(step{do: c.do})
			if r.err != nil || r.status != c.status || !strings.Contains(string(r.body), c.text) || strings.Contains(string(r.body), "planted") {
				t.Errorf("%s: %s: %d %.500s, %v; want %d with %s", c.side.name, c.do, r.status, r.body, r.err, c.status, c.text)
			}
		}
		if out, err := n.CLI("ps", "-q"); err != nil || out == "" {
			t.Errorf("it does not run any more: %q, %v", out, err)
		}
	})
}

// TestOtherOwnersAreManaged runs a program in a container of the command line, restarts it, and stops it, as the configuration allows. The
// events of its life are sent.
func TestOtherOwnersAreManaged(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n, ours, reader := startShown(t, `manage = ["cli"]`)
		var made struct {
			ID string `json:"Id"`
		}
		ours.must(t, "POST /containers/theirs/exec", `{"Cmd":["sh","-c","echo by exec; exit 3"],"AttachStdout":true}`).decode(t, &made)
		if r := ours.must(t, "POST /exec/"+made.ID+"/start", "{}"); !strings.Contains(string(r.body), "by exec") {
			t.Errorf("exec: %q", r.body)
		}
		var state struct {
			ExitCode int
			State    struct{ Pid int }
		}
		if ours.must(t, "GET /exec/"+made.ID+"/json", "").decode(t, &state); state.ExitCode != 3 {
			t.Errorf("%+v", state)
		}
		ours.must(t, "GET /containers/theirs/json", "").decode(t, &state)
		before := state.State.Pid
		ours.must(t, "POST /containers/theirs/restart?t=0", "")
		if ours.must(t, "GET /containers/theirs/json", "").decode(t, &state); state.State.Pid == before || state.State.Pid == 0 {
			t.Errorf("pid %d after the restart, %d before", state.State.Pid, before)
		}
		ours.must(t, "POST /containers/theirs/stop?t=0", "")
		if out, err := n.CLI("ps", "-q"); err != nil || out != "" {
			t.Errorf("it runs: %q, %v", out, err)
		}
		for _, do := range []string{"POST /containers/theirs/exec", "POST /exec/" + made.ID + "/start", "POST /containers/theirs/stop"} {
			if r := reader.do(step{do: do, body: "{}"}); r.status != 403 {
				t.Errorf("read socket: %s: %d", do, r.status)
			}
		}
		if r := ours.do(step{do: "POST /containers/theirs/start"}); r.status != 403 || !strings.Contains(string(r.body), "changes nothing else") {
			t.Errorf("start: %d %s", r.status, r.body)
		}
		events := string(ours.must(t, fmt.Sprintf("GET /events?since=1&until=%d", time.Now().Unix()+1), "").body)
		for _, want := range []string{`"Action":"create"`, `"Action":"start"`, `"Action":"die"`, `"Action":"restart"`, `"longshore.owner":"cli"`, `"name":"theirs"`} {
			if !strings.Contains(events, want) {
				t.Errorf("no %s in the events:\n%s", want, events)
			}
		}
	})
}

// decode reads the answer's document.
func (r reply) decode(t *testing.T, into any) {
	t.Helper()
	if err := json.Unmarshal(r.body, into); err != nil {
		t.Fatalf("%v: %.300s", err, r.body)
	}
}
