package tracee

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// vforkTime is the time between two looks for parents that wait for a child of vfork.
const vforkTime = 20 * time.Millisecond

// continueVforked lets a child of vfork continue if its parent has not stopped. Such a parent waits in the kernel, and cannot be
// interrupted, until its child executes a program or ends. The child's seccomp filter is in force meanwhile, and it stops before the
// first instruction of its program.
func (g *Group) continueVforked() error {
	for _, p := range g.Processes {
		if len(p.threads) != 1 || !p.threads[0].stopped {
			continue
		}
		parent := status(p.Pid).parent
		for _, t := range g.all() {
			if t.process.Pid != parent || t.stopped || status(t.id).state != uninterruptible || !SameMemory(p.Pid, parent) {
				continue
			}
			child := p.threads[0]
			if err := child.goOn(unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACEEXEC, unix.PTRACE_CONT); err != nil {
				return err
			}
			child.stopped, child.loose = false, true
			break
		}
	}
	return nil
}

// uninterruptible is the state of a thread that waits in the kernel and cannot be interrupted.
const uninterruptible = "D"

// goOn sets a stopped thread's options and makes requests. A thread that has been killed is no error.
func (t *thread) goOn(options uintptr, requests ...int) error {
	err := ptrace(unix.PTRACE_SETOPTIONS, t.id, 0, options)
	for _, r := range requests {
		if err == nil {
			err = ptrace(r, t.id, 0, 0)
		}
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("let thread %d execute its program: %w", t.id, err)
	}
	return nil
}

// hold gives a thread that has continued, and stopped again, the options of the others.
func (t *thread) hold() error {
	if !t.loose {
		return nil
	}
	t.loose = false
	return t.goOn(options)
}

// SameMemory reports whether two processes have one address space.
func SameMemory(a, b int) bool {
	const kcmpVM = 1
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpVM, 0, 0, 0)
	return errno == 0 && r == 0
}
