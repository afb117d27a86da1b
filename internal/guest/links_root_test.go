package guest

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/roottest"
)

// TestALinkIsPluggedIn: a link is found by its PCI path once sysfs has it there, with any address
// and name; its traffic is counted.
func TestALinkIsPluggedIn(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		ip := func(args ...string) string {
			t.Helper()
			out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput()
			if err != nil {
				t.Fatalf("ip %v: %v: %s", args, err, out)
			}
			return string(out)
		}
		m, dir, _ := fake(t, nil)
		want := Link{Name: "eth0", MAC: "02:00:00:00:00:07", PCI: "02/00", Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/24")}}
		m.PlugTime = 10 * time.Millisecond
		if err := m.UpdateLink(t.Context(), want); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "02/00") {
			t.Errorf("before it is there: %v", err)
		}
		ip("link", "add", "plugged", "type", "veth", "peer", "name", "other")
		for _, name := range []string{"plugged", "other"} { // the host's default may differ
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("0"), 0); err != nil {
				t.Fatal(err)
			}
		}
		m.PlugTime = time.Minute
		done := make(chan error, 1)
		go func() { done <- m.UpdateLink(t.Context(), want) }()
		put(t, filepath.Join(dir, "sys/devices/pci0000:00/0000:00:02.0/0000:01:00.0/virtio2/net/plugged/type"), "1")
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if out := ip("addr", "show", "eth0"); !strings.Contains(out, "192.0.2.7/24") || !strings.Contains(out, "02:00:00:00:00:07") {
			t.Errorf("the link is\n%s", out)
		}
		ip("link", "set", "other", "up")
		ip("addr", "add", "192.0.2.8/24", "dev", "other")
		roottest.Eventually(t, "the link has sent something", func() bool { // its own IPv6 announcements
			list, err := m.LinkStats(t.Context())
			if err != nil || len(list) != 2 {
				t.Fatalf("%v, %v", list, err)
			}
			return list[0].Name != list[1].Name && list[0].TxBytes > 0 && list[0].TxPackets > 0 && list[1].TxBytes > 0
		})
		bad := want
		bad.PCI = "../02"
		if err := m.UpdateLink(t.Context(), bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("a path upwards: %v", err)
		}
		if err := m.UpdateLink(t.Context(), Link{PCI: "02/00"}); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("no name: %v", err)
		}
	})
}
