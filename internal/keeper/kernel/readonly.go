package kernel

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Shielded returns a path for this process, or a child that it starts right away, to execute the
// file at path from a read-only mount of its own. A program in a container can make such a child
// execute a copy of this program (with /proc/self/exe as its entry point or as a script's
// interpreter), and then open the file it runs from for writing. On a read-only mount even root
// cannot. If the kernel does not support this, or the file is on such a mount already, Shielded
// returns path itself. The caller calls done once the program runs.
func Shielded(path string) (name string, done func()) {
	done = func() {}
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return path, done
	}
	defer func() { _ = unix.Close(fd) }()
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	empty, err := unix.BytePtrFromString("")
	if err != nil {
		return path, done
	}
	// Called directly, because the function of x/sys links its whole table of errors.
	_, _, errno := unix.Syscall6(unix.SYS_MOUNT_SETATTR, uintptr(fd), uintptr(unsafe.Pointer(empty)), unix.AT_EMPTY_PATH,
		uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return path, done
	}
	// Above the numbers that a child's own descriptors are moved to.
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, firstShielded)
	if err != nil {
		return path, done
	}
	return "/proc/self/fd/" + Itoa(high), func() { _ = unix.Close(high) }
}

// firstShielded is the lowest descriptor number that Shielded leaves open; execve
// closes the descriptor.
const firstShielded = 100
