package guest

import (
	"os/exec"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// TestTheKernelAnnouncesDevices: who waits for a device hears of it from the kernel.
func TestTheKernelAnnouncesDevices(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		announced, stop := listenToKernel()
		defer stop()
		for _, args := range [][]string{{"link", "add", "name", "plugged", "type", "veth", "peer", "name", "other"}, {"link", "delete", "plugged"}} {
			if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
				t.Fatalf("ip %v: %v: %s", args, err, out)
			}
			<-announced // the test's own deadline ends what never comes
		}
	})
}
