package ocispec

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/invalid"
)

// DefaultDeviceRules close every device; those that every container has are
// opened by the runtime itself.
func DefaultDeviceRules() []specs.LinuxDeviceCgroup {
	return []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
}

// Device asks for one device of the host, or for all below a directory.
type Device struct {
	Source string // on the host, absolute
	Target string // in the container; "" is Source
	Access string // of "rwm"; "" is all
}

// ParseDevice reads "SOURCE[:TARGET][:ACCESS]", as command lines have it.
func ParseDevice(s string) (Device, error) {
	parts := strings.Split(s, ":")
	d := Device{Source: parts[0]}
	switch {
	case len(parts) == 2 && strings.HasPrefix(parts[1], "/"):
		d.Target = parts[1]
	case len(parts) == 2:
		d.Access = parts[1]
	case len(parts) == 3:
		d.Target, d.Access = parts[1], parts[2]
	case len(parts) > 3:
		return Device{}, fmt.Errorf("device %q: want SOURCE[:TARGET][:ACCESS]: %w", s, errdefs.ErrInvalidArgument)
	}
	return d, d.check()
}

func (d Device) check() error {
	if !filepath.IsAbs(d.Source) || d.Target != "" && !filepath.IsAbs(d.Target) {
		return fmt.Errorf("device %s:%s: paths must be absolute: %w", d.Source, d.Target, errdefs.ErrInvalidArgument)
	}
	if strings.Trim(d.Access, "rwm") != "" {
		return fmt.Errorf("device %s: access %q is not of \"rwm\": %w", d.Source, d.Access, errdefs.ErrInvalidArgument)
	}
	return nil
}

// HostDevice looks a device up on this machine and returns the entries for Linux.Devices and
// Resources.Devices. A directory yields every device below it. NotFound when there is none.
func HostDevice(d Device) ([]specs.LinuxDevice, []specs.LinuxDeviceCgroup, error) {
	if err := d.check(); err != nil {
		return nil, nil, err
	}
	target, access := d.Target, d.Access
	if target == "" {
		target = d.Source
	}
	if access == "" {
		access = "rwm"
	}
	source, err := filepath.EvalSymlinks(d.Source)
	if err != nil {
		return nil, nil, fmt.Errorf("device %s: %w: %w", d.Source, err, errdefs.ErrNotFound)
	}
	st, err := os.Stat(source)
	if err != nil {
		return nil, nil, fmt.Errorf("device %s: %w: %w", d.Source, err, errdefs.ErrNotFound)
	}
	var devices []specs.LinuxDevice
	if st.IsDir() {
		devices, err = devicesBelow(source, target)
	} else {
		var dev *specs.LinuxDevice
		if dev, err = lookDevice(source, target); dev != nil {
			devices = append(devices, *dev)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("device %s: %w", d.Source, err)
	}
	if len(devices) == 0 {
		return nil, nil, fmt.Errorf("device %s: no device: %w", d.Source, errdefs.ErrInvalidArgument)
	}
	rules := make([]specs.LinuxDeviceCgroup, 0, len(devices))
	for _, dev := range devices {
		rules = append(rules, DeviceRule(dev, access))
	}
	return devices, rules, nil
}

// DeviceRule opens one device.
func DeviceRule(d specs.LinuxDevice, access string) specs.LinuxDeviceCgroup {
	major, minor := d.Major, d.Minor
	return specs.LinuxDeviceCgroup{Allow: true, Type: d.Type, Major: &major, Minor: &minor, Access: access}
}

// AllDevices lists the devices below /dev for a privileged container, without
// those that every container gets of its own (pts, shm, console, the lot).
func AllDevices() ([]specs.LinuxDevice, error) { return devicesBelow("/dev", "/dev") }

// own are directories and files below /dev that belong to one container.
func ownOfContainer(rel string) bool {
	switch rel {
	case "pts", "shm", "mqueue", "fd", "console", "ptmx", ".lxc", ".lxd-mounts", ".udev":
		return true
	}
	return false
}

func devicesBelow(dir, target string) ([]specs.LinuxDevice, error) {
	var out []specs.LinuxDevice
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return nil // devices come and go
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if dir == "/dev" && ownOfContainer(rel) {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if e.Type()&fs.ModeDevice == 0 {
			return nil
		}
		dev, err := lookDevice(path, filepath.Join(target, rel))
		if dev != nil {
			out = append(out, *dev)
		}
		return err
	})
	return out, err
}

// lookDevice reads one node; nil when it is no device, or gone.
func lookDevice(source, target string) (*specs.LinuxDevice, error) {
	var st unix.Stat_t
	if err := unix.Lstat(source, &st); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil, nil
		}
		return nil, &os.PathError{Op: "lstat", Path: source, Err: err}
	}
	var kind string
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		kind = "c"
	case unix.S_IFBLK:
		kind = "b"
	case unix.S_IFIFO:
		kind = "p"
	default:
		return nil, nil
	}
	mode := os.FileMode(st.Mode & 0o7777)
	uid, gid := st.Uid, st.Gid
	return &specs.LinuxDevice{
		Path: target, Type: kind, Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev)),
		FileMode: &mode, UID: &uid, GID: &gid,
	}, nil
}

// AddDevice puts devices and their rules into a spec; one with the same path
// takes the place of an earlier one.
func AddDevice(s *specs.Spec, devices []specs.LinuxDevice, rules []specs.LinuxDeviceCgroup) {
	if s.Linux == nil {
		s.Linux = &specs.Linux{}
	}
	if s.Linux.Resources == nil {
		s.Linux.Resources = &specs.LinuxResources{}
	}
	for _, d := range devices {
		kept := s.Linux.Devices[:0:0]
		for _, old := range s.Linux.Devices {
			if old.Path != d.Path {
				kept = append(kept, old)
			}
		}
		s.Linux.Devices = append(kept, d)
	}
	s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, rules...)
}

// CheckCDI returns InvalidArgument for names of devices that are not of the Container Device
// Interface, vendor.com/class=name, and for one that is listed twice.
func CheckCDI(names []string) error {
	for i, n := range names {
		kind, device, _ := strings.Cut(n, "=")
		vendor, class, _ := strings.Cut(kind, "/")
		if vendor == "" || class == "" || device == "" {
			return invalid.Errorf("device %q is not called vendor.com/class=name", n)
		}
		if slices.Contains(names[:i], n) {
			return invalid.Errorf("device %q is listed twice", n)
		}
	}
	return nil
}
