package dockerclients

import (
	"os"
	"testing"

	"github.com/longshore/longshore/test/nodetest"
)

// leavesEnv makes a process of this program leave its containers behind (see leave).
const leavesEnv = "LONGSHORE_TEST_LEAVES"

func TestMain(m *testing.M) {
	if os.Getenv(leavesEnv) == "1" {
		leave()
		return
	}
	os.Exit(m.Run())
}

// start starts a node. Its registry has the image of the reaper, too.
func start(t *testing.T) nodetest.DockerNode {
	t.Helper()
	reaper := nodetest.RyukImage(t, "ryuk/main.go") // before HOME, which has go's cache, is another one
	n := nodetest.StartDocker(t)
	n.Hub.Push(nodetest.Ryuk, nodetest.RyukTag, reaper)
	return n
}
