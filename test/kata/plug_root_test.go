package kata

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/test/nodetest"
)

// patienceEnv says in a guest how the agent waits for devices there: long, with a
// timeout of a minute, or short, with one of a second.
const patienceEnv = "LONGSHORE_KATA_PATIENCE"

// The place of the host's files in a guest, and the PCI paths of the guests' disks:
// hack/vm/kata.sh plugs them in there, or has a place for them.
const (
	sharedDir  = "/run/kata-containers/shared/containers/"
	imagePath  = "10"
	swapPath   = 0x12
	pluggedAt  = "05/00"
	emptyPlace = "06/00"
)

// plug calls the agent for a device that QEMU plugs in. An agent with patience is called before
// the device appears, another one when the kernel has it.
func plug(t *testing.T, in func(), there func() bool, call func() error) {
	t.Helper()
	if os.Getenv(patienceEnv) == "short" {
		in()
		nodetest.Eventually(t, "the kernel has the device", there)
		if err := call(); err != nil {
			t.Fatalf("a device that is there: %v", err)
		}
		return
	}
	if there() {
		t.Fatal("the device is there too early")
	}
	called := make(chan error, 1)
	go func() { called <- call() }()
	in()
	if err := <-called; err != nil {
		t.Fatalf("a device that is being plugged in: %v", err)
	}
	if !there() {
		t.Error("the agent has not waited")
	}
}

// sharedByTheHost runs a container on a root shared by virtiofs.
func (a *agent) sharedByTheHost(t *testing.T) {
	spec := a.spec("cat /told; echo by the guest > /made; ls /bin/busybox")
	spec.Root.Path = sharedDir + "host/rootfs"
	a.run(t, "host", spec)
	if out := a.stdout(t, "host", "host"); out != "by the host\n/bin/busybox\n" {
		t.Errorf("stdout %q, %s", out, a.stderr(t, "host", "host"))
	}
	if got := a.wait(t, "host", "host"); got != 0 {
		t.Errorf("status %d", got)
	}
	a.remove(t, "host")
	if _, err := a.RemoveStaleVirtiofsShareMounts(t.Context(), &katav1.RemoveStaleVirtiofsShareMountsRequest{}); err != nil {
		t.Errorf("RemoveStaleVirtiofsShareMounts: %v", err)
	}
}

// pluggedDisk runs containers on a disk that is plugged in, taken out, and plugged in
// again, on one with a SCSI address, and with one as their device.
func (a *agent) pluggedDisk(t *testing.T, m *monitor) {
	disk := map[string]any{"driver": "virtio-blk-pci", "bus": "plug", "drive": "plug", "share-rw": true}
	const slot = "/sys/devices/pci0000:00/0000:00:05.0/0000:*:00.0/virtio*/block/*"
	for _, id := range []string{"plugged", "again"} {
		if os.Getenv(patienceEnv) == "short" {
			for _, none := range []string{pluggedAt, emptyPlace} {
				if err := a.createOn(t, id, "blk", none); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), none+" was plugged in within 1s") {
					t.Errorf("a disk that is not there, %s: %v", none, err)
				}
			}
		}
		disk["id"] = id
		a.runOn(t, m, disk, slot, func() error { return a.createOn(t, id, "blk", pluggedAt) })
	}
	disk["id"] = "raw"
	a.runOn(t, m, disk, slot, func() error { return a.createWith(t, "raw", pluggedAt) })
	disk = map[string]any{"driver": "scsi-hd", "id": "scsi-disk", "bus": "scsi.0", "scsi-id": 4, "lun": 1, "drive": "scsi", "share-rw": true}
	a.runOn(t, m, disk, "/sys/bus/scsi/devices/*:0:4:1/block/*", func() error { return a.createOn(t, "scsi-disk", "scsi", "4:1") })
}

// magic prints the mark of an ext4's superblock.
const magic = "busybox dd if=%s bs=1 skip=1080 count=2 2>/dev/null | busybox od -An -tx1; exit 21"

// createOn creates a container with a disk as root.
func (a *agent) createOn(t *testing.T, id, driver, source string) error {
	t.Helper()
	target := sharedDir + id
	spec := a.spec("echo ' 53 ef'; exit 21")
	spec.Root.Path, spec.Root.Readonly = target, true
	_, err := a.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: id, ExecId: id, OCI: spec, Storages: []*katav1.Storage{
		{Driver: driver, Source: source, Fstype: "ext4", MountPoint: target, Options: []string{"ro"}},
	}})
	return err
}

// createWith creates a container that has a disk for its device, which has other numbers
// on the host.
func (a *agent) createWith(t *testing.T, id, source string) error {
	t.Helper()
	const file = "/dev/data"
	spec := a.spec(fmt.Sprintf(magic, file))
	major, minor := int64(8), int64(77)
	spec.Linux.Devices = []*katav1.LinuxDevice{{Path: file, Type: "b", Major: major, Minor: minor, FileMode: 0o600}}
	spec.Linux.Resources.Devices = []*katav1.LinuxDeviceCgroup{{Allow: true, Type: "b", Major: major, Minor: minor, Access: "rw"}}
	_, err := a.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: id, ExecId: id, OCI: spec, Devices: []*katav1.Device{
		{Type: "blk", Id: source, ContainerPath: file},
	}})
	return err
}

// runOn creates a container with a disk that is plugged in, and that sysfs has at a pattern,
// runs it, and takes the disk out.
func (a *agent) runOn(t *testing.T, m *monitor, device map[string]any, pattern string, create func() error) {
	t.Helper()
	id := fmt.Sprint(device["id"])
	there := func() bool {
		found, err := filepath.Glob(pattern)
		return err == nil && len(found) > 0
	}
	plug(t, func() { m.do(t, "device_add", device) }, there, create)
	if _, err := a.StartContainer(t.Context(), &katav1.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatalf("StartContainer: %v", err)
	}
	if out := a.stdout(t, id, id); out != " 53 ef\n" {
		t.Errorf("stdout %q, %s", out, a.stderr(t, id, id))
	}
	if got := a.wait(t, id, id); got != 21 {
		t.Errorf("status %d, want 21", got)
	}
	a.remove(t, id)
	m.unplug(t, id)
	nodetest.Eventually(t, "the kernel has let the disk go", func() bool { return !there() })
}

// pluggedProcessor: a container that runs gets a processor that is plugged in.
func (a *agent) pluggedProcessor(t *testing.T, m *monitor) {
	const list = "/sys/devices/system/cpu/online"
	if got := line(t, list); got != "0-1" {
		t.Fatalf("processors before: %s", got)
	}
	a.run(t, "cpu", a.spec("sleep 100000"))
	var places []struct {
		Type  string         `json:"type"`
		Props map[string]any `json:"props"`
		Path  string         `json:"qom-path"`
	}
	if err := json.Unmarshal(m.do(t, "query-hotpluggable-cpus", nil), &places); err != nil {
		t.Fatal(err)
	}
	in := func() {
		for _, p := range places {
			if p.Path == "" {
				p.Props["driver"], p.Props["id"] = p.Type, "cpu2"
				m.do(t, "device_add", p.Props)
				return
			}
		}
		t.Errorf("QEMU has no place for a processor: %v", places)
	}
	there := func() bool {
		_, err := os.Stat("/sys/devices/system/cpu/cpu2/online")
		return err == nil
	}
	plug(t, in, there, func() error {
		_, err := a.OnlineCPUMem(t.Context(), &katav1.OnlineCPUMemRequest{Wait: true, NbCpus: 3, CpuOnly: true})
		return err
	})
	if got := line(t, list); got != "0-2" {
		t.Errorf("processors after: %s", got)
	}
	out, status := a.exec(t, "cpu", "allowed", "cat /proc/self/status")
	if status != 0 || !strings.Contains(out, "Cpus_allowed_list:\t0-2\n") {
		t.Errorf("status %d: a process of the container may use the processors of\n%s", status, out)
	}
	a.end(t, "cpu")
}

// pluggedMemory: memory that is plugged in is used.
func (a *agent) pluggedMemory(t *testing.T, m *monitor) {
	const size = 128 << 20
	_, err := os.Stat("/sys/devices/system/memory/probe")
	probe := err == nil
	r, err := a.GetGuestDetails(t.Context(), &katav1.GuestDetailsRequest{MemBlockSize: true, MemHotplugProbe: true})
	if err != nil || r.GetMemBlockSizeBytes() != size || r.GetSupportMemHotplugProbe() != probe {
		t.Fatalf("GetGuestDetails: %v, %v", r, err)
	}
	before := total(t)
	m.do(t, "object-add", map[string]any{"qom-type": "memory-backend-memfd", "id": "more", "size": size, "share": true}) // virtiofsd reads it, too
	m.do(t, "device_add", map[string]any{"driver": "pc-dimm", "id": "dimm", "memdev": "more"})
	if _, err := a.OnlineCPUMem(t.Context(), &katav1.OnlineCPUMemRequest{NbCpus: 1}); err != nil {
		t.Fatalf("OnlineCPUMem: %v", err)
	}
	nodetest.Eventually(t, "the machine has more memory", func() bool { return total(t) >= before+size })
	// The firmware informs a kernel without that file.
	_, err = a.MemHotplugByProbe(t.Context(), &katav1.MemHotplugByProbeRequest{MemHotplugProbeAddr: []uint64{1 << 40}})
	if !probe && (status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "memory/probe")) {
		t.Errorf("MemHotplugByProbe without a probe: %v", err)
	}
}

// total is how much memory the machine uses, in bytes.
func total(t *testing.T) (bytes uint64) {
	t.Helper()
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(b), "MemTotal: %d kB", &bytes); err != nil {
		t.Fatal(err)
	}
	return bytes << 10
}

func line(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// theKernelItself: settings of the whole machine really change.
func (a *agent) theKernelItself(t *testing.T) {
	when := time.Now().Add(1000 * time.Hour)
	if _, err := a.SetGuestDateTime(t.Context(), &katav1.SetGuestDateTimeRequest{Sec: when.Unix(), Usec: 5}); err != nil {
		t.Errorf("SetGuestDateTime: %v", err)
	}
	var now unix.Timespec // time.Now goes by the clock that was not set, too
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil || now.Sec < when.Unix() || now.Sec > when.Unix()+3600 {
		t.Errorf("the clock is at %d, %v; it was set to %d", now.Sec, err, when.Unix())
	}
	if _, err := a.ReseedRandomDev(t.Context(), &katav1.ReseedRandomDevRequest{Data: []byte("sixteen and more bytes")}); err != nil {
		t.Errorf("ReseedRandomDev: %v", err)
	}
	if _, err := a.AddSwap(t.Context(), &katav1.AddSwapRequest{PCIPath: []uint32{swapPath}}); err != nil {
		t.Errorf("AddSwap: %v", err)
	}
	if b, err := os.ReadFile("/proc/swaps"); err != nil || !strings.Contains(string(b), "/dev/vd") {
		t.Errorf("swaps: %v\n%s", err, b)
	}
}
