package kata

import (
	"strings"
	"testing"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/roottest"
)

// TestDevicesOfAContainer: the files of a container's devices are the machine's devices, also
// when the host's numbers differ, and other devices cannot be used.
func TestDevicesOfAContainer(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		a := start(t)
		a.sandbox(t)
		details, err := a.GetGuestDetails(t.Context(), &katav1.GuestDetailsRequest{})
		if err != nil || strings.Join(details.GetAgentDetails().GetDeviceHandlers(), " ") != "blk mmioblk nvdimm scsi vfio-pci vfio-pci-gk" {
			t.Errorf("device handlers: %v, %v", details, err)
		}
		spec := a.spec("head -c 4 /dev/nothing | od -An -tx1; echo x >/dev/nothing && echo taken; echo x 2>/dev/null >/dev/most || echo full; head -c 1 /dev/log 2>&1 || true; stat -c %t:%T /dev/nothing /dev/most; mknod /tmp/log c 1 11; head -c 1 /tmp/log 2>&1 || true")
		spec.Process.Capabilities.Effective = append(spec.Process.Capabilities.Effective, "CAP_MKNOD")
		spec.Process.Capabilities.Permitted, spec.Process.Capabilities.Bounding = spec.Process.Capabilities.Effective, spec.Process.Capabilities.Effective
		spec.Linux.Devices = []*katav1.LinuxDevice{
			{Path: "/dev/nothing", Type: "c", Major: 1, Minor: 7, FileMode: 0o666}, {Path: "/dev/most", Type: "c", Major: 1, Minor: 5, FileMode: 0o666}, {Path: "/dev/log", Type: "c", Major: 1, Minor: 11, FileMode: 0o666},
		}
		req := &katav1.CreateContainerRequest{ContainerId: "c1", ExecId: "c1", OCI: spec, Devices: []*katav1.Device{
			{Type: "mmioblk", VmPath: "/dev/zero", ContainerPath: "/dev/nothing"}, {Type: "nvdimm", VmPath: "/dev/full", ContainerPath: "/dev/most"},
		}}
		if _, err := a.CreateContainer(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if _, err := a.StartContainer(t.Context(), &katav1.StartContainerRequest{ContainerId: "c1"}); err != nil {
			t.Fatal(err)
		}
		got := a.stdout(t, "c1", "c1")
		want := " 00 00 00 00\ntaken\nfull\nhead: /dev/log: Operation not permitted\n1:5\n1:7\nhead: /tmp/log: Operation not permitted\n"
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
		a.remove(t, "c1")
	})
}
