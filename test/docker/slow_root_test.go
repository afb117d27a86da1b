package docker_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// resident returns the resident memory of the agent, in bytes.
func resident(t *testing.T, n *nodetest.Node) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	kb, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kb << 10
}

// must sends a request that has to succeed.
func (s *side) must(t *testing.T, do, body string) reply {
	t.Helper()
	r := s.do(step{do: do, body: body})
	if r.err != nil || r.status >= 300 {
		t.Fatalf("%s: %d %.300s, %v", do, r.status, r.body, r.err)
	}
	return r
}

// TestSlowClients connects clients that send nothing, and others that read nothing of endless answers, while events with labels of a
// megabyte are made. The agent answers others as before, and its memory is bounded.
func TestSlowClients(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir, err := os.MkdirTemp("", "longshore-docker-") // t.TempDir's are too long for socket addresses
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		socket := filepath.Join(dir, "docker.sock")
		n := nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf("[face.docker]\nenabled = true\nsocket = %q\nmax_connections = 400\n", socket)})
		t.Cleanup(n.Check)
		s := newSide("ours", socket, nil, prepared(t))
		s.must(t, "POST /images/load", "@box.tar")
		s.must(t, "POST /containers/create?name=loud", `{"Image":"box","Cmd":["sh","-c","yes | head -c 4000000; head -c 9000000 /dev/zero >/big; exec sleep 1000"]}`)
		s.must(t, "POST /containers/loud/start", "")
		big := fmt.Sprintf(`{"Image":"box","Cmd":["true"],"Labels":{"big":%q}}`, strings.Repeat("x", 1<<20))
		churn := func() (slowest time.Duration) {
			for i := range 30 {
				began, name := time.Now(), "big"+strconv.Itoa(i)
				s.must(t, "POST /containers/create?name="+name, big)
				s.must(t, "DELETE /containers/"+name, "")
				slowest = max(slowest, time.Since(began))
			}
			return slowest
		}
		churn() // large requests leave garbage, with and without slow clients
		before := resident(t, n)
		open := func(request string) {
			c, err := new(net.Dialer).DialContext(t.Context(), "unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			if request != "" {
				_, _ = io.WriteString(c, request+" HTTP/1.1\r\nHost: d\r\n\r\n")
			}
		}
		for range 300 { // those that send nothing make room for others
			open("")
		}
		for range 20 {
			for _, request := range []string{
				"GET /events?since=1", "GET /containers/loud/logs?follow=1&stdout=1", "POST /containers/loud/attach?stream=1&stdout=1&logs=1",
				"GET /containers/loud/stats", "GET /containers/loud/archive?path=/big", "GET /images/box/get", "GET /containers/loud/export",
			} {
				open(request)
			}
		}
		s.http.CloseIdleConnections() // the agent has closed them, to make room
		slowest := churn()
		s.must(t, "GET /_ping", "")
		s.must(t, "POST /containers/loud/restart?t=0", "")
		grown := resident(t, n) - before
		t.Logf("the agent has %d MB, and had %d MB before; the slowest pair of create and remove took %s", (before+grown)>>20, before>>20, slowest)
		if grown > 150<<20 {
			t.Error("slow clients cost too much memory")
		}
		s.must(t, "DELETE /containers/loud?force=1", "")
	})
}
