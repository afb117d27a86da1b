package basens

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/weaken"
)

// nullDevice is the device number of /dev/null.
func nullDevice() uint64 { return unix.Mkdev(1, 3) }

// makeNull makes a null device.
func makeNull(path string) error {
	if weaken.Off(weaken.HostNull) {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}
		return os.NewSyscallError("mount", unix.Mount("/dev/null", path, "", unix.MS_BIND, ""))
	}
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(nullDevice())); err != nil {
		return &os.PathError{Op: "make device", Path: path, Err: err}
	}
	return os.Chmod(path, 0o666) // the umask may have removed some bits
}

// IsNull returns an error if a file is not the null device.
func IsNull(path string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != nullDevice() {
		return fmt.Errorf("%s is not the null device but %s", path, kindOf(&st))
	}
	if st.Nlink == 0 {
		return fmt.Errorf("%s has been removed where it comes from", path)
	}
	if st.Mode&0o666 != 0o666 {
		return fmt.Errorf("%s has mode %04o, where 0666 is usual", path, st.Mode&0o7777)
	}
	return nil
}

func kindOf(st *unix.Stat_t) string {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return fmt.Sprintf("a file of %d bytes", st.Size)
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFLNK:
		return "a symbolic link"
	case unix.S_IFCHR:
		return fmt.Sprintf("the device c %d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	default:
		return fmt.Sprintf("a file of type %#o", st.Mode&unix.S_IFMT)
	}
}

// Check reports the difference between the namespace of that file and a new one of Keep.
func Check(file string) error {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: file, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		if err := unix.Setns(fd, unix.CLONE_NEWNS); err != nil {
			return os.NewSyscallError("setns", err)
		}
		return inspect()
	}, func(int) error { return nil })
}

// inspect checks the mount namespace of this thread.
func inspect() error {
	errs := []error{IsNull(Null), fileSystem("/", unix.TMPFS_MAGIC, unix.ST_RDONLY), fileSystem("/proc", unix.PROC_SUPER_MAGIC, 0)}
	for _, dir := range []string{Root, Blank, Cgroup} {
		in, err := os.ReadDir(dir)
		if err == nil && dir != Cgroup && len(in) > 0 {
			err = fmt.Errorf("%s is not empty", dir)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func fileSystem(path string, kind int64, flags int64) error {
	var st unix.Statfs_t
	switch err := unix.Statfs(path, &st); {
	case err != nil:
		return &os.PathError{Op: "statfs", Path: path, Err: err}
	case st.Type != kind:
		return fmt.Errorf("%s is on a file system of type %#x, not %#x", path, st.Type, kind)
	case st.Flags&flags != flags:
		return fmt.Errorf("%s can be written", path)
	}
	return nil
}
