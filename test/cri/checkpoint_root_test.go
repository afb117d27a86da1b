package cri

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestCrictlCheckpoint stores a container by the real crictl. checkpointctl opens the archive, if the environment variable CHECKPOINTCTL
// names one. The variable CRIU names a CRIU.
func TestCrictlCheckpoint(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		criu := os.Getenv("CRIU")
		if criu == "" {
			t.Skip("no CRIU: the environment variable CRIU does not name one")
		}
		n := nodetest.Start(t, nodetest.Options{Config: "[network]\nmode = \"builtin\"\n[checkpoint]\nprogram = " + strconv.Quote(criu) + "\n"})
		pod := n.RunPod(t, n.PodConfig("p"))
		ct := pod.Run(t, nodetest.ContainerConfig("c", n.Busybox(t), "sh", "-c", "while :; do sleep 0.1; done"))
		c := newTool(t, n)
		file := filepath.Join(t.TempDir(), "c.tar")
		c.run("checkpoint", "--export", file, ct.ID)
		if st, err := os.Stat(file); err != nil || st.Size() == 0 || st.Mode().Perm() != 0o600 {
			t.Errorf("the archive: %v, %v", st, err)
		}
		if out := c.run("ps", "-q"); out != ct.ID {
			t.Errorf("afterwards these run: %s", out)
		}
		ctl := os.Getenv("CHECKPOINTCTL")
		if ctl == "" {
			return
		}
		for _, args := range [][]string{{"show", file}, {"inspect", "--all", file}} {
			out, err := exec.CommandContext(t.Context(), ctl, args...).CombinedOutput()
			if err != nil || !strings.Contains(string(out), "busybox") {
				t.Errorf("checkpointctl %v: %v\n%s", args, err, out)
			}
		}
	})
}
