package guest

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
)

// TestTheKernelAnnouncesDevices: a waiter for a device hears of it from the kernel.
func TestTheKernelAnnouncesDevices(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		announced, stop := listenToKernel()
		defer stop()
		for _, args := range [][]string{{"link", "add", "name", "plugged", "type", "veth", "peer", "name", "other"}, {"link", "delete", "plugged"}} {
			if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
				t.Fatalf("ip %v: %v: %s", args, err, out)
			}
			<-announced // the test's own deadline ends a wait for nothing
		}
	})
}

// TestADiskIsThereWhenItOpens: the kernel makes a disk's device file before the file can be opened.
func TestADiskIsThereWhenItOpens(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		const experimental = 120 // a major number without a driver
		d := disks{dev: t.TempDir(), wait: 10 * time.Millisecond}
		if err := unix.Mknod(d.dev+"/early", unix.S_IFBLK|0o600, int(unix.Mkdev(experimental, 1))); err != nil {
			t.Fatal(err)
		}
		if path, err := d.namedDisk(t.Context(), "/dev/early"); !errdefs.IsNotFound(err) {
			t.Errorf("a disk that cannot be opened yet: %q, %v", path, err)
		}
		if err := os.WriteFile(d.dev+"/late", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if path, err := d.namedDisk(t.Context(), "/dev/late"); err != nil || path != "/dev/late" {
			t.Errorf("a file that can be opened: %q, %v", path, err)
		}
	})
}
