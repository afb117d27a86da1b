package mesos

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/longshore/longshore/test/nodetest"
)

// TestOutputFollowsNoLink: a container owns its sandbox, and may put a link where its output
// goes. A new keeper that opens the file is not led to another one.
func TestOutputFollowsNoLink(t *testing.T) {
	withNode(t, func(t *testing.T, n *nodetest.Node, c *client, image string) {
		victim := filepath.Join(n.Dir, "victim")
		if err := os.WriteFile(victim, []byte("its own\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		a := id("a")
		c.is("LAUNCH_CONTAINER", object{"container_id": a, "container": withImage(image), "command": shell(
			"echo first; rm stdout; ln -s " + victim + " stdout; echo > ready; until [ -e go ]; do sleep 0.01; done; echo led astray")}, 200, "")
		dir := filepath.Join(n.Root, "mesos/containers/a")
		nodetest.Eventually(t, "it has put a link there", func() bool {
			_, err := os.Stat(filepath.Join(dir, "ready"))
			return err == nil
		})
		before := nodetest.Pair("keeper")
		for _, pid := range before {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		nodetest.Eventually(t, "there is another keeper", func() bool {
			now := nodetest.Pair("keeper")
			return len(now) == 1 && !slices.Contains(before, now[0])
		})
		if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		c.is("WAIT_CONTAINER", about(a), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":0}}`)
		if got, err := os.ReadFile(victim); err != nil || string(got) != "its own\n" {
			t.Errorf("a file of the host's has %q, %v", got, err)
		}
		if code, text := c.call("READ_FILE", object{"path": filepath.Join(dir, "stdout"), "offset": 0}); code != 400 || !strings.Contains(text, "inaccessible") {
			t.Errorf("read by its link: %d %q", code, text)
		}
		c.is("REMOVE_CONTAINER", about(a), 200, "")
		n.Check()
	})
}
