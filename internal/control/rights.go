package control

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// capabilityNames are all of Linux, in the kernel's order.
func capabilityNames() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
		"CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK",
		"CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN",
		"CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE",
		"CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM",
		"CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
	}
}

// defaultCapabilities are what container engines usually leave a container.
func defaultCapabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
		"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
	}
}

// capabilities takes ALL first, then adds, then drops.
func capabilities(req *longshorev1.CreateRequest) (*specs.LinuxCapabilities, error) {
	caps := defaultCapabilities()
	add, addAll, err := capabilityList(req.GetCapAdd())
	if err != nil {
		return nil, err
	}
	drop, dropAll, err := capabilityList(req.GetCapDrop())
	if err != nil {
		return nil, err
	}
	switch {
	case req.GetPrivileged() || addAll:
		caps = capabilityNames()
	case dropAll:
		caps = nil
	}
	for _, c := range add {
		if !slices.Contains(caps, c) {
			caps = append(caps, c)
		}
	}
	caps = slices.DeleteFunc(caps, func(c string) bool { return slices.Contains(drop, c) })
	return &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}, nil
}

// capabilityList takes names with CAP_ or without, in any case.
func capabilityList(in []string) (out []string, all bool, err error) {
	for _, s := range in {
		c := "CAP_" + strings.TrimPrefix(strings.ToUpper(s), "CAP_")
		if c == "CAP_ALL" {
			all = true
			continue
		}
		if !slices.Contains(capabilityNames(), c) {
			return nil, false, invalid("capability %q is not known", s)
		}
		out = append(out, c)
	}
	return out, all, nil
}

// nodeDevices are the devices below dir for a privileged container, but for
// what each container has of its own: terminals, shared memory.
func nodeDevices(dir string) []specs.LinuxDevice {
	skip := []string{"pts", "shm", "fd", "mqueue", "console", "ptmx"}
	var list []specs.LinuxDevice
	// What cannot be looked at, or goes away meanwhile, is left out.
	_ = filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		rel := strings.TrimPrefix(p, dir+"/")
		switch {
		case err != nil:
			if e != nil && e.IsDir() {
				return fs.SkipDir
			}
			return nil
		case slices.Contains(skip, rel) && e.IsDir():
			return fs.SkipDir
		case slices.Contains(skip, rel), e.Type()&fs.ModeDevice == 0:
			return nil
		}
		if d, err := deviceOf(p); err == nil {
			list = append(list, d)
		}
		return nil
	})
	return list
}

// deviceOf tells what kind of device a file is.
func deviceOf(p string) (specs.LinuxDevice, error) {
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return specs.LinuxDevice{}, &os.PathError{Op: "lstat", Path: p, Err: err}
	}
	mode, uid, gid := os.FileMode(st.Mode&0o777), st.Uid, st.Gid
	d := specs.LinuxDevice{
		Path: p, Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev)), FileMode: &mode, UID: &uid, GID: &gid,
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		d.Type = "b"
	case unix.S_IFCHR:
		d.Type = "c"
	default:
		return d, errors.New(p + " is no device")
	}
	return d, nil
}
