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
	Huge      = "huge"       // it has transparent huge pages
	Hugetlb   = "hugetlb"    // it has huge pages of the machine's pool
	Shared    = "shared"     // it has shared memory
	Rings     = "rings"      // it has buffers that are registered with io_uring
	Files     = "files"      // it shares its descriptors with another process
)

// fightSize is the size of the areas of the modes.
const fightSize = 4 << 20

// fight begins a mode, and returns the memory that belongs to it.
func fight(mode string) ([]byte, error) {
	switch mode {
	case OwnFaults:
		return nil, ownFaults()
	case Traces:
		return nil, traces()
	case Locks:
		mem, err := area(unix.MAP_PRIVATE)
		if err != nil {
			return nil, err
		}
		return mem, unix.Mlock(mem)
	case Huge:
		mem, err := unix.Mmap(-1, 0, fightSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err == nil {
			err = unix.Madvise(mem, unix.MADV_HUGEPAGE)
		}
		return fillArea(mem), err
	case Hugetlb:
		return area(unix.MAP_PRIVATE | unix.MAP_HUGETLB)
	case Shared:
		return area(unix.MAP_SHARED)
	case Rings:
		return rings()
	case Signals:
		got := make(chan os.Signal, 1)
		signal.Notify(got, unix.SIGUSR1)
		go func() {
			for {
				_ = unix.Kill(os.Getpid(), unix.SIGUSR1)
				<-got
			}
		}()
		return nil, nil
	case Forks:
		for range 2 {
			go func() {
				for {
					_ = exec.CommandContext(context.Background(), "/proc/self/exe", childArg).Run()
				}
			}()
		}
		return nil, nil
	}
	return nil, fmt.Errorf("no mode %q", mode)
}

// area returns memory with content.
func area(flags int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, fightSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|flags)
	return fillArea(mem), err
}

func fillArea(mem []byte) []byte {
	for i := range mem {
		mem[i] = byte(i + i>>12)
	}
	return mem
}

// rings registers a buffer with an io_uring. The kernel may write to it at any time.
func rings() ([]byte, error) {
	mem, err := area(unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	var params [120]byte // struct io_uring_params
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(&params)), 0)
	if errno != 0 {
		return nil, fmt.Errorf("io_uring: %w", errno)
	}
	const registerBuffers = 0
	buffer := unix.Iovec{Base: &mem[0], Len: 1 << 20}
	if _, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, fd, registerBuffers, uintptr(unsafe.Pointer(&buffer)), 1, 0, 0); errno != 0 {
		return nil, fmt.Errorf("io_uring: register a buffer: %w", errno)
	}
	return mem, nil
}

// ownFaults registers an area at a userfaultfd of the program.
func ownFaults() error {
	const (
		userModeOnly  = 1
		api           = 0xaa
		ioctlAPI      = 0xc018aa3f
		ioctlRegister = 0xc020aa00
	)
	mem, err := area(unix.MAP_PRIVATE)
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
