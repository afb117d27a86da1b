package fork

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// retries bounds how often an open is repeated that failed with EAGAIN because
// something was renamed or mounted meanwhile (openat2(2)).
const retries = 10000

// The functions of this file run in a child, which has a stack, the program and its
// plan and no other memory: no heap, no package variables, no g. They make raw system
// calls and call each other, and do nothing else.

// child is the first function that a child runs.
//
//go:noinline
//go:norace
//go:nosplit
//go:nocheckptr
func child(t *task) {
	// The parent had blocked all signals, so that none of its handlers runs here.
	// clone has reset the handlers, so signals can be unblocked.
	var none uint64
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, sigSetMask, uintptr(unsafe.Pointer(&none)), 0, 8, 0, 0)
	e := unmapOthers(t)
	switch {
	case t.kind == launches && e == 0:
		if serve(t) {
			run(t) // from the top of the stack, which is small and does not grow
		}
	case t.kind == runsPlan && e != 0:
		report(t, 0, uint32(e))
	case t.kind == runsPlan:
		run(t)
	}
	exitChild()
}

const sigSetMask = 2

// exitChild ends the process.
//
//go:norace
//go:nosplit
func exitChild() {
	for {
		_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, exitFailure, 0, 0)
	}
}

// at is the memory at an address.
//
//go:norace
//go:nosplit
//go:nocheckptr
func at(address uintptr) unsafe.Pointer { return unsafe.Add(unsafe.Pointer(nil), address) }

// report writes a step and its outcome to the failure pipe.
//
//go:norace
//go:nosplit
//go:nocheckptr
func report(t *task, step, outcome uint32) {
	m := [2]uint32{step, outcome}
	h := (*plan.Header)(at(t.header))
	_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, uintptr(h.Slot[plan.SlotError]), uintptr(unsafe.Pointer(&m)), 8)
}

// run makes a plan's calls one after the other. It returns when one has failed, and in
// a first child that has made the second one.
//
//go:noinline
//go:norace
//go:nosplit
//go:nocheckptr
func run(t *task) {
	h := (*plan.Header)(at(t.header))
	if t.progress != 0 {
		// A second child must not share these pages: it may be taken over by the
		// processes in the namespaces it has joined.
		if _, _, e := syscall.RawSyscall(unix.SYS_MADVISE, t.progress&^(sharedPage-1), sharedPage, unix.MADV_DONTFORK); e != 0 {
			report(t, 0, uint32(e))
			return
		}
	}
	for i := uintptr(0); i < t.numOps; i++ {
		o := (*plan.Op)(at(t.ops + i*unsafe.Sizeof(plan.Op{})))
		if t.progress != 0 {
			*(*uint32)(at(t.progress)) = uint32(i)
		}
		switch o.Kind {
		case plan.Jump:
			i += uintptr(o.Want)
			continue
		case plan.Store:
			*(*uint32)(at(t.header + uintptr(o.A[1]))) = uint32(h.Slot[o.A[0]&(plan.NumSlots-1)])
			continue
		case plan.Same:
			if !same(uintptr(o.A[0]), uintptr(o.A[1]), uintptr(o.A[2])) {
				report(t, uint32(i), uint32(unix.EPROTO))
				return
			}
			continue
		case plan.Fork:
			pid, e := forkOn(t, uintptr(o.A[0]))
			switch {
			case e != 0:
				report(t, uint32(i), uint32(e))
				return
			case pid != 0:
				report(t, plan.StepForked, uint32(pid))
				return
			}
			// The pages shared with the parent stay with the first child.
			t.progress = 0
			continue
		}
		r, e := call(h, o)
		switch {
		case e != 0 && (e == syscall.Errno(o.OK) || e == syscall.Errno(o.OK2)):
			if o.Kind == plan.Try {
				i += uintptr(o.Want)
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
		step := uint32(i)
		if o.NR == unix.SYS_EXECVE || o.NR == unix.SYS_EXECVEAT {
			step |= plan.StepExec
		}
		report(t, step, uint32(e))
		return
	}
}

// call makes the system call of an operation.
//
//go:norace
//go:nosplit
//go:nocheckptr
func call(h *plan.Header, o *plan.Op) (r uintptr, e syscall.Errno) {
	var a [6]uintptr
	for j := range 6 {
		if o.Slots&(1<<j) != 0 {
			a[j] = uintptr(h.Slot[o.A[j]&(plan.NumSlots-1)])
		} else {
			a[j] = uintptr(o.A[j])
		}
	}
	r, _, e = syscall.RawSyscall6(uintptr(o.NR), a[0], a[1], a[2], a[3], a[4], a[5])
	for n := 0; e == unix.EAGAIN && o.NR == unix.SYS_OPENAT2 && n < retries; n++ {
		r, _, e = syscall.RawSyscall6(uintptr(o.NR), a[0], a[1], a[2], a[3], a[4], a[5])
	}
	return r, e
}

// same compares n bytes.
//
//go:norace
//go:nosplit
//go:nocheckptr
func same(a, b, n uintptr) bool {
	for i := range n {
		if *(*byte)(at(a + i)) != *(*byte)(at(b + i)) {
			return false
		}
	}
	return true
}

// forkOn makes the second child, which continues the plan. The kernel writes its pid into memory
// shared with the parent. The second child does not have that memory, because it may be taken over
// as soon as it exists: so it cannot name another process in the failure pipe.
//
//go:norace
//go:nosplit
//go:nocheckptr
func forkOn(t *task, args uintptr) (pid uintptr, e syscall.Errno) {
	ca := (*cloneArgs)(at(args))
	if t.progress != 0 {
		ca.flags |= unix.CLONE_PARENT_SETTID
		ca.parentTID = uint64(t.progress + 4)
	}
	if ca.flags == unix.CLONE_PARENT || ca.flags == unix.CLONE_PARENT|unix.CLONE_PARENT_SETTID {
		// Seccomp profiles allow clone, and not always clone3.
		pid, _, e = syscall.RawSyscall6(unix.SYS_CLONE, uintptr(ca.flags), 0, uintptr(ca.parentTID), 0, 0, 0)
		return pid, e
	}
	pid, _, e = syscall.RawSyscall6(unix.SYS_CLONE3, args, plan.CloneArgsSize, 0, 0, 0, 0)
	return pid, e
}
