package node

import (
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestTheWholeHostIsAVolume mounts the host's root and the agent's own state,
// with all that is mounted below, into containers, as node exporters and network
// plugins have it; also of an agent that was started again.
func TestTheWholeHostIsAVolume(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		for _, life := range []string{"first", "second"} {
			pod := n.RunPod(t, n.PodConfig(life))
			for name, path := range map[string]string{"root": "/", "state": n.State} {
				cfg := nodetest.ContainerConfig(name, image, "/bin/ls", filepath.Join("/host", strings.TrimPrefix(n.State, path)))
				cfg.Mounts = []*runtimeapi.Mount{{HostPath: path, ContainerPath: "/host", Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER}}
				c := pod.Run(t, cfg)
				if st := c.WaitExited(t); st.GetExitCode() != 0 || !strings.Contains(c.ReadLog(t), "cri.sock") {
					t.Errorf("%s, %s: %d, %q", life, name, st.GetExitCode(), c.ReadLog(t))
				}
			}
			pod.Remove(t)
			n.Stop()
			n.Up()
		}
		n.Check()
	})
}
