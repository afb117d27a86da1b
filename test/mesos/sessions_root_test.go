package mesos

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// withNode runs body on a node with the face.
func withNode(t *testing.T, body func(t *testing.T, n *nodetest.Node, c *client, image string)) {
	t.Helper()
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: "[face.mesos]\nenabled = true\n"})
		body(t, n, newClient(t, n), n.Busybox(t))
	})
}

// open opens a session and waits until it has said something.
func (c *client) open(ctx context.Context, t *testing.T, s object, command string, tty bool) *http.Response {
	t.Helper()
	payload := object{"container_id": s, "command": shell(command)}
	if tty {
		payload["container"] = object{"type": "MESOS", "tty_info": object{}}
	}
	resp := c.start(ctx, "LAUNCH_NESTED_CONTAINER_SESSION", payload, "application/recordio")
	if _, err := records(resp.Body, said); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("session %v: %d, %v", s, resp.StatusCode, err)
	}
	return resp
}

func said(all map[string]string) bool { return all["STDOUT"] != "" }

// TestTwoHundredDroppedSessions: a session dropped in its middle, with a terminal and without,
// watched and not, leaves nothing.
func TestTwoHundredDroppedSessions(t *testing.T) {
	withNode(t, func(t *testing.T, n *nodetest.Node, c *client, image string) {
		a := id("a")
		c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("exec sleep 1000"), "container": withImage(image)}, 200, "")
		drop := func(i int) {
			s := nested(a, fmt.Sprintf("s%d", i))
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			resp := c.open(ctx, t, s, "sleep 4323 & echo here; wait", i%4 == 0)
			defer func() { _ = resp.Body.Close() }()
			if i%3 == 0 { // somebody looks on
				watch := c.start(t.Context(), "ATTACH_CONTAINER_OUTPUT", about(s), "application/recordio")
				defer func() {
					_, err := records(watch.Body, ends)
					if err != nil || watch.StatusCode != http.StatusOK {
						t.Errorf("who looks on: %d, %v", watch.StatusCode, err)
					}
					_ = watch.Body.Close()
				}()
			}
			if i%5 == 0 {
				if code, text := c.input(s, stdin("words\n")); code != 200 {
					t.Errorf("input: %d %q", code, text)
				}
			}
			leave()
			c.is("WAIT_NESTED_CONTAINER", about(s), 200, `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"exit_status":9}}`)
		}
		drops := func(from, each int) {
			var wg sync.WaitGroup
			for w := range 4 {
				wg.Go(func() {
					for i := range each {
						drop(from + each*w + i)
					}
				})
			}
			wg.Wait()
		}
		drops(0, 6) // one of each kind, for the things that stay
		gone := func() bool { return len(nodetest.Processes("sleep", "4323")) == 0 }
		nodetest.Eventually(t, "the first sessions' processes are gone", gone)
		var before nodetest.Holdings
		nodetest.Eventually(t, "and so are their files", func() bool { // a wait is answered before them
			before = n.Baseline(t)
			return !slices.ContainsFunc(before["files run"], func(f string) bool { return strings.Contains(f, "exec-s") })
		})
		drops(100, 50)
		if t.Failed() {
			return
		}
		nodetest.Eventually(t, "all processes are gone", gone)
		var diff string
		t.Cleanup(func() {
			if diff != "" {
				t.Logf("what is not as before (-before +after):\n%s", diff)
			}
		})
		nodetest.Eventually(t, "what 200 sessions used is given back", func() bool {
			diff = n.Holdings(t).Since(before)
			return diff == ""
		})
		n.Check()
		c.is("KILL_CONTAINER", about(a), 200, "")
		c.is("WAIT_CONTAINER", about(a), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
		c.is("REMOVE_CONTAINER", about(a), 200, "")
	})
}

// much is a command that writes more than any buffer on its way holds.
const (
	lines = 400_000
	much  = "yes 0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789 | head -n 400000; echo the last line"
)

// tally counts a stream's lines until it ends, or until the last one has come.
func tally(r io.Reader, toEnd bool) (count int, complete bool, err error) {
	var tail string
	err = follow(r, func(rec record) bool {
		count += bytes.Count(rec.Data.Data, []byte("\n"))
		tail += string(rec.Data.Data)
		tail = tail[max(0, len(tail)-64):]
		complete = strings.HasSuffix(tail, "\nthe last line\n")
		return complete && !toEnd
	})
	return count, complete, err
}

// TestASlowReader: a connected client that does not read stops neither the container nor the
// readers. Of a container these may miss something too, when the machine is slow, but never
// later output.
func TestASlowReader(t *testing.T) {
	withNode(t, func(t *testing.T, n *nodetest.Node, c *client, image string) {
		a := id("a")
		info := withImage(image)
		info["tty_info"] = object{}
		c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("stty -echo -onlcr; read x; " + much + "; until [ -e seen ]; do echo the last line; sleep 0.1; done; read y"), "container": info}, 200, "")
		t.Run("of a container", func(t *testing.T) {
			lazy := c.start(t.Context(), "ATTACH_CONTAINER_OUTPUT", about(a), "application/recordio")
			defer func() { _ = lazy.Body.Close() }()
			reader := c.start(t.Context(), "ATTACH_CONTAINER_OUTPUT", about(a), "application/recordio")
			defer func() { _ = reader.Body.Close() }()
			if code, text := c.input(a, stdin("go\n")); code != 200 {
				t.Errorf("input: %d %q", code, text)
			}
			if _, complete, err := tally(reader.Body, false); err != nil || !complete {
				t.Errorf("who reads: %v, %v", complete, err)
			}
			dir := filepath.Join(n.Root, "mesos", "containers", "a")
			if err := os.WriteFile(filepath.Join(dir, "seen"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if code, text := c.input(a, stdin("end\n")); code != 200 {
				t.Errorf("input: %d %q", code, text)
			}
			c.is("WAIT_CONTAINER", about(a), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":0}}`)
			out, err := os.ReadFile(filepath.Join(dir, "stdout"))
			if err != nil || bytes.Count(out, []byte("\n")) <= lines {
				t.Errorf("its file has %d lines, %v", bytes.Count(out, []byte("\n")), err)
			}
			c.is("REMOVE_CONTAINER", about(a), 200, "")
		})
		t.Run("of a session", func(t *testing.T) {
			c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("exec sleep 1000"), "container": withImage(image)}, 200, "")
			s := nested(a, "s")
			session := c.open(t.Context(), t, s, "echo here; read x; "+much+"; exit 4", false)
			defer func() { _ = session.Body.Close() }()
			lazy := c.start(t.Context(), "ATTACH_CONTAINER_OUTPUT", about(s), "application/recordio")
			defer func() { _ = lazy.Body.Close() }()
			if code, text := c.input(s, stdin("go\n")); code != 200 {
				t.Errorf("input: %d %q", code, text)
			}
			if count, complete, err := tally(session.Body, true); err != nil || count != lines+1 || !complete {
				t.Errorf("the session: %d lines, %v, %v", count, complete, err)
			}
			c.is("WAIT_NESTED_CONTAINER", about(s), 200, `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"exit_status":1024}}`)
			c.is("KILL_CONTAINER", about(a), 200, "")
			c.is("WAIT_CONTAINER", about(a), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
			c.is("REMOVE_CONTAINER", about(a), 200, "")
		})
		n.Check()
	})
}
