package ocicli

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
)

const shieldedEnv = "_LONGSHORE_OCI_SHIELDED"

// shield sees to it that what runs from here on is no file that a container can
// write. A program in a container can be the very file that we run from (an
// entry point, or the interpreter of a script, of /proc/self/exe), and could
// open it for writing once it runs no more; so we replace ourselves by the same
// file on a detached, read-only mount, or by a sealed copy in memory where the
// kernel does not let us have one. It returns only where that has been done.
func shield() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	sealed, err := unwritable()
	if err != nil {
		return err
	}
	if sealed {
		return os.Unsetenv(shieldedEnv)
	}
	if os.Getenv(shieldedEnv) != "" {
		return errors.New("the program's own file could not be made read-only")
	}
	env := append(os.Environ(), shieldedEnv+"=1")
	if name, done := kernel.Shielded("/proc/self/exe"); name != "/proc/self/exe" {
		err = syscall.Exec(name, os.Args, env)
		done()
		return fmt.Errorf("execute ourselves from a read-only mount: %w", err)
	}
	fd, err := sealedCopy("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("copy ourselves into memory: %w", err)
	}
	return fmt.Errorf("execute our copy: %w", syscall.Exec(fmt.Sprintf("/proc/self/fd/%d", fd), os.Args, env))
}

// unwritable reports whether the file that we run from can be written by nobody
// who finds it by our process.
func unwritable() (bool, error) {
	fd, err := unix.Open("/proc/self/exe", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("open our own program: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return false, os.NewSyscallError("fstatfs", err)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return st.Flags&unix.ST_RDONLY != 0 || err == nil && seals&unix.F_SEAL_WRITE != 0, nil
}

// sealedCopy copies a file into memory, where it can be executed and not
// changed.
func sealedCopy(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return -1, err
	}
	return kernel.Memfd(b)
}
