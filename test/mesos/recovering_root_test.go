package mesos

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// stubborn is a runtime that removes nothing until it is let.
const stubborn = `#!/bin/sh
case " $* " in *" delete "*) echo asked >%[1]s/asked; read go <%[1]s/go;; esac
exec %[2]s "$@"
`

// TestTheAgentRecovers: an agent in a long recovery says so, and answers when it is done.
func TestTheAgentRecovers(t *testing.T) {
	crun, err := exec.LookPath("crun")
	if err != nil {
		t.Skip("no crun")
	}
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		program := filepath.Join(dir, "stubborn")
		if err := os.WriteFile(program, fmt.Appendf(nil, stubborn, dir, crun), 0o700); err != nil {
			t.Fatal(err)
		}
		for _, fifo := range []string{"asked", "go"} {
			if err := syscall.Mkfifo(filepath.Join(dir, fifo), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		n := nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf("[runtimes.stubborn]\npath = %q\n[face.mesos]\nenabled = true\n", program)})
		c := newClient(t, n)
		a := id("a")
		c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("exec sleep 1000")}, 200, "")
		n.Kill()
		// Unknown containers are to be removed before anything is served.
		if err := os.Mkdir(filepath.Join(n.State, "runtime", "stubborn", "left-behind"), 0o700); err != nil {
			t.Fatal(err)
		}
		n.Launch()
		if asked, err := os.ReadFile(filepath.Join(dir, "asked")); err != nil || string(asked) != "asked\n" {
			t.Fatalf("the runtime was asked %q, %v", asked, err)
		}
		c.is("GET_HEALTH", nil, 503, "Agent has not finished recovery")
		c.is("WAIT_CONTAINER", about(a), 503, "Agent has not finished recovery")
		for path, want := range map[string]int{"/health": 200, "/state": 503} {
			if got := c.status(path); got != want {
				t.Errorf("%s: %d, want %d", path, got, want)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "go"), []byte("on\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		nodetest.Eventually(t, "it has recovered", func() bool {
			resp := c.start(ctx, "GET_HEALTH", nil, "application/json")
			_ = resp.Body.Close()
			return resp.StatusCode == http.StatusOK
		})
		c.is("KILL_CONTAINER", about(a), 200, "")
		c.is("WAIT_CONTAINER", about(a), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
		c.is("REMOVE_CONTAINER", about(a), 200, "")
		n.Check()
	})
}

// status gets a document and returns how that was answered.
func (c *client) status(path string) int {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, "http://mesos"+path, http.NoBody)
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}
