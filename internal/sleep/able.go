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
	return able(own, tracee.Device, "/proc/sys/vm/unprivileged_userfaultfd")
}

// own makes a userfaultfd of this process.
func own() error {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		return errno
	}
	return unix.Close(int(fd))
}

// able reports whether the kernel has userfaultfd, and whether a process without rights may have one: by a device that is passed to
// it, or by a kernel parameter.
func able(own func() error, device, parameter string) error {
	if err := own(); err != nil {
		return fmt.Errorf("the kernel has no userfaultfd for us: %w", err)
	}
	if _, err := os.Stat(device); err == nil {
		return nil
	}
	if b, err := os.ReadFile(parameter); err == nil && len(b) > 0 && b[0] == '0' {
		return tracee.ErrForbidden
	}
	return nil
}
