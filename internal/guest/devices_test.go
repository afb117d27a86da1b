package guest

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// link makes a link of sysfs; its target need not exist.
func link(t testing.TB, target, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

// TestDevicesAreFound: each type of device in a machine with a directory as its sysfs.
func TestDevicesAreFound(t *testing.T) {
	const deep = "sys/devices/pci0000:00/0000:00:02.0/0000:01:00.0/"
	m, dir, _ := fake(t, map[string]string{
		deep + "virtio1/block/vda/size":                                           "",
		"sys/devices/pci0000:20/0000:20:00.0/0000:21:01.0/virtio3/block/vdc/size": "",
		"sys/class/scsi_host/host0/scan":                                          "",
		"sys/bus/scsi/devices/0:0:1:2/block/sda/size":                             "",
		"dev/vda": "", "dev/vdc": "", "dev/vdb": "", "dev/pmem0": "", "dev/sda": "", "dev/vfio/7": "",
		"sys/devices/pci0000:00/0000:00:05.0/config":       "",
		"sys/devices/pci0000:00/0000:00:06.1/config":       "",
		"sys/devices/pci0000:00/0000:00:07.0/config":       "",
		"sys/devices/pci0000:00/0000:00:08.0/config":       "",
		"sys/bus/pci/drivers_probe":                        "",
		"sys/bus/pci/drivers/e1000/unbind":                 "",
		"sys/bus/pci/devices/0000:00:05.0/driver_override": "",
		"sys/bus/pci/devices/0000:00:06.1/driver_override": "",
		"sys/bus/pci/devices/0000:00:07.0/driver_override": "",
		"sys/bus/pci/devices/0000:00:08.0/driver_override": "",
	})
	m.PlugTime = 50 * time.Millisecond
	pci := dir + "/sys/bus/pci/devices/"
	link(t, "../../drivers/e1000", pci+"0000:00:05.0/driver")
	link(t, "../../drivers/vfio-pci", pci+"0000:00:06.1/driver")
	for at, group := range map[string]string{"0000:00:05.0": "7", "0000:00:06.1": "7", "0000:00:07.0": "8"} {
		link(t, "../../../kernel/iommu_groups/"+group, pci+at+"/iommu_group")
	}
	m.kernel.node = func(path string) (Node, error) {
		nodes := map[string]Node{"/dev/vda": {"b", 254, 0}, "/dev/vdb": {"b", 254, 16}, "/dev/vdc": {"b", 254, 32}, "/dev/sda": {"b", 8, 0}, "/dev/pmem0": {"b", 259, 0}, "/dev/vfio/7": {"c", 240, 1}}
		n, ok := nodes[path]
		if !ok {
			return n, errors.New("no node")
		}
		return n, nil
	}
	for _, tt := range []struct {
		d    Device
		want Node
		path string
		pci  map[string]string
		ok   func(error) bool
	}{
		{d: Device{Type: "blk", ID: "02/00"}, want: Node{"b", 254, 0}},
		{d: Device{Type: "blk", ID: "20/00/01"}, want: Node{"b", 254, 32}},
		{d: Device{Type: "blk", VMPath: "/dev/vdb"}, want: Node{"b", 254, 16}},
		{d: Device{Type: "mmioblk", VMPath: "/dev/vdb"}, want: Node{"b", 254, 16}},
		{d: Device{Type: "nvdimm", VMPath: "/dev/pmem0"}, want: Node{"b", 259, 0}},
		{d: Device{Type: "scsi", ID: "1:2"}, want: Node{"b", 8, 0}},
		{d: Device{Type: "vfio-pci-gk", ID: "x", Options: []string{"0000:3a:00.1=05", "0000:3a:00.2="}}, pci: map[string]string{"0000:3a:00.1": "0000:00:05.0"}},
		{
			d:    Device{Type: "vfio-pci", ID: "x", Options: []string{"0000:3a:00.1=05", "0000:3a:00.2=06.1"}},
			want: Node{"c", 240, 1}, path: "/dev/vfio/7", pci: map[string]string{"0000:3a:00.1": "0000:00:05.0", "0000:3a:00.2": "0000:00:06.1"},
		},
		{d: Device{Type: "vfio-pci", ID: "x", Options: []string{"0000:3a:00.1=05", "0000:3a:00.2=07"}}, ok: errdefs.IsInvalidArgument}, // two groups
		{d: Device{Type: "vfio-pci", ID: "x", Options: []string{"0000:3a:00.1=08"}}, ok: func(err error) bool { return strings.Contains(err.Error(), "no IOMMU group") }},
		{d: Device{Type: "vfio-pci", ID: "x"}, ok: errdefs.IsInvalidArgument},
		{d: Device{Type: "vfio-pci-gk", ID: "x", Options: []string{"0000:3a:00.1=1f"}}, ok: errdefs.IsNotFound},
		{d: Device{Type: "vfio-pci-gk", ID: "x", Options: []string{"0000:3a:00.1=05=06"}}, ok: errdefs.IsInvalidArgument},
		{d: Device{Type: "vfio-pci-gk", ID: "x", Options: []string{"3a:00.1=05"}}, ok: errdefs.IsInvalidArgument},
		{d: Device{Type: "vfio-pci-gk", ID: "x", Options: []string{"0000:3a:00.1=05", "0000:3a:00.1=07"}}, ok: errdefs.IsInvalidArgument},
		{d: Device{Type: "blk", ID: "02/../.."}, ok: errdefs.IsInvalidArgument},
		{d: Device{Type: "blk", ID: "03"}, ok: errdefs.IsNotFound},
		{d: Device{Type: "mmioblk", VMPath: "/etc/passwd"}, ok: errdefs.IsInvalidArgument},
		{d: Device{Type: "mmioblk", ID: "02"}, ok: errdefs.IsInvalidArgument},
		{d: Device{Type: "blk"}, ok: errdefs.IsInvalidArgument},
		{d: Device{Type: "vfio-ap", ID: "x"}, ok: errdefs.IsInvalidArgument},
	} {
		got, err := m.Device(t.Context(), tt.d)
		if tt.ok != nil {
			if err == nil || !tt.ok(err) {
				t.Errorf("%v: %v, %v", tt.d, got, err)
			}
			continue
		}
		if err != nil || got.Path != tt.path || !maps.Equal(got.PCI, tt.pci) || (got.Node == nil) != (tt.want == Node{}) || got.Node != nil && *got.Node != tt.want {
			t.Errorf("%v: %+v, %v", tt.d, got, err)
		}
	}
	for name, want := range map[string]string{
		"class/scsi_host/host0/scan": "0 1 2", "bus/pci/drivers/e1000/unbind": "0000:00:05.0", "bus/pci/devices/0000:00:05.0/driver_override": "vfio-pci",
		"bus/pci/devices/0000:00:06.1/driver_override": "vfio-pci",
	} {
		if got := content(t, dir+"/sys/"+name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestNodes(t *testing.T) {
	if n, err := nodeAt("/dev/null"); err != nil || n != (Node{"c", 1, 3}) {
		t.Errorf("/dev/null: %v, %v", n, err)
	}
	if n, err := nodeAt("/etc/passwd"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a file: %v, %v", n, err)
	}
	if n, err := nodeAt("/dev/no-such-device"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing: %v, %v", n, err)
	}
}

func TestIsPCIAddress(t *testing.T) {
	pattern := regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	found := 0
	const good = "00fe:3a:1f.7"
	for i := range len(good) {
		for c := range byte(128) {
			s := good[:i] + string(rune(c)) + good[i+1:]
			want := pattern.MatchString(s)
			if IsPCIAddress(s) != want {
				t.Errorf("%q: %t, want %t", s, !want, want)
			}
			if want {
				found++
			}
		}
	}
	if found < 100 || IsPCIAddress("") || IsPCIAddress(good+"0") || IsPCIAddress(good[:11]) {
		t.Errorf("%d addresses", found)
	}
}
