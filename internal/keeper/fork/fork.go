// Package fork starts a process by a plan: it clones, and the child runs the
// plan's system calls one after the other until execve replaces it.
//
// The child is a copy of a Go program of which only the calling thread goes on,
// so between clone and execve it may make raw system calls and touch memory
// that exists, and nothing else: no allocation, no stack growth, no lock. A
// child that fails says so through a pipe and exits; one that hangs or crashes
// harms nobody but itself. Package fork knows nothing of containers.
package fork

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// The runtime's own hooks around fork: they block signals, so that no handler
// of ours runs in the child.
//
//go:linkname runtimeBeforeFork syscall.runtime_BeforeFork
func runtimeBeforeFork()

//go:linkname runtimeAfterFork syscall.runtime_AfterFork
func runtimeAfterFork()

//go:linkname runtimeAfterForkInChild syscall.runtime_AfterForkInChild
func runtimeAfterForkInChild()

// Files are the descriptors that a child gets; -1 is none. They stay the
// caller's.
type Files struct {
	Stdin, Stdout, Stderr int
	Park                  int // read end; the child goes on when it reads a byte
	Console               int // socket that takes a pty's master
	Target                int // pidfd of the process whose namespaces are joined
	// Progress, unless nil, is where the child writes the number of the
	// operation that it begins: a word of memory that both share. It must not
	// be the garbage collector's.
	Progress *uint32
	// Errors is the write end of a failure pipe that the caller made, and reads
	// by Failed; 0 is a pipe of Start's own.
	Errors int
	// Preserve is how many descriptors from 3 on the plan passes on.
	Preserve int
}

// Child is a cloned process.
type Child struct {
	Pid   int
	PidFD int
	// Astray: the calling thread could not leave the child's pid namespace, and
	// must not start anything again. It is locked to the calling goroutine.
	Astray bool
	errs   int // read end of the failure pipe
	goOn   int // write end of what a second child waits for; -1: the plan makes none
}

// FailedError is the first operation that did not go as the plan says.
type FailedError struct {
	Step  int
	Name  string
	Errno syscall.Errno
}

func (f *FailedError) Error() string { return f.Name + ": " + f.Errno.Error() }

// exitFailure is the status of a child whose plan failed. Nobody reports it:
// the failure itself came through the pipe.
const exitFailure = 127

// firstFree is above every descriptor number that a plan uses by itself.
const firstFree = 64

type cloneArgs struct {
	flags, pidFD, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// Start clones a child and lets it run p. It returns as soon as the child
// exists; Outcome tells how its plan went. The plan's memory must stay mapped
// until Outcome has returned or the child is gone.
func Start(p plan.Placed, f Files) (Child, error) {
	var opened []int
	defer func() {
		for _, fd := range opened {
			_ = unix.Close(fd)
		}
	}()
	for slot, fd := range map[int]int{
		plan.SlotStdin: f.Stdin, plan.SlotStdout: f.Stdout, plan.SlotStderr: f.Stderr,
		plan.SlotPark: f.Park, plan.SlotConsole: f.Console, plan.SlotTarget: f.Target,
	} {
		high, err := f.above(fd)
		if err != nil {
			return Child{}, err
		}
		if fd >= 0 {
			opened = append(opened, high)
		}
		p.Header.Slot[slot] = uint64(high)
	}
	users, err := makeUsers(p, f)
	opened = append(opened, users...)
	if err != nil {
		return Child{}, err
	}
	goOn, waits, err := makeGo(p, f)
	if err != nil {
		return Child{}, err
	}
	opened = append(opened, waits...)
	cgroup, err := f.openCgroup(p.CgroupDir())
	if err != nil {
		closeGo(goOn)
		return Child{}, err
	}
	if cgroup >= 0 {
		opened = append(opened, cgroup)
	}
	errs := -1
	if f.Errors == 0 {
		var pipe [2]int
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
			closeGo(goOn)
			return Child{}, os.NewSyscallError("pipe2", err)
		}
		errs, f.Errors = pipe[0], pipe[1]
		defer func() { _ = unix.Close(pipe[1]) }()
	}
	w, err := f.above(f.Errors)
	if err == nil {
		opened = append(opened, w)
		p.Header.Slot[plan.SlotError] = uint64(w)
		var c Child
		c, err = clone(p, f.Target, cgroup, f.Progress)
		if c.errs, c.goOn = errs, goOn; err == nil {
			return c, nil
		}
		closeGo(goOn)
		if errs >= 0 {
			_ = unix.Close(errs)
		}
		return Child{Astray: c.Astray}, err
	}
	closeGo(goOn)
	if errs >= 0 {
		_ = unix.Close(errs)
	}
	return Child{}, err
}

// above duplicates fd to a number that no plan uses; -1 stays -1.
func (f Files) above(fd int) (int, error) {
	if fd < 0 {
		return -1, nil
	}
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, firstFree+f.Preserve)
	return high, os.NewSyscallError("fcntl", err)
}

func (f Files) openCgroup(dir string) (int, error) {
	if dir == "" {
		return -1, nil
	}
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	high, err := f.above(fd)
	_ = unix.Close(fd)
	return high, err
}

// clone makes the child. For an exec, and where the plan names a pid namespace,
// it does so from a thread that has put its future children there, and takes the
// thread back out of it after.
func clone(p plan.Placed, target, cgroup int, progress *uint32) (c Child, err error) {
	if file := p.PidNS(); file != "" && target < 0 {
		fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return Child{}, &os.PathError{Op: "open", Path: file, Err: err}
		}
		defer func() { _ = unix.Close(fd) }()
		target = fd
	}
	if target >= 0 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := unix.Setns(target, unix.CLONE_NEWPID); err != nil {
			return Child{}, os.NewSyscallError("join the pid namespace", err)
		}
		defer func() {
			// A thread that cannot go back dies with the goroutine it stays
			// locked to, if that ends.
			if backToOwnPidNamespace() != nil {
				runtime.LockOSThread()
				c.Astray = true
			}
		}()
	}
	// The child is a copy of us and may be seen from the container's pid
	// namespace before its first operation: it is born unreadable.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return Child{}, os.NewSyscallError("prctl", err)
	}
	// The results stand on the heap: a stack may move.
	pidfd := new(int32)
	*pidfd = -1
	ca := &cloneArgs{flags: p.Header.CloneFlags | unix.CLONE_PIDFD, pidFD: uint64(uintptr(unsafe.Pointer(pidfd))), exitSignal: uint64(unix.SIGCHLD)}
	if cgroup >= 0 {
		ca.flags |= unix.CLONE_INTO_CGROUP
		ca.cgroup = uint64(cgroup)
	}
	syscall.ForkLock.Lock()
	runtimeBeforeFork()
	pid, errno := cloneAndRun(p.Ops, p.Header, ca, progress)
	runtimeAfterFork()
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(pidfd)
	runtime.KeepAlive(ca)
	if errno != 0 {
		return Child{}, os.NewSyscallError("clone3", errno)
	}
	return Child{Pid: int(pid), PidFD: int(*pidfd)}, nil
}

func backToOwnPidNamespace() error {
	fd, err := ownPidNamespace()
	if err != nil {
		return err
	}
	return unix.Setns(fd, unix.CLONE_NEWPID)
}

// ownPidNamespace stays open: it is wanted after every exec.
var ownPidNamespace = sync.OnceValues(func() (int, error) {
	return unix.Open("/proc/self/ns/pid", unix.O_RDONLY|unix.O_CLOEXEC, 0)
})

// retries bounds how often an open is repeated that the kernel gave up because
// something was renamed or mounted anywhere meanwhile (openat2(2), EAGAIN).
const retries = 10000

// cloneAndRun clones; the parent returns, the child never does.
//
//go:noinline
//go:norace
//go:nosplit
//go:nocheckptr
func cloneAndRun(ops []plan.Op, h *plan.Header, ca *cloneArgs, progress *uint32) (pid uintptr, errno syscall.Errno) {
	pid, _, errno = syscall.RawSyscall6(unix.SYS_CLONE3, uintptr(unsafe.Pointer(ca)), unsafe.Sizeof(*ca), 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	runtimeAfterForkInChild()
	var failure [2]uint32
	for i := 0; i < len(ops); i++ {
		o := &ops[i]
		if progress != nil {
			*progress = uint32(i)
		}
		if o.Kind == plan.Jump {
			i += int(o.Want)
			continue
		}
		if o.Kind == plan.Store {
			*(*uint32)(unsafe.Add(unsafe.Pointer(h), o.A[1])) = uint32(h.Slot[o.A[0]&(plan.NumSlots-1)])
			continue
		}
		if o.Kind == plan.Fork {
			r, _, e := syscall.RawSyscall6(unix.SYS_CLONE3, uintptr(o.A[0]), plan.CloneArgsSize, 0, 0, 0, 0)
			if e == 0 && r == 0 {
				continue
			}
			failure[0], failure[1] = plan.StepForked, uint32(r)
			if e != 0 {
				failure[0], failure[1] = uint32(i), uint32(e)
			}
			_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, uintptr(h.Slot[plan.SlotError]), uintptr(unsafe.Pointer(&failure)), 8)
			break
		}
		var a [6]uintptr
		for j := range 6 {
			if o.Slots&(1<<j) != 0 {
				a[j] = uintptr(h.Slot[o.A[j]&(plan.NumSlots-1)])
			} else {
				a[j] = uintptr(o.A[j])
			}
		}
		r, _, e := syscall.RawSyscall6(uintptr(o.NR), a[0], a[1], a[2], a[3], a[4], a[5])
		for n := 0; e == unix.EAGAIN && o.NR == unix.SYS_OPENAT2 && n < retries; n++ {
			r, _, e = syscall.RawSyscall6(uintptr(o.NR), a[0], a[1], a[2], a[3], a[4], a[5])
		}
		switch {
		case e != 0 && (e == syscall.Errno(o.OK) || e == syscall.Errno(o.OK2)):
			if o.Kind == plan.Try {
				i += int(o.Want)
			}
			continue
		case e != 0:
		case o.Kind == plan.Must && r != uintptr(o.Want):
			e = unix.EPROTO
		default:
			if o.Out >= 0 {
				h.Slot[o.Out&(plan.NumSlots-1)] = uint64(r)
			}
			continue
		}
		failure[0], failure[1] = uint32(i), uint32(e)
		_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, uintptr(h.Slot[plan.SlotError]), uintptr(unsafe.Pointer(&failure)), 8)
		break
	}
	for {
		_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, exitFailure, 0, 0)
	}
}

// Errors returns the descriptor that becomes readable when the child has
// executed its program, failed or died; for a poll.
func (c *Child) Errors() int { return c.errs }

// Outcome waits until the child has executed its program (nil), or its plan has
// failed (*FailedError). It closes the pipe. A plan that makes a second child
// makes that one the Child.
func (c *Child) Outcome(p plan.Placed) error {
	defer func() { _ = unix.Close(c.errs) }()
	return c.next(p, nil)
}

// Parked waits until the child has come to where its plan parks it (nil), or
// its plan has failed (*FailedError), or it has died on the way (ErrDied). The pipe
// stays open. When the plan makes a second child, that one is the Child from
// then on, and moved, unless nil, is told its pid and pidfd before it goes on;
// the first one's pidfd is then moved's to close.
func (c *Child) Parked(p plan.Placed, moved func(pid, pidfd int)) error {
	err := c.next(p, moved)
	switch f, ok := err.(*FailedError); { //nolint:errorlint // made right here
	case err == nil:
		return ErrDied
	case ok && f.Step == plan.StepParked:
		return nil
	}
	return err
}

// ErrDied is a child that ended before its program without saying why: it was
// killed.
var ErrDied = errors.New("the child died before its program ran")

// next reads what the child tells, following it when it becomes another.
func (c *Child) next(p plan.Placed, moved func(pid, pidfd int)) error {
	defer func() { closeGo(c.goOn); c.goOn = -1 }()
	for {
		err := Failed(c.errs, p.Name)
		f, ok := err.(*FailedError) //nolint:errorlint // made right here
		if !ok || f.Step != plan.StepForked {
			return err
		}
		if err := c.Follow(int(f.Errno), moved); err != nil {
			return err
		}
	}
}

// Failed reads what a child tells by its failure pipe: nil when the pipe ends,
// which execve makes it do.
func Failed(errs int, name func(step int) string) error {
	var buf [8]byte
	n := 0
	for n < len(buf) {
		k, err := unix.Read(errs, buf[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("read", err)
		}
		if k == 0 {
			return nil
		}
		n += k
	}
	step := int(*(*uint32)(unsafe.Pointer(&buf[0])))
	f := &FailedError{Step: step, Errno: syscall.Errno(*(*uint32)(unsafe.Pointer(&buf[4])))}
	if step != plan.StepParked && step != plan.StepForked {
		f.Name = name(step)
	}
	return f
}
