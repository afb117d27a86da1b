package sleep

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/sleep/tracee"
)

// Able returns nil if this node can put containers to sleep, and the reason if it cannot.
func Able() error {
	if !tracee.Supported {
		return errors.New("sleep is not implemented for this architecture")
	}
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		return fmt.Errorf("the kernel has no userfaultfd for us: %w", errno)
	}
	_ = unix.Close(int(fd))
	if _, err := os.Stat(tracee.Device); err == nil {
		return nil
	}
	if b, err := os.ReadFile("/proc/sys/vm/unprivileged_userfaultfd"); err == nil && len(b) > 0 && b[0] == '0' {
		return tracee.ErrForbidden
	}
	return nil
}
