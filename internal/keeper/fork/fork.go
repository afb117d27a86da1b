// Package fork starts a process by a plan: it clones, and the child runs the plan's
// system calls one after the other until execve replaces it.
//
// The child is a copy of a Go program with the calling thread only. It runs on a stack of its own
// and unmaps everything except that stack, the program's instructions and the plan (memory.go).
// Between clone and execve it may therefore make raw system calls and nothing else: no allocation,
// no stack growth, no lock, no variable (run.go). A child that fails reports that through a pipe
// and exits; one that hangs or crashes harms nothing else. A Launcher is a child that stays and
// clones others. Package fork knows nothing of containers.
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

// The runtime's own hooks around fork. They block signals, so that no signal handler
// of this program runs in the child.
//
//go:linkname runtimeBeforeFork syscall.runtime_BeforeFork
func runtimeBeforeFork()

//go:linkname runtimeAfterFork syscall.runtime_AfterFork
func runtimeAfterFork()

// Files are the descriptors that a child gets; -1 means none. The caller keeps them.
type Files struct {
	Stdin, Stdout, Stderr int
	Park                  int // read end of a pipe; a parked child continues when it reads a byte
	Console               int // the child sends a pty's master to this socket
	Target                int // pidfd of a process; the child joins its namespaces
	// Progress, unless nil, points to two words in a page shared with the child. The
	// child writes the number of the operation that it begins into the first one. They
	// must not be in memory of the garbage collector.
	Progress *uint32
	// Errors is the write end of a failure pipe that the caller made, and reads with
	// Failed. If it is 0, Start makes a pipe.
	Errors int
	// Preserve is how many descriptors, from 3 on, the plan passes on to the program.
	Preserve int
	// Given are the descriptors that the child finds in the slots from plan.SlotGiven on.
	Given []int
}

// Child is a cloned process.
type Child struct {
	Pid   int
	PidFD int
	// Astray means that the calling thread could not leave the child's pid namespace.
	// It must not start anything again, and is locked to the calling goroutine.
	Astray bool
	errs   int // read end of the failure pipe
	goPipe int // write end of the pipe that a second child reads; -1 if the plan makes none
	// words are the two words shared with the child: the number of its operation, and
	// the pid of its second child.
	words    *uint32
	ownWords bool // words belong to this Child alone
	followed bool // the second child has been found
}

// FailedError describes the operation of a plan that failed, or another step that the
// child reports.
type FailedError struct {
	Step  int
	Name  string
	Errno syscall.Errno
	Exec  bool // the operation was to execute a program
}

func (f *FailedError) Error() string { return f.Name + ": " + f.Errno.Error() }

// exitFailure is the exit status of a child after a failed plan. Nothing reads it: the failure
// itself is reported through the pipe.
const exitFailure = 127

// firstFree is above every descriptor number that plans use themselves.
const firstFree = 64

type cloneArgs struct {
	flags, pidFD, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// Start clones a child that runs p. It returns as soon as the child exists; Outcome returns the
// result of the plan. The plan's memory must stay mapped until Outcome has returned.
func Start(p plan.Placed, f Files) (Child, error) {
	b, err := prepare(p, f)
	if err != nil {
		return Child{}, err
	}
	defer b.close()
	for i := range p.Header.Slot {
		if i < plan.SlotFree || i >= plan.SlotGiven {
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

// passed is a descriptor and its slot in the child.
type passed struct {
	slot uint8
	fd   int
}

// creation has the resources of one child before it is cloned.
type creation struct {
	passed []passed
	opened []int // closed once the child is cloned
	errs   int   // read end of the failure pipe
	goPipe int
}

// prepare makes the descriptors that the child needs.
func prepare(p plan.Placed, f Files) (b *creation, err error) {
	b = &creation{errs: -1, goPipe: -1}
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
	for i, fd := range f.Given {
		b.passed = append(b.passed, passed{uint8(plan.SlotGiven + i), fd})
	}
	if err := b.users(p); err != nil {
		return b, err
	}
	if err := b.makeGoPipe(p); err != nil {
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

// close closes the descriptors that only the child needs.
func (b *creation) close() {
	for _, fd := range b.opened {
		_ = unix.Close(fd)
	}
	b.opened = nil
}

// fail closes the descriptors for observing the child.
func (b *creation) fail() {
	closeGo(b.goPipe)
	if b.errs >= 0 {
		_ = unix.Close(b.errs)
	}
	b.goPipe, b.errs = -1, -1
}

func (b *creation) child(pid, pidfd int, words *uint32) Child {
	return Child{Pid: pid, PidFD: pidfd, errs: b.errs, goPipe: b.goPipe, words: words}
}

// above duplicates fd to a number that no plan uses; -1 stays -1.
func (f Files) above(fd int) (int, error) {
	if fd < 0 {
		return -1, nil
	}
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, firstFree+f.Preserve+len(f.Given))
	return high, os.NewSyscallError("fcntl", err)
}

// clone clones the child. A plan that makes a second child enters its pid namespace
// itself. For any other plan with a target or a named pid namespace, clone enters that
// namespace from this thread, because only later children of a thread are in it, and
// goes back afterwards. Processes inside the namespace can see such a child at once.
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
			// A thread that cannot go back stays locked to this goroutine, and dies
			// with it.
			if backToOwnPidNamespace() != nil {
				runtime.LockOSThread()
				c.Astray = true
			}
		}()
	}
	// The container's pid namespace may see the child before its first operation, so
	// the child must not be dumpable from the start.
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
	// The kernel writes to an address. It is not on this stack, which may move before that.
	pidfd := (*int32)(r.room(4))
	*pidfd = -1
	ca := &cloneArgs{flags: p.Header.CloneFlags | unix.CLONE_PIDFD, pidFD: uint64(uintptr(unsafe.Pointer(pidfd))), exitSignal: uint64(unix.SIGCHLD)}
	if cgroup >= 0 {
		ca.flags |= unix.CLONE_INTO_CGROUP
		ca.cgroup = uint64(cgroup)
	}
	pid, errno := r.start(ca, keep...)
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

// ownPidNamespace stays open, because every exec needs it.
var ownPidNamespace = sync.OnceValues(func() (int, error) {
	return unix.Open("/proc/self/ns/pid", unix.O_RDONLY|unix.O_CLOEXEC, 0)
})

// Errors returns the descriptor, for poll, that becomes readable when the child has
// executed its program, failed or died.
func (c *Child) Errors() int { return c.errs }

// Release closes the pipe that a second child reads, once that child was found or will not come. It
// may be called again.
func (c *Child) Release() {
	if c.Pid == 0 { // no child was cloned
		return
	}
	closeGo(c.goPipe)
	c.goPipe = -1
}

// Outcome waits until the child has executed its program, which is nil, or its plan
// has failed, which is a *FailedError. It closes the failure pipe. If the plan makes a
// second child, that one replaces the first in c.
func (c *Child) Outcome(p plan.Placed) error { return c.Ran(p, nil) }

// Ran is Outcome with a callback for the second child; see Parked.
func (c *Child) Ran(p plan.Placed, moved func(pid, pidfd int)) error {
	defer func() { _ = unix.Close(c.errs) }()
	return c.next(p, moved)
}

// Parked waits until the child has parked, which is nil, its plan has failed, which is a
// *FailedError, or it has died before that, which is ErrDied. The failure pipe stays open. If the
// plan makes a second child, that one replaces the first in c: moved, unless nil, is called with
// its pid and pidfd before it continues, and has to close the first child's pidfd.
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

// ErrDied means that a child ended before its program ran without reporting a failure,
// so it was killed.
var ErrDied = errors.New(plan.Died)

// next reads the child's next report, following it to its second child.
func (c *Child) next(p plan.Placed, moved func(pid, pidfd int)) error {
	defer c.Release()
	for {
		c.awaitResult()
		err := Failed(c.errs, p.Name)
		if !IsForked(err) {
			return err
		}
		if err := c.Follow(err, moved); err != nil {
			return err
		}
	}
}

// awaitResult waits until the failure pipe is readable or, for a child that will make a
// second one, the child has ended. If it has ended without reporting the second child,
// that one waits for us and holds the pipe open, so it is made to end.
func (c *Child) awaitResult() {
	if c.goPipe < 0 {
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

// Failed reads a child's report from its failure pipe. It returns nil at the pipe's
// end, which execve causes. A child that an attacker controls may write anything, in
// any number of pieces, so it is read only once.
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

// IsForked reports whether an error that Failed returned means that the child has made
// a second child, for Follow.
func IsForked(err error) bool {
	f, ok := err.(*FailedError) //nolint:errorlint // Failed wraps nothing
	return ok && f.Step == plan.StepForked
}
