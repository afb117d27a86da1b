package kata

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestAnAgentThatCannotStart says why, and takes the keeper with it that it has started.
func TestAnAgentThatCannotStart(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		out, err := exec.CommandContext(t.Context(), filepath.Join(nodetest.Bin(t), "longshore-guest"),
			"--listen", "unix://"+filepath.Join(dir, "s"), "--state", filepath.Join(dir, "state"), "--cgroup-root", "/../out").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "cgroup root") {
			t.Errorf("%v: %s", err, out)
		}
		nodetest.Eventually(t, "nothing of it runs", func() bool {
			return len(nodetest.Pair(""))+len(nodetest.Processes("longshore-guest", "")) == 0
		})
	})
}
