package cri

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// hostDevices are device files of the node, as a container is to see them.
type hostDevices struct {
	list  []specs.LinuxDevice
	rules []specs.LinuxDeviceCgroup
}

// readDevices looks the asked devices up. A directory stands for all devices
// below it. A privileged container gets those of the node's /dev, too.
func readDevices(cfg *v1.ContainerConfig) (d hostDevices, err error) {
	for _, ask := range cfg.GetDevices() {
		access := ask.GetPermissions()
		if access == "" {
			access = "rwm"
		}
		if strings.Trim(access, "rwm") != "" || len(access) > 3 {
			return d, invalid("device %s: permissions %q", ask.GetHostPath(), access)
		}
		to := ask.GetContainerPath()
		if to == "" {
			to = ask.GetHostPath()
		}
		if !path.IsAbs(to) || !path.IsAbs(ask.GetHostPath()) || nul(to+ask.GetHostPath()) {
			return d, invalid("device %q at %q: both paths must be absolute", ask.GetHostPath(), to)
		}
		if err := d.add(ask.GetHostPath(), to, access); err != nil {
			return d, err
		}
	}
	if cfg.GetLinux().GetSecurityContext().GetPrivileged() {
		d.privileged()
	}
	return d, nil
}

func (d *hostDevices) add(from, to, access string) error {
	from, err := filepath.EvalSymlinks(from)
	if err != nil {
		return invalid("device: %v", err)
	}
	found := 0
	err = filepath.WalkDir(from, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.Type()&fs.ModeDevice == 0 {
			return nil
		}
		dev, err := device(p)
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(p, from)
		dev.Path = path.Join(to, rel)
		d.list = append(d.list, dev)
		d.rules = append(d.rules, specs.LinuxDeviceCgroup{Allow: true, Type: dev.Type, Major: &dev.Major, Minor: &dev.Minor, Access: access})
		found++
		return nil
	})
	if err != nil {
		return invalid("device: %v", err)
	}
	if found == 0 {
		return invalid("device %s is no device", from)
	}
	return nil
}

// privileged takes the node's devices but for terminals, shared memory and what
// a container has of its own.
func (d *hostDevices) privileged() {
	have := map[string]bool{}
	for _, dev := range d.list {
		have[dev.Path] = true
	}
	skip := map[string]bool{"/dev/pts": true, "/dev/shm": true, "/dev/fd": true, "/dev/mqueue": true, "/dev/.lxc": true, "/dev/console": true, "/dev/ptmx": true}
	_ = filepath.WalkDir("/dev", func(p string, e fs.DirEntry, err error) error {
		switch {
		case err != nil && e != nil && e.IsDir():
			return fs.SkipDir
		case err != nil:
			return nil
		case skip[p] && e.IsDir():
			return fs.SkipDir
		case skip[p] || have[p] || e.Type()&fs.ModeDevice == 0:
			return nil
		}
		if dev, err := device(p); err == nil {
			dev.Path = p
			d.list = append(d.list, dev)
		}
		return nil
	})
	d.rules = append(d.rules, specs.LinuxDeviceCgroup{Allow: true, Access: "rwm"})
}

// device tells what kind of device a file is.
func device(p string) (specs.LinuxDevice, error) {
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return specs.LinuxDevice{}, &os.PathError{Op: "lstat", Path: p, Err: err}
	}
	mode, uid, gid := os.FileMode(st.Mode&0o777), st.Uid, st.Gid
	dev := specs.LinuxDevice{
		Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev)), FileMode: &mode, UID: &uid, GID: &gid,
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		dev.Type = "b"
	case unix.S_IFCHR:
		dev.Type = "c"
	default:
		return dev, errors.New(p + " is no device")
	}
	return dev, nil
}

// addDevices closes every device that is not asked for. The runtime itself
// opens those that every container has.
func (a containerAsk) addDevices(s *specs.Spec) {
	s.Linux.Devices = a.devices.list
	s.Linux.Resources.Devices = append([]specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}, a.devices.rules...)
}
