package sleeptest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The modes of a program that disturbs its sleep.
const (
	OwnFaults = "own-faults" // it supplies the pages of an area itself
	Traces    = "traces"     // it traces a child
	Locks     = "locks"      // it locks an area in memory
	Signals   = "signals"    // it sends signals to itself all the time
	Forks     = "forks"      // it forks all the time
)

// fightSize is the size of the areas of the modes.
const fightSize = 4 << 20

func fight(mode string) error {
	switch mode {
	case OwnFaults:
		return ownFaults()
	case Traces:
		return traces()
	case Locks:
		mem, err := area()
		if err != nil {
			return err
		}
		return unix.Mlock(mem)
	case Signals:
		got := make(chan os.Signal, 1)
		signal.Notify(got, unix.SIGUSR1)
		go func() {
			for {
				_ = unix.Kill(os.Getpid(), unix.SIGUSR1)
				<-got
			}
		}()
		return nil
	case Forks:
		for range 2 {
			go func() {
				for {
					_ = exec.CommandContext(context.Background(), "/proc/self/exe", childArg).Run()
				}
			}()
		}
		return nil
	}
	return fmt.Errorf("no mode %q", mode)
}

// area returns memory with content.
func area() ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, fightSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	for i := range mem {
		mem[i] = byte(i)
	}
	return mem, err
}

// ownFaults registers an area at a userfaultfd of the program.
func ownFaults() error {
	const (
		userModeOnly  = 1
		api           = 0xaa
		ioctlAPI      = 0xc018aa3f
		ioctlRegister = 0xc020aa00
	)
	mem, err := area()
	if err != nil {
		return err
	}
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK|userModeOnly, 0, 0)
	if errno != 0 {
		return fmt.Errorf("userfaultfd: %w", errno)
	}
	agree := [3]uint64{api}
	register := [4]uint64{uint64(uintptr(unsafe.Pointer(&mem[0]))), fightSize, 1}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, ioctlAPI, uintptr(unsafe.Pointer(&agree))); errno != 0 {
		return fmt.Errorf("userfaultfd: %w", errno)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, ioctlRegister, uintptr(unsafe.Pointer(&register))); errno != 0 {
		return fmt.Errorf("userfaultfd: register: %w", errno)
	}
	return nil
}

// traces starts a child that stops under trace at its first instruction.
func traces() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the tracer
		cmd := exec.CommandContext(context.Background(), "/proc/self/exe", childArg)
		cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
		started <- cmd.Start()
		<-time.After(time.Hour)
	}()
	return <-started
}
