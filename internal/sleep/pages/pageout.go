package pages

import (
	"context"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PageOut has the kernel move the anonymous memory of a process to the node's swap. Locked memory and huge pages stay. The process must be
// stopped, or it uses its memory again at once. A process that has ended has no memory to move.
func PageOut(ctx context.Context, pid int) error {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if gone(err) {
		return nil
	} else if err != nil {
		return err
	}
	defer func() { _ = unix.Close(pidfd) }()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if gone(err) {
		return nil
	} else if err != nil {
		return err
	}
	var m mapping
	for line := range strings.Lines(string(b)) {
		if m.detail(line) {
			continue
		}
		if err := m.pageOut(pidfd); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if m, err = parseMapping(line); err != nil {
			return err
		}
	}
	return m.pageOut(pidfd)
}

// pageOut moves the memory of one entry. The kernel refuses locked memory, huge pages and the memory of devices.
func (m *mapping) pageOut(pidfd int) error {
	if m.Len == 0 || m.anonymous == 0 {
		return nil
	}
	part := struct{ addr, size uint64 }{m.Addr, m.Len} // an iovec of another process's addresses
	_, _, errno := unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(pidfd), uintptr(unsafe.Pointer(&part)), 1, unix.MADV_PAGEOUT, 0, 0)
	if errno == 0 || errno == unix.EINVAL || errno == unix.ENOMEM || gone(errno) {
		return nil
	}
	return errno
}
