package node

import (
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestDefaultUlimits shows engine.ulimits in containers of kubelet and of the command line, in an exec, and in inspect. A request
// for another limit counts.
func TestDefaultUlimits(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: "ulimits = [\"nofile=333:444\", \"fsize=5120000\"]\n"})
		image := n.Busybox(t)
		const show = "ulimit -n; ulimit -Hn; ulimit -f"
		pod := n.RunPod(t, n.PodConfig("limits"))
		c := pod.Run(t, nodetest.ContainerConfig("c", image, "/bin/sh", "-c", show+"; sleep 1000"))
		roottest.Eventually(t, "the container has written its limits", func() bool {
			return strings.Count(c.ReadLog(t), "\n") >= 3
		})
		for _, want := range []string{"stdout F 333\n", "stdout F 444\n", "stdout F 10000\n"} { // blocks of 512 bytes
			if log := c.ReadLog(t); !strings.Contains(log, want) {
				t.Errorf("no %q in %q", want, log)
			}
		}
		must := func(want string, args ...string) {
			t.Helper()
			if out, err := n.CLI(args...); err != nil || strings.TrimSpace(out) != want {
				t.Errorf("%s: %q, %v; want %q", args, out, err, want)
			}
		}
		if out, err := n.CLI("run", "-d", "--name", "a", "--ulimit", "nofile=55:66", image, "/bin/sleep", "1000"); err != nil {
			t.Fatalf("%s, %v", out, err)
		}
		must("55\n66\n10000", "exec", "a", "/bin/sh", "-c", show)
		must("nofile 55 fsize 5120000", "inspect", "-f", "{{range .HostConfig.Ulimits}}{{.Name}} {{.Soft}} {{end}}", "a")
		n.Check()
	})
}
