package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/invalid"
)

// Remount gives the tmpfs of an ephemeral storage other options, such as another size; it
// keeps those of its flags that they do not name.
// It returns InvalidArgument for a storage of another driver, NotFound for one that is
// not mounted.
func (m *Machine) Remount(ctx context.Context, s Storage) error {
	if s.Driver != driverEphemeral {
		return invalid.Errorf("storage at %s: the options of a storage of the driver %q cannot be changed, only an ephemeral one's", s.Target, s.Driver)
	}
	unlock, err := m.targets.Lock(ctx, s.Target)
	if err != nil {
		return err
	}
	defer unlock()
	if m.used.refer(s.Target, 0) == 0 {
		return fmt.Errorf("there is no storage at %s: %w", s.Target, errdefs.ErrNotFound)
	}
	flags, data, _, err := tmpfsOptions(slices.DeleteFunc(slices.Clone(s.Options), func(o string) bool { return o == "remount" }))
	if err != nil || len(s.Options) == 0 {
		return err
	}
	kept, err := flagsAt(s.Target)
	if err != nil {
		return fmt.Errorf("options of the storage at %s: %w", s.Target, err)
	}
	for option, flag := range map[string]uintptr{"rw": unix.MS_RDONLY, "suid": unix.MS_NOSUID, "dev": unix.MS_NODEV, "exec": unix.MS_NOEXEC} {
		if slices.Contains(s.Options, option) {
			kept &^= flag
		}
	}
	if err := remountPlace(s.Target, "tmpfs", kept|flags, data); err != nil {
		return fmt.Errorf("options %q of the storage at %s: %w", strings.Join(s.Options, ","), s.Target, err)
	}
	return nil
}

// extResize is EXT4_IOC_RESIZE_FS; its argument is the number of blocks.
const extResize = 0x40086610

// ResizeVolume makes the file system that is mounted at a path larger, while it is in
// use. Size 0 is all that its disk has. It returns NotImplemented for a kind of file
// system that cannot grow so.
func (m *Machine) ResizeVolume(at string, size uint64) error {
	place, err := openPlace(at, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("resize volume %s: %w", clip(at), err)
	}
	defer func() { _ = place.Close() }()
	dir := int(place.Fd())
	var st unix.Statfs_t
	if err := unix.Fstatfs(dir, &st); err != nil {
		return fmt.Errorf("resize volume %s: %w", at, err)
	}
	switch uint32(st.Type) {
	case unix.TMPFS_MAGIC:
		err = resizeTmpfs(at, size)
	case unix.EXT4_SUPER_MAGIC:
		err = resizeExt(m.sysfs, dir, uint64(st.Bsize), size)
	default:
		return fmt.Errorf("resize volume %s: a file system of the type %#x cannot grow; ext4 and tmpfs can: %w", at, uint32(st.Type), errdefs.ErrNotImplemented)
	}
	if err != nil {
		return fmt.Errorf("resize volume %s: %w", at, err)
	}
	return nil
}

func resizeTmpfs(at string, size uint64) error {
	if mounted, err := mountinfo.Mounted(at); err != nil || !mounted {
		return errors.Join(err, invalid.Errorf("nothing is mounted there"))
	}
	if size == 0 {
		return invalid.Errorf("a tmpfs has no disk whose size it could have")
	}
	flags, err := flagsAt(at)
	if err != nil {
		return err
	}
	return remountPlace(at, "tmpfs", flags, "size="+strconv.FormatUint(size, 10))
}

// stNoSymFollow is the kernel's ST_NOSYMFOLLOW.
const stNoSymFollow = 0x2000

// flagsAt returns the flags of the mount at a path. A remount takes away those that it is
// not given.
func flagsAt(at string) (flags uintptr, err error) {
	f, err := openPlace(at, unix.O_PATH)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	for has, flag := range map[int64]uintptr{
		unix.ST_RDONLY: unix.MS_RDONLY, unix.ST_NOSUID: unix.MS_NOSUID, unix.ST_NODEV: unix.MS_NODEV, unix.ST_NOEXEC: unix.MS_NOEXEC, unix.ST_SYNCHRONOUS: unix.MS_SYNCHRONOUS,
		unix.ST_NOATIME: unix.MS_NOATIME, unix.ST_NODIRATIME: unix.MS_NODIRATIME, unix.ST_RELATIME: unix.MS_RELATIME, stNoSymFollow: unix.MS_NOSYMFOLLOW,
	} {
		if st.Flags&has != 0 {
			flags |= flag
		}
	}
	if flags&(unix.MS_NOATIME|unix.MS_RELATIME) == 0 {
		flags |= unix.MS_STRICTATIME
	}
	return flags, nil
}

// resizeExt makes an ext4 as large as wanted, once its disk is.
func resizeExt(sysfs string, dir int, block, size uint64) error {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return err
	}
	disk := filepath.Join(sysfs, "dev/block", fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	// Read the size again of a disk that the host has enlarged; not all disks need this.
	if err := writeFile(filepath.Join(disk, "device/rescan"), "1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	b, err := os.ReadFile(filepath.Join(disk, "size"))
	if err != nil {
		return err
	}
	sectors, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 54)
	if err != nil {
		return fmt.Errorf("size of the disk: %w", err)
	}
	whole := sectors * 512
	switch {
	case size == 0:
		size = whole
	case size > whole:
		return fmt.Errorf("%d bytes are wanted and the disk has %d: %w", size, whole, errdefs.ErrFailedPrecondition)
	}
	blocks := size / block
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(dir), extResize, uintptr(unsafe.Pointer(&blocks))); errno != 0 {
		return errno
	}
	return nil
}

// DropStale has the kernel ask the host again for what is mounted below Shared, so that
// it forgets what the host has removed.
func (m *Machine) DropStale() error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(m.shared))
	if err != nil {
		return err
	}
	for _, mount := range mounts {
		// A mount that fails now, such as one whose directory the host has removed, is the
		// expected answer: the kernel has asked.
		_, _ = os.Stat(mount.Mountpoint)
	}
	return nil
}

// maxHead is how much of a file Head returns.
const maxHead = 4096

// Head returns the first part of a file, "" when there is none. It follows no link and
// waits for nothing.
func (m *Machine) Head(path string) (string, error) {
	f, err := openPlace(path, os.O_RDONLY|unix.O_NONBLOCK)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return "", errors.Join(err, invalid.Errorf("%s is no plain file", path))
	}
	b := make([]byte, maxHead)
	n, err := f.ReadAt(b, 0)
	if n == 0 && err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	return strings.ToValidUTF8(string(b[:n]), "\uFFFD"), nil
}

// Hooks are programs of the machine's image that run beside containers.
type Hooks struct{ Prestart, Poststart, Poststop []string }

// FindHooks returns the programs below a directory: plain files that may be executed, by
// their names' order. err names what could not be read; the rest is found.
func (m *Machine) FindHooks(dir string) (h Hooks, err error) {
	var errs []error
	for _, kind := range []struct {
		name  string
		found *[]string
	}{{"prestart", &h.Prestart}, {"poststart", &h.Poststart}, {"poststop", &h.Poststop}} {
		list, err := os.ReadDir(filepath.Join(dir, kind.name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, e := range list {
			st, err := e.Info()
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
				*kind.found = append(*kind.found, filepath.Join(dir, kind.name, e.Name()))
			}
		}
	}
	return h, errors.Join(errs...)
}
