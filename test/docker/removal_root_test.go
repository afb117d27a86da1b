package docker_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestVolumesOfACutRemoval kills the agent at each stage of the removal of a container with its anonymous volume. The next agent has
// neither, or both, and no named volume is removed.
func TestVolumesOfACutRemoval(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir, err := os.MkdirTemp("", "longshore-docker-") // t.TempDir's are too long for socket addresses
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		socket := filepath.Join(dir, "docker.sock")
		n := nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf("[face.docker]\nenabled = true\nsocket = %q\n", socket)})
		t.Cleanup(n.Check)
		s := newSide("ours", socket, nil, prepared(t))
		s.must(t, "POST /images/load", "@box.tar")
		cut := 0
		for _, stage := range engine.Stages() {
			if verb, _, _ := strings.Cut(stage, "."); verb != "remove" && verb != "remove_sandbox" {
				continue
			}
			n.Kill()
			n.SetEnv("LONGSHORE_FAILPOINT=" + stage)
			n.Up()
			s.http.CloseIdleConnections()
			s.must(t, "POST /containers/create?name=c", `{"Image":"box","Cmd":["true"],"Volumes":{"/anonymous":{}},"HostConfig":{"Binds":["named:/named"]}}`)
			r := s.do(step{do: "DELETE /containers/c?v=1"})
			if r.err == nil && r.status == 204 {
				t.Logf("%s: not reached", stage)
				continue
			}
			if ws := n.Died(); !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
				t.Errorf("%s: the agent did not die: %#x, %d %s", stage, ws, r.status, r.body)
			}
			cut++
			n.SetEnv()
			n.Up()
			s.http.CloseIdleConnections()
			left := s.do(step{do: "GET /containers/c/json"}).status == 200
			volumes := strings.Count(string(s.must(t, "GET /volumes", "").body), `"Mountpoint"`)
			if want := map[bool]int{true: 2, false: 1}[left]; volumes != want {
				t.Errorf("%s: %d volumes, want %d; the container exists: %t", stage, volumes, want, left)
			}
			if left {
				s.must(t, "DELETE /containers/c?v=1&force=1", "")
			}
		}
		if cut < 3 {
			t.Errorf("the agent died in %d removals only", cut)
		}
		s.must(t, "DELETE /volumes/named", "")
	})
}
