package node

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestOnlyContainersDumpCore: with the limits of the unit, agent and keeper write no core
// dumps, and containers and their execs may, as usual.
func TestOnlyContainersDumpCore(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil {
			t.Fatal(err)
		}
		if limit.Cur = 0; limit.Max == 0 {
			t.Skip("nobody here may dump core")
		}
		if err := unix.Setrlimit(unix.RLIMIT_CORE, &limit); err != nil {
			t.Fatal(err)
		}
		t.Setenv(roottest.HostEnv, "") // the unit sets the limit, not the kind of host
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		for _, pid := range append(nodetest.Pair(""), n.Pid()) {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
			if err != nil || !hasLine(string(text), "Max core file size 0 ") {
				t.Errorf("process %d: %v\n%s", pid, err, text)
			}
		}
		pod := n.RunPod(t, n.PodConfig("p"))
		c := pod.Run(t, nodetest.ContainerConfig("c", image, "/bin/sleep", "1000"))
		r, err := n.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/bin/cat", "/proc/1/limits", "/proc/self/limits"}, Timeout: 60})
		if err != nil {
			t.Fatal(err)
		}
		said := map[bool]string{true: "unlimited unlimited", false: fmt.Sprintf("%d %d", limit.Max, limit.Max)}[limit.Max == unix.RLIM_INFINITY]
		if got := strings.Count(strings.Join(strings.Fields(string(r.Stdout)), " "), "Max core file size "+said+" "); got != 2 {
			t.Errorf("want twice %s:\n%s", said, r.Stdout)
		}
		pod.Remove(t)
	})
}

// hasLine reports whether a line begins so, with any spaces.
func hasLine(text, want string) bool {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.Join(strings.Fields(line), " ")+" ", want) {
			return true
		}
	}
	return false
}
