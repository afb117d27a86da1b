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

// shield makes sure that the running program's file cannot be written by a container. A
// program in a container can be this very file (with /proc/self/exe as its entry point
// or as a script's interpreter), and could open it for writing once this process has
// ended. shield therefore re-executes the program from a detached read-only mount of its
// file or, if the kernel does not allow that, from a sealed copy in memory. It returns
// only in a process that runs from one of these.
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
		return fmt.Errorf("re-execute from a read-only mount: %w", err)
	}
	fd, err := sealedCopy("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("copy the program into memory: %w", err)
	}
	return fmt.Errorf("execute the copy in memory: %w", syscall.Exec(fmt.Sprintf("/proc/self/fd/%d", fd), os.Args, env))
}

// unwritable reports whether nobody can write to the running program's file through this process.
func unwritable() (bool, error) {
	fd, err := unix.Open("/proc/self/exe", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("open the program's own file: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return false, os.NewSyscallError("fstatfs", err)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return st.Flags&unix.ST_RDONLY != 0 || err == nil && seals&unix.F_SEAL_WRITE != 0, nil
}

// sealedCopy copies a file into a memory file that can be executed but not changed.
func sealedCopy(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return -1, err
	}
	return kernel.Memfd(b)
}
