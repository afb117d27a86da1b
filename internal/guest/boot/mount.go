package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fileSystem is one that a machine has.
type fileSystem struct {
	kind, at string
	flags    uintptr
	data     string
	optional bool // a machine that does not let it be mounted has it in another way
}

const noPrograms = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// early are the first file systems. Those in others come after them.
var early = []fileSystem{ //nolint:gochecknoglobals // a table
	{kind: "proc", at: "/proc", flags: noPrograms},
	{kind: "sysfs", at: "/sys", flags: noPrograms},
	{kind: "devtmpfs", at: "/dev", flags: unix.MS_NOSUID, data: "mode=755", optional: true},
	{kind: "tmpfs", at: "/dev/shm", flags: unix.MS_NOSUID | unix.MS_NODEV, data: "mode=1777"},
	{kind: "devpts", at: "/dev/pts", flags: unix.MS_NOSUID | unix.MS_NOEXEC, data: "gid=5,mode=620,ptmxmode=666"},
	{kind: "tmpfs", at: "/run", flags: unix.MS_NOSUID | unix.MS_NODEV, data: "mode=755"},
}

// links are made where a device file system has none of the name.
var links = [][2]string{{"pts/ptmx", "/dev/ptmx"}, {"/proc/self/fd", "/dev/fd"}} //nolint:gochecknoglobals // a table

// Mount mounts the file systems that every machine has, below root. Existing mounts of the kernel
// or a loader stay.
func Mount(root string) error {
	for _, f := range early {
		if err := f.mount(root); err != nil && !f.optional {
			return err
		}
	}
	for _, l := range links {
		if _, err := os.Lstat(below(root, l[1])); errors.Is(err, fs.ErrNotExist) {
			if err := os.Symlink(l[0], below(root, l[1])); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f fileSystem) mount(root string) error {
	at := below(root, f.at)
	if err := os.MkdirAll(at, 0o755); err != nil {
		return fmt.Errorf("mount %s: %w", f.at, err)
	}
	there, err := mountPoint(at)
	if err != nil || there {
		return err
	}
	if err := unix.Mount(f.kind, at, f.kind, f.flags, f.data); err != nil {
		return fmt.Errorf("mount %s at %s with %q: %w", f.kind, f.at, f.data, err)
	}
	return nil
}

// mountPoint reports whether a directory is the root of a file system. It needs no /proc.
func mountPoint(dir string) (bool, error) {
	var own, above unix.Stat_t
	if err := unix.Stat(dir, &own); err != nil {
		return false, fmt.Errorf("stat %s: %w", dir, err)
	}
	if err := unix.Stat(filepath.Join(dir, ".."), &above); err != nil {
		return false, fmt.Errorf("stat %s: %w", filepath.Dir(dir), err)
	}
	return own.Dev != above.Dev, nil
}

// cgroups is where cgroups are mounted.
const cgroups = "/sys/fs/cgroup"

// Cgroups mounts cgroups below root: v2, or each controller that the kernel has on v1, as Kata's
// agent does. If v1 has no controller for devices, as in a kernel without v1, it mounts v2 in any
// case. Existing mounts stay.
func Cgroups(root string, unified bool) error {
	there, err := mountPoint(below(root, cgroups))
	if err != nil || there {
		return err
	}
	var controllers []string
	if !unified {
		b, err := os.ReadFile("/proc/cgroups")
		if err != nil {
			return fmt.Errorf("controllers of cgroup v1: %w", err)
		}
		controllers = enabled(string(b))
	}
	if !slices.Contains(controllers, "devices") {
		return fileSystem{kind: "cgroup2", at: cgroups, flags: noPrograms, data: "nsdelegate"}.mount(root)
	}
	return v1(root, controllers)
}

// v1 mounts each controller in a directory of its own on a tmpfs, which then is
// read-only.
func v1(root string, controllers []string) error {
	top := fileSystem{kind: "tmpfs", at: cgroups, flags: noPrograms, data: "mode=755"}
	if err := top.mount(root); err != nil {
		return err
	}
	for _, c := range controllers {
		if err := (fileSystem{kind: "cgroup", at: cgroups + "/" + c, flags: noPrograms, data: c}).mount(root); err != nil {
			return err
		}
	}
	// Memory of the cgroups in a container's counts as the container's.
	if slices.Contains(controllers, "memory") {
		at := below(root, cgroups+"/memory/memory.use_hierarchy")
		if err := os.WriteFile(at, []byte("1"), 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("hierarchy of memory cgroups: %w", err)
		}
	}
	if err := unix.Mount("", below(root, cgroups), "", unix.MS_REMOUNT|unix.MS_RDONLY|top.flags, top.data); err != nil {
		return fmt.Errorf("make %s read-only: %w", cgroups, err)
	}
	return nil
}

// enabled names the controllers of a /proc/cgroups that can be used on v1, sorted.
func enabled(file string) (names []string) {
	for line := range strings.Lines(file) {
		f := strings.Fields(line)
		if len(f) != 4 || strings.HasPrefix(f[0], "#") || strings.ContainsAny(f[0], "/,") {
			continue
		}
		if on, err := strconv.ParseBool(f[3]); err == nil && on {
			names = append(names, f[0])
		}
	}
	slices.Sort(names)
	return names
}
