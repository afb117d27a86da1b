package guest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/invalid"
)

// DiskAt returns the device file of the disk at a PCI path, once it is plugged in: the
// slots of the bridges on the way and that of the disk, each with or without a function,
// as "02/00" or "02.0/00.0".
func (m *Machine) DiskAt(ctx context.Context, pci string) (string, error) {
	return disks{m.sysfs, m.dev, m.PlugTime}.atPCI(ctx, pci)
}

// disks finds disks. It waits as long as a host may take to plug them in.
type disks struct {
	sysfs, dev string
	wait       time.Duration
}

func (d disks) atPCI(ctx context.Context, pci string) (string, error) {
	pattern, err := pciPattern(pci)
	if err != nil {
		return "", err
	}
	return d.awaitDisk(ctx, "at the PCI path "+pci, filepath.Join(d.sysfs, pattern, "virtio*/block/*"))
}

// ownRoot is the lowest number of a root bus that a host adds for a NUMA node. A PCI path
// of three parts or more may begin with one, which is too large for a slot.
const ownRoot = 0x20

// pciPattern is the pattern of a PCI path in sysfs. The bus behind a bridge has a number that the
// kernel has chosen.
func pciPattern(pci string) (string, error) {
	slots, root := strings.Split(pci, "/"), uint64(0)
	if n, err := strconv.ParseUint(slots[0], 16, 8); err == nil && n >= ownRoot && len(slots) > 2 {
		slots, root = slots[1:], n
	}
	parts := []string{fmt.Sprintf("devices/pci0000:%02x", root)}
	for i, p := range slots {
		slot, function, found := strings.Cut(p, ".")
		if !found {
			function = "0"
		}
		s, err := strconv.ParseUint(slot, 16, 8)
		f, ferr := strconv.ParseUint(function, 16, 8)
		if err != nil || ferr != nil || s > 0x1f || f > 7 {
			return "", invalid.Errorf("PCI path %q: slots of two digits are wanted, as 02/00", pci)
		}
		bus := fmt.Sprintf("%02x", root)
		if i > 0 {
			bus = "[0-9a-f][0-9a-f]"
		}
		parts = append(parts, fmt.Sprintf("0000:%s:%02x.%x", bus, s, f))
	}
	return filepath.Join(parts...), nil
}

// scsiDisk returns the device file of the disk with an id and a number, "ID:LUN", on a
// SCSI host, which it has look for it.
func (d disks) scsiDisk(ctx context.Context, at string) (string, error) {
	id, lun, _ := strings.Cut(at, ":")
	i, err := strconv.ParseUint(id, 10, 16)
	l, lerr := strconv.ParseUint(lun, 10, 32)
	if err != nil || lerr != nil {
		return "", invalid.Errorf("SCSI address %q: ID:LUN is wanted", at)
	}
	scans, err := filepath.Glob(filepath.Join(d.sysfs, "class/scsi_host/host*/scan"))
	if err != nil {
		return "", err
	}
	for _, scan := range scans {
		if err := writeFile(scan, fmt.Sprintf("0 %d %d", i, l)); err != nil {
			return "", fmt.Errorf("look for the disk %s: %w", at, err)
		}
	}
	return d.awaitDisk(ctx, "with the SCSI address "+at, filepath.Join(d.sysfs, "bus/scsi/devices", fmt.Sprintf("*:0:%d:%d", i, l), "block/*"))
}

// namedDisk waits for a device file that the caller names, and returns its path.
func (d disks) namedDisk(ctx context.Context, path string) (string, error) {
	name, ok := strings.CutPrefix(path, "/dev/")
	if !ok || filepath.Clean(path) != path {
		return "", invalid.Errorf("disk %q: a path below /dev is wanted", path)
	}
	err := await(ctx, "no disk named "+path, d.wait, func() bool {
		return d.opens(name)
	})
	return path, err
}

// awaitDisk waits until sysfs has a disk where a pattern says, and its device file.
func (d disks) awaitDisk(ctx context.Context, what, pattern string) (path string, err error) {
	err = await(ctx, "no disk "+what, d.wait, func() bool {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 { // the pattern is ours
			return false
		}
		name := filepath.Base(found[0])
		path = "/dev/" + name
		return d.opens(name)
	})
	return path, err
}

// opens reports whether a device file exists and can be opened. The kernel adds a disk's directory in sysfs and its
// device file first; until it has announced the disk, opening the file fails with ENXIO.
func (d disks) opens(name string) bool {
	path := filepath.Join(d.dev, name)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Type() != fs.ModeDevice { // opening a file that is no disk may have effects
		return err == nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return !errors.Is(err, unix.ENXIO)
	}
	_ = f.Close()
	return true
}

// createFileSystem is the driver option that wants an ext4 on an empty disk.
const createFileSystem = "create_filesystem"

// mountDisk mounts the file system of a disk.
func (m *Machine) mountDisk(ctx context.Context, s Storage, find func(context.Context, string) (string, error)) (undo func() error, err error) {
	for _, o := range s.DriverOptions {
		if o != createFileSystem {
			return nil, fmt.Errorf("driver option %q: not served: %w", o, errdefs.ErrNotImplemented)
		}
	}
	if s.Type == "" {
		return nil, invalid.Errorf("a disk's storage names its file system")
	}
	if s.Source, err = find(ctx, s.Source); err != nil {
		return nil, err
	}
	if len(s.DriverOptions) > 0 {
		if s.Type != "ext4" {
			return nil, invalid.Errorf("driver option %s: makes an ext4, not %s", createFileSystem, s.Type)
		}
		if _, err := m.tool(ctx, nil, "mkfs.ext4", "-F", "-O", "^has_journal", "-m", "0", "-i", "163840", "-I", "128", s.Source); err != nil {
			return nil, err
		}
	}
	return mountAs(s, s.Type)
}

// blockDisk finds the disk of a storage of the driver blk: a device file, or a PCI path.
func (d disks) blockDisk(ctx context.Context, source string) (string, error) {
	if strings.HasPrefix(source, "/") {
		return d.namedDisk(ctx, source)
	}
	return d.atPCI(ctx, source)
}
