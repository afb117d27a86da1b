package guest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/invalid"
)

// The types of devices that are no disks: a host's device that the guest has as a whole,
// for programs that drive it themselves, or for a driver of the guest's kernel.
const (
	deviceVFIO       = "vfio-pci"
	deviceVFIOKernel = "vfio-pci-gk"
)

// Device is a device of the machine that a container is to have.
type Device struct {
	Type string
	// ID is a disk's PCI path or SCSI address.
	ID string
	// VMPath is a disk's device file.
	VMPath string
	// Options of a whole device are the host's PCI addresses with the guest's PCI paths, as
	// 0000:3a:00.1=02/00.
	Options []string
}

// Node is the device of a device file: of type b or c.
type Node struct {
	Type         string
	Major, Minor int64
}

// Found is how the machine has a device.
type Found struct {
	// Node is nil for a device that has no device file.
	Node *Node
	// Path, unless empty, is where a container must have the device file.
	Path string
	// PCI are addresses in the guest, by those that the host has for the same devices.
	PCI map[string]string
}

// DeviceTypes names the types of devices that Device finds.
func (m *Machine) DeviceTypes() []string {
	return []string{driverBlock, driverMMIO, driverNVDIMM, driverSCSI, deviceVFIO, deviceVFIOKernel}
}

// Device waits until a device is plugged in, and returns how the machine has it.
func (m *Machine) Device(ctx context.Context, d Device) (found Found, err error) {
	if d.ID == "" && d.VMPath == "" {
		return found, invalid.Errorf("device: neither an id nor a path in the machine")
	}
	find := disks{m.sysfs, m.dev, m.PlugTime}
	var file string
	switch d.Type {
	case driverBlock:
		if d.ID == "" {
			d.ID = d.VMPath
		}
		file, err = find.blockDisk(ctx, d.ID)
	case driverMMIO, driverNVDIMM:
		file, err = find.namedDisk(ctx, d.VMPath)
	case driverSCSI:
		file, err = find.scsiDisk(ctx, d.ID)
	case deviceVFIO, deviceVFIOKernel:
		file, found.PCI, err = find.wholeDevice(ctx, d)
		found.Path = file
	default:
		return found, invalid.Errorf("there is no device type %q; there are %s", d.Type, strings.Join(m.DeviceTypes(), ", "))
	}
	if err != nil || file == "" {
		return found, err
	}
	node, err := m.kernel.node(file)
	if err != nil {
		return found, fmt.Errorf("device %s: %w", file, err)
	}
	found.Node = &node
	return found, nil
}

// nodeAt returns the device of the device file at a path.
func nodeAt(path string) (Node, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return Node{}, err
	}
	n := Node{Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev))}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		n.Type = "b"
	case unix.S_IFCHR:
		n.Type = "c"
	default:
		return Node{}, invalid.Errorf("it is no device file")
	}
	return n, nil
}

// Permissions returns those of the machine's file at a path, 0 where there is none.
func Permissions(path string) fs.FileMode {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0
	}
	return fs.FileMode(st.Mode) & fs.ModePerm
}

// IsPCIAddress reports whether s is a PCI address as the kernel writes it: domain, bus, slot and function.
func IsPCIAddress(s string) bool {
	const form = "hhhh:hh:1h.7" // h is a hexadecimal digit, another digit the highest at its place
	if len(s) != len(form) {
		return false
	}
	for i, f := range []byte(form) {
		c := s[i]
		digit := c >= '0' && c <= '9'
		switch {
		case f == 'h' && !digit && (c < 'a' || c > 'f'), f >= '0' && f <= '9' && (!digit || c > f), (f == ':' || f == '.') && c != f:
			return false
		}
	}
	return true
}

// wholeDevice waits for the functions of a whole device. One that programs drive
// themselves loses its driver, and has the file of its IOMMU group.
func (d disks) wholeDevice(ctx context.Context, dev Device) (file string, addresses map[string]string, err error) {
	addresses = map[string]string{}
	group := ""
	for _, o := range dev.Options {
		host, path, _ := strings.Cut(o, "=")
		if !IsPCIAddress(host) || strings.Contains(path, "=") {
			return "", nil, invalid.Errorf("device option %q: the host's PCI address and the guest's PCI path are wanted, as 0000:3a:00.1=02/00", o)
		}
		if path == "" { // the host does not know where it is, and it needs nothing
			continue
		}
		at, err := d.function(ctx, path)
		if err != nil {
			return "", nil, err
		}
		if before, ok := addresses[host]; ok && before != at {
			return "", nil, invalid.Errorf("the host's device %s is both %s and %s in this machine", host, before, at)
		}
		addresses[host] = at
		if dev.Type != deviceVFIO {
			continue
		}
		own, err := d.giveToPrograms(at)
		if err != nil {
			return "", nil, fmt.Errorf("device %s: %w", at, err)
		}
		if group != "" && own != group {
			return "", nil, invalid.Errorf("device %s is in the IOMMU group %s, and another one of the same device in %s", at, own, group)
		}
		group = own
	}
	if dev.Type != deviceVFIO {
		return "", addresses, nil
	}
	if group == "" {
		return "", nil, invalid.Errorf("a device of the type %s names at least one PCI path", deviceVFIO)
	}
	file, err = d.namedDisk(ctx, "/dev/vfio/"+group)
	return file, addresses, err
}

// function waits for a device at a PCI path, and returns its address.
func (d disks) function(ctx context.Context, path string) (address string, err error) {
	pattern, err := pciPattern(path)
	if err != nil {
		return "", err
	}
	err = await(ctx, "nothing at the PCI path "+path, d.wait, func() bool {
		found, err := filepath.Glob(filepath.Join(d.sysfs, pattern))
		if err != nil || len(found) == 0 { // the pattern is ours
			return false
		}
		address = filepath.Base(found[0])
		return true
	})
	return address, err
}

// linkAt waits for the network link of the device at a PCI path, and returns its name.
func (d disks) linkAt(ctx context.Context, path string) (name string, err error) {
	pattern, err := pciPattern(path)
	if err != nil {
		return "", err
	}
	err = await(ctx, "no link at the PCI path "+path, d.wait, func() bool {
		for _, below := range []string{"virtio*/net/*", "net/*"} {
			found, err := filepath.Glob(filepath.Join(d.sysfs, pattern, below))
			if err == nil && len(found) > 0 {
				name = filepath.Base(found[0])
				return true
			}
		}
		return false
	})
	return name, err
}

// programsDriver is the kernel's driver that hands a device to programs.
const programsDriver = "vfio-pci"

// giveToPrograms takes a device from its driver, gives it to programs, and returns its
// IOMMU group.
func (d disks) giveToPrograms(address string) (group string, err error) {
	bus := filepath.Join(d.sysfs, "bus/pci")
	dir := filepath.Join(bus, "devices", address)
	if err := writeFile(filepath.Join(dir, "driver_override"), programsDriver); err != nil {
		return "", err
	}
	driver, err := os.Readlink(filepath.Join(dir, "driver"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if filepath.Base(driver) != programsDriver {
		if driver != "" {
			if err := writeFile(filepath.Join(dir, "driver/unbind"), address); err != nil {
				return "", err
			}
		}
		if err := writeFile(filepath.Join(bus, "drivers_probe"), address); err != nil {
			return "", err
		}
	}
	link, err := os.Readlink(filepath.Join(dir, "iommu_group"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", errors.New("it is in no IOMMU group, so that programs cannot drive it")
	}
	return filepath.Base(link), err
}
