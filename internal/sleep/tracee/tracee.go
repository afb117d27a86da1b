// Package tracee stops processes by ptrace and makes system calls in their threads. The calls change neither
// registers nor signals nor instructions of the program. Start at Seize.
//
// A Group must be used on the thread of the operating system that called Seize, because the kernel permits no
// other thread to trace.
package tracee

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// options are set for every thread. A thread's seccomp filter is suspended while it is traced. It makes only the
// calls of this package meanwhile.
const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_SUSPEND_SECCOMP

// Group has all threads of some processes.
type Group struct {
	Processes []*Process
	threads   map[int]*thread
	stops     chan os.Signal
}

// thread is a traced thread.
type thread struct {
	id      int
	process *Process
	stopped bool
	loose   bool // it continues until it executes a program
}

// Process is a process with traced threads.
type Process struct {
	Pid     int
	g       *Group
	threads []*thread
	// Workers says that the process has threads of the kernel's io_uring, which cannot be traced.
	Workers bool
}

// Seize traces all threads of processes, and requests that they stop. Threads of frozen processes stop
// when they are thawed, before they run. Processes that have ended are left out. On an error nothing is
// traced any more.
func Seize(pids []int) (*Group, error) {
	g := &Group{threads: map[int]*thread{}, stops: make(chan os.Signal, 1)}
	signal.Notify(g.stops, unix.SIGCHLD)
	for _, pid := range pids {
		if err := g.seize(pid); err != nil {
			g.Release()
			return nil, fmt.Errorf("trace process %d: %w", pid, err)
		}
	}
	return g, nil
}

func (g *Group) seize(pid int) error {
	p := &Process{Pid: pid, g: g}
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		err = ptrace(unix.PTRACE_SEIZE, tid, 0, options)
		if err == nil {
			t := &thread{id: tid, process: p}
			g.threads[tid] = t
			p.threads = append(p.threads, t)
			err = ptrace(unix.PTRACE_INTERRUPT, tid, 0, 0)
		}
		switch {
		case err == nil, errors.Is(err, unix.ESRCH):
		case errors.Is(err, unix.EPERM):
			s := status(tid)
			if s.tracer != 0 {
				return fmt.Errorf("process %d traces it: %w", s.tracer, err)
			}
			if s.state != "Z" && s.state != "X" && s.state != "" {
				p.Workers = true
			}
		default:
			return err
		}
	}
	if len(p.threads) > 0 {
		g.Processes = append(g.Processes, p)
	}
	return nil
}

// threadStatus is the state of a thread, "" if it is gone, the parent of its process, and its tracer.
type threadStatus struct {
	state          string
	parent, tracer int
}

// status reads the status of a thread.
func status(tid int) (s threadStatus) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch key {
		case "State":
			s.state, _, _ = strings.Cut(value, " ")
		case "PPid":
			s.parent, _ = strconv.Atoi(value)
		case "TracerPid":
			s.tracer, _ = strconv.Atoi(value)
		}
	}
	return s
}

// Await waits until all threads have stopped. It fails if a thread has not stopped when ctx ends, because it waits
// in the kernel for a disk, or for a child of vfork that does not execute its program.
func (g *Group) Await(ctx context.Context) error {
	tick := time.NewTicker(vforkTime)
	defer tick.Stop()
	for {
		for {
			var ws unix.WaitStatus
			tid, err := unix.Wait4(-1, &ws, unix.WNOHANG|unix.WALL, nil)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil && !errors.Is(err, unix.ECHILD) {
				return fmt.Errorf("wait for threads to stop: %w", err)
			}
			if tid <= 0 {
				break
			}
			t := g.threads[tid]
			switch {
			case t == nil:
			case ws.Exited() || ws.Signaled():
				g.forget(t)
			case ws.Stopped() && ws.TrapCause() == unix.PTRACE_EVENT_STOP:
				t.stopped = true
				if err := t.hold(); err != nil {
					return err
				}
			case ws.Stopped() && ws.TrapCause() == unix.PTRACE_EVENT_EXEC:
				if err := t.goOn(options, unix.PTRACE_INTERRUPT, unix.PTRACE_CONT); err != nil {
					return err
				}
			default: // A signal arrived just before. It is delivered, and the thread stops behind it.
				if err := ptrace(unix.PTRACE_CONT, tid, 0, uintptr(ws.StopSignal())); err != nil && !errors.Is(err, unix.ESRCH) {
					return fmt.Errorf("deliver a signal: %w", err)
				}
			}
		}
		i := slices.IndexFunc(g.all(), func(t *thread) bool { return !t.stopped })
		if i < 0 {
			return nil
		}
		select {
		case <-g.stops:
		case <-tick.C:
			if err := g.continueVforked(); err != nil {
				return err
			}
		case <-ctx.Done():
			for _, t := range g.all() {
				if t.loose { // it must stop to be released
					_ = ptrace(unix.PTRACE_INTERRUPT, t.id, 0, 0)
				}
			}
			t := g.all()[i]
			return fmt.Errorf("thread %d of process %d did not stop in time: it waits in the kernel and cannot be interrupted", t.id, t.process.Pid)
		}
	}
}

func (g *Group) all() []*thread {
	var all []*thread
	for _, p := range g.Processes {
		all = append(all, p.threads...)
	}
	return all
}

func (g *Group) forget(t *thread) {
	delete(g.threads, t.id)
	t.process.threads = slices.DeleteFunc(t.process.threads, func(o *thread) bool { return o == t })
	if len(t.process.threads) == 0 {
		g.Processes = slices.DeleteFunc(g.Processes, func(p *Process) bool { return p == t.process })
	}
}

// Release lets all threads continue where they were stopped. Those that were killed meanwhile it waits for, because
// the parent of a process learns of its end only after the tracer has waited for all threads. Processes that are
// children of the caller may therefore be gone when the caller waits for them.
func (g *Group) Release() {
	left := slices.Collect(maps.Values(g.threads))
	ctx, cancel := context.WithTimeout(context.Background(), releaseTime)
	defer cancel()
	for {
		// The first thread of a process ends after the others, and the last one of a pid namespace's first process
		// only after the tracer has waited for them. So no thread is waited for on its own.
		left = slices.DeleteFunc(left, func(t *thread) bool {
			if t.stopped && ptrace(unix.PTRACE_DETACH, t.id, 0, 0) == nil {
				return true
			}
			var ws unix.WaitStatus
			tid, err := unix.Wait4(t.id, &ws, unix.WNOHANG|unix.WALL, nil)
			t.stopped = tid == t.id && ws.Stopped() // A thread can only be detached while it is stopped.
			return errors.Is(err, unix.ECHILD) || tid == t.id && !ws.Stopped() || t.stopped && ptrace(unix.PTRACE_DETACH, t.id, 0, 0) == nil
		})
		if len(left) == 0 || ctx.Err() != nil {
			break
		}
		select {
		case <-g.stops:
		case <-ctx.Done():
		}
	}
	signal.Stop(g.stops)
	g.threads, g.Processes = nil, nil
}

// releaseTime bounds how long Release waits for threads that do not stop and do not end.
const releaseTime = time.Second

// Memory returns the content of a process's memory at addr.
func (p *Process) Memory(addr uint64, buf []byte) error {
	local := []unix.Iovec{{Base: unsafe.SliceData(buf), Len: uint64(len(buf))}}
	n, err := unix.ProcessVMReadv(p.Pid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(buf)}}, 0)
	if err == nil && n != len(buf) {
		err = unix.EFAULT
	}
	return err
}

// SetMemory changes the content of a process's memory at addr.
func (p *Process) SetMemory(addr uint64, buf []byte) error {
	local := []unix.Iovec{{Base: unsafe.SliceData(buf), Len: uint64(len(buf))}}
	n, err := unix.ProcessVMWritev(p.Pid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(buf)}}, 0)
	if err == nil && n != len(buf) {
		err = unix.EFAULT
	}
	return err
}

// Calls runs do with a function that makes system calls in a thread of the process. If the caller dies meanwhile,
// the kernel kills the process, because the registers of the thread have wrong values.
func (p *Process) Calls(do func(call Call) error) error {
	t := p.caller()
	if t == nil {
		return unix.ESRCH
	}
	if err := ptrace(unix.PTRACE_SETOPTIONS, t.id, 0, options|unix.PTRACE_O_EXITKILL); err != nil {
		return fmt.Errorf("prepare thread %d: %w", t.id, err)
	}
	s, err := t.save()
	if err != nil {
		return fmt.Errorf("read the state of thread %d: %w", t.id, err)
	}
	err = do(func(nr uintptr, args ...uint64) (uint64, error) { return t.call(s, nr, args) })
	if err2 := t.restore(s); err2 != nil {
		return errors.Join(err, fmt.Errorf("restore thread %d: %w", t.id, err2))
	}
	return errors.Join(err, ptrace(unix.PTRACE_SETOPTIONS, t.id, 0, options))
}

// Call makes a system call in another process and returns its result.
type Call func(nr uintptr, args ...uint64) (uint64, error)

// next lets the thread continue with a request and waits until it stops again.
func (t *thread) next(request int) (unix.WaitStatus, error) {
	if err := ptrace(request, t.id, 0, 0); err != nil {
		return 0, err
	}
	for {
		var ws unix.WaitStatus
		tid, err := unix.Wait4(-1, &ws, unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case !ws.Stopped(): // A killed process. If it is the first one of a pid namespace, its end waits for the end of all its threads.
			delete(t.process.g.threads, tid)
			if tid == t.id {
				return 0, unix.ESRCH
			}
		case tid == t.id:
			return ws, nil
		}
	}
}

// until continues until right reports the wanted stop. It ignores other stops, of signals that cannot be blocked.
func (t *thread) until(request int, right func(ws unix.WaitStatus) bool) error {
	for {
		ws, err := t.next(request)
		if err != nil || right(ws) {
			return err
		}
	}
}

func inCall(ws unix.WaitStatus) bool { return ws.StopSignal() == syscall.SIGTRAP|0x80 }

func inTrap(ws unix.WaitStatus) bool { return ws.TrapCause() == unix.PTRACE_EVENT_STOP }

func ptrace(request, tid int, addr, data uintptr) error {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), addr, data, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
