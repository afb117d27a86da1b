package kernel

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Shielded returns a name by which this process, or a child that it starts right
// away, executes the file at path from a read-only mount of its own. A program
// in a container can have itself be such a child's copy (an entry point, or the
// interpreter of a script, of /proc/self/exe) and then open the file that it
// runs from for writing; on a read-only mount it cannot, whoever it is. Where the
// kernel does not do that, or the file already runs so, it is path itself; done
// is called when the program runs.
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
	// By hand: x/sys has the call, with its whole table of errors.
	_, _, errno := unix.Syscall6(unix.SYS_MOUNT_SETATTR, uintptr(fd), uintptr(unsafe.Pointer(empty)), unix.AT_EMPTY_PATH,
		uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return path, done
	}
	// Above what a child's own descriptors are moved to.
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, firstShielded)
	if err != nil {
		return path, done
	}
	return "/proc/self/fd/" + Itoa(high), func() { _ = unix.Close(high) }
}

// firstShielded is the lowest number of a descriptor that Shielded leaves open;
// execve closes it.
const firstShielded = 100
