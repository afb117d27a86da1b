// Package fork starts a process by a plan: it clones, and the child runs the
// plan's system calls one after the other until execve replaces it.
//
// The child is a copy of a Go program of which only the calling thread goes on.
// It comes out on a stack of its own and unmaps everything but that, the
// program's instructions and its plan (memory.go), so between clone and execve
// it may make raw system calls and nothing else: no allocation, no stack growth,
// no lock, no variable (run.go). A child that fails says so through a pipe and
// exits; one that hangs or crashes harms nobody but itself. A Launcher is a child
// that stays and clones others. Package fork knows nothing of containers.
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

// Files are the descriptors that a child gets; -1 is none. They stay the
// caller's.
type Files struct {
	Stdin, Stdout, Stderr int
	Park                  int // read end; the child goes on when it reads a byte
	Console               int // socket that takes a pty's master
	Target                int // pidfd of the process whose namespaces are joined
	// Progress, unless nil, is where the child writes the number of the
	// operation that it begins: the first of two words of memory that both
	// share, in one page. They must not be the garbage collector's.
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
	// words are what the child shares with us: the number of its operation, and
	// the pid of the child that it has made to go on.
	words    *uint32
	ownWords bool // they are this Child's alone
	followed bool // the second child is known
}

// FailedError is the first operation that did not go as the plan says.
type FailedError struct {
	Step  int
	Name  string
	Errno syscall.Errno
	Exec  bool // it was to execute a program
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
// until Start has returned, and for Outcome.
func Start(p plan.Placed, f Files) (Child, error) {
	b, err := prepare(p, f)
	if err != nil {
		return Child{}, err
	}
	defer b.close()
	for i := range p.Header.Slot {
		if i < plan.SlotFree {
			p.Header.Slot[i] = noDescriptor
		}
	}
	cgroup := -1
	for _, s := range b.passed {
		high, err := f.above(s.fd)
		if err != nil {
			b.fail()
			return Child{}, err
		}
		b.opened = append(b.opened, high)
		if s.slot == cgroupSlot {
			cgroup = high
		} else {
			p.Header.Slot[s.slot] = uint64(high)
		}
	}
	shared := f.Progress
	if shared == nil && p.Forks() {
		if shared, err = sharedWords(); err != nil {
			b.fail()
			return Child{}, err
		}
	}
	c, err := clone(p, f.Target, cgroup, shared)
	if err != nil {
		b.fail()
		if f.Progress == nil {
			freeWords(shared)
		}
		return Child{Astray: c.Astray}, err
	}
	made := b.child(c.Pid, c.PidFD, shared)
	made.Astray, made.ownWords = c.Astray, f.Progress == nil
	return made, nil
}

const noDescriptor = 1<<64 - 1

// passed is a descriptor that a child gets in a slot.
type passed struct {
	slot uint8
	fd   int
}

// birth is what is made for one child before it is cloned.
type creation struct {
	passed []passed
	opened []int // what is closed once it is
	errs   int   // read end of the failure pipe
	goOn   int
}

// prepare makes what the child needs.
func prepare(p plan.Placed, f Files) (b *creation, err error) {
	b = &creation{errs: -1, goOn: -1}
	defer func() {
		if err != nil {
			b.close()
			b.fail()
		}
	}()
	for slot, fd := range [...]int{
		plan.SlotStdin: f.Stdin, plan.SlotStdout: f.Stdout, plan.SlotStderr: f.Stderr,
		plan.SlotPark: f.Park, plan.SlotConsole: f.Console, plan.SlotTarget: f.Target, plan.SlotError: -1,
	} {
		if fd >= 0 {
			b.passed = append(b.passed, passed{uint8(slot), fd})
		}
	}
	if err := b.users(p); err != nil {
		return b, err
	}
	if err := b.makeGo(p); err != nil {
		return b, err
	}
	if dir := p.CgroupDir(); dir != "" {
		fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return b, &os.PathError{Op: "open", Path: dir, Err: err}
		}
		b.opened = append(b.opened, fd)
		b.passed = append(b.passed, passed{cgroupSlot, fd})
	}
	errs := f.Errors
	if errs == 0 {
		var pipe [2]int
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
			return b, os.NewSyscallError("pipe2", err)
		}
		b.errs, errs = pipe[0], pipe[1]
		b.opened = append(b.opened, errs)
	}
	b.passed = append(b.passed, passed{plan.SlotError, errs})
	return b, nil
}

// close closes what only the child was to have.
func (b *creation) close() {
	for _, fd := range b.opened {
		_ = unix.Close(fd)
	}
	b.opened = nil
}

// fail closes what the child would have been followed by.
func (b *creation) fail() {
	closeGo(b.goOn)
	if b.errs >= 0 {
		_ = unix.Close(b.errs)
	}
	b.goOn, b.errs = -1, -1
}

func (b *creation) child(pid, pidfd int, words *uint32) Child {
	return Child{Pid: pid, PidFD: pidfd, errs: b.errs, goOn: b.goOn, words: words}
}

// above duplicates fd to a number that no plan uses; -1 stays -1.
func (f Files) above(fd int) (int, error) {
	if fd < 0 {
		return -1, nil
	}
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, firstFree+f.Preserve)
	return high, os.NewSyscallError("fcntl", err)
}

// clone makes the child. A plan that forks goes into its pid namespace by itself,
// last of all. For another one that has a target, or names a pid namespace, clone
// does so from a thread that has put its future children there, and takes the
// thread back out of it after: its child can be seen from inside at once.
func clone(p plan.Placed, target, cgroup int, progress *uint32) (c Child, err error) {
	if p.Forks() {
		target = -1
	} else if file := p.PidNS(); file != "" && target < 0 {
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
	// The child may be seen from the container's pid namespace before its first
	// operation: it is born unreadable.
	if err := notDumpable(); err != nil {
		return Child{}, err
	}
	r, err := newRegion()
	if err != nil {
		return Child{}, err
	}
	defer r.free()
	t := r.task()
	t.kind, t.numOps = runsPlan, uintptr(len(p.Ops))
	if len(p.Ops) > 0 {
		t.ops = uintptr(unsafe.Pointer(&p.Ops[0]))
	}
	t.header = uintptr(unsafe.Pointer(p.Header))
	keep := []span{pages(unsafe.Pointer(p.Header), uintptr(p.Header.Size))}
	if progress != nil {
		t.progress = uintptr(unsafe.Pointer(progress))
		keep = append(keep, pages(unsafe.Pointer(progress), 1))
	}
	// The results stand on the heap: a stack may move.
	pidfd := new(int32)
	*pidfd = -1
	ca := &cloneArgs{flags: p.Header.CloneFlags | unix.CLONE_PIDFD, pidFD: uint64(uintptr(unsafe.Pointer(pidfd))), exitSignal: uint64(unix.SIGCHLD)}
	if cgroup >= 0 {
		ca.flags |= unix.CLONE_INTO_CGROUP
		ca.cgroup = uint64(cgroup)
	}
	pid, errno := r.start(ca, keep...)
	runtime.KeepAlive(pidfd)
	runtime.KeepAlive(ca)
	if errno != 0 {
		return Child{}, os.NewSyscallError("clone3", errno)
	}
	return Child{Pid: int(pid), PidFD: int(*pidfd)}, nil
}

func notDumpable() error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
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

// Errors returns the descriptor that becomes readable when the child has
// executed its program, failed or died; for a poll.
func (c *Child) Errors() int { return c.errs }

// Release closes what a second child would have waited for: none comes any more,
// or it is known already. It may be called again.
func (c *Child) Release() {
	if c.Pid == 0 { // no child was made
		return
	}
	closeGo(c.goOn)
	c.goOn = -1
}

// Outcome waits until the child has executed its program (nil), or its plan has
// failed (*FailedError). It closes the pipe. A plan that makes a second child
// makes that one the Child.
func (c *Child) Outcome(p plan.Placed) error { return c.Ran(p, nil) }

// Ran is Outcome for who wants to know of a second child; see Parked.
func (c *Child) Ran(p plan.Placed, moved func(pid, pidfd int)) error {
	defer func() { _ = unix.Close(c.errs) }()
	return c.next(p, moved)
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
var ErrDied = errors.New(plan.Died)

// next reads what the child tells, following it when it becomes another.
func (c *Child) next(p plan.Placed, moved func(pid, pidfd int)) error {
	defer c.Release()
	for {
		c.awaitTold()
		err := Failed(c.errs, p.Name)
		if !IsForked(err) {
			return err
		}
		if err := c.Follow(err, moved); err != nil {
			return err
		}
	}
}

// awaitTold waits until the failure pipe can be read, or, for a child that is to
// make a second one, has ended. One that ends without having told of the second
// leaves it waiting for us with the pipe open, so it is let end.
func (c *Child) awaitTold() {
	if c.goOn < 0 {
		return
	}
	fds := []unix.PollFd{{Fd: int32(c.errs), Events: unix.POLLIN}, {Fd: int32(c.PidFD), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, -1)
		switch {
		case err == unix.EINTR:
			continue
		case err == nil && fds[0].Revents == 0:
			if _, err := unix.Poll(fds[:1], 0); err == nil && fds[0].Revents == 0 {
				c.Release()
			}
		}
		return
	}
}

// Failed reads what a child tells by its failure pipe: nil when the pipe ends,
// which execve makes it do. A child that was taken over may write anything, and
// a part of it: one reading is all that it is given.
func Failed(errs int, name func(step int) string) error {
	var buf [8]byte
	n, err := unix.Read(errs, buf[:])
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(errs, buf[:])
	}
	switch {
	case err != nil:
		return os.NewSyscallError("read", err)
	case n == 0:
		return nil
	case n != len(buf):
		return ErrDied
	}
	step := int(*(*uint32)(unsafe.Pointer(&buf[0])))
	f := &FailedError{Step: step, Errno: syscall.Errno(*(*uint32)(unsafe.Pointer(&buf[4])))}
	if step != plan.StepParked && step != plan.StepForked {
		f.Step, f.Exec = step&^plan.StepExec, step&plan.StepExec != 0
		f.Name = name(f.Step)
	}
	return f
}

// IsForked reports whether what Failed returned says that the child has made
// another one to go on, for Follow.
func IsForked(err error) bool {
	f, ok := err.(*FailedError) //nolint:errorlint // Failed wraps nothing
	return ok && f.Step == plan.StepForked
}
