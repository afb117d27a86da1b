package docker_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestTheReadSocketAndOtherOwners starts a node with a read socket that shows the command line's containers: the socket lists and
// inspects them, has their logs on the full socket only, and changes none, while each container runs on.
func TestTheReadSocketAndOtherOwners(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir, err := os.MkdirTemp("", "longshore-docker-") // t.TempDir's are too long for socket addresses
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		full, read := filepath.Join(dir, "docker.sock"), filepath.Join(dir, "read.sock")
		n := nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf("[face.docker]\nenabled = true\nsocket = %q\nread_socket = %q\nshow = [\"cli\"]\n", full, read)})
		t.Cleanup(n.Check)
		image := n.Busybox(t)
		if out, err := n.CLI("run", "-d", "--name", "theirs", "--env", "SECRET=planted", image, "sh", "-c", "echo out; sleep 1000"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		ours, reader := newSide("full", full, nil, prepared(t)), newSide("read", read, nil, nil)
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
		if out, err := n.CLI("rm", "-f", "theirs"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
}
