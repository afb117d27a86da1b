package ocicli

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/fork"
	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// launch is one process to start by a plan.
type launch struct {
	plan     []byte
	park     int // the process reads a byte from it to go on
	errs     int // write end of its failure pipe
	errsFrom int // read end
	target   int // pidfd of an exec's target, -1 for none
	tty      bool
	// stopped, unless nil, is called when the process waits before pivot_root,
	// and lets it go on.
	stopped  func(*launched) error
	uid      uint32 // the host's, of the process's user
	preserve int
}

// launched is a process that has parked.
type launched struct {
	fork.Child
	master int // of its terminal, -1 without
	steps  []string
}

// name is that of a step, for an error.
func (l *launched) name(step int) string {
	if step >= 0 && step < len(l.steps) {
		return l.steps[step]
	}
	return fmt.Sprintf("operation %d", step)
}

// run forks and waits until the child has parked. On an error nothing of it is
// left. It takes errs over.
func (l launch) run() (_ *launched, err error) {
	defer func() {
		if l.errs >= 0 {
			_ = unix.Close(l.errs)
		}
	}()
	placed, mem, err := place(l.plan)
	if err != nil {
		return nil, err
	}
	// The child has a copy.
	defer func() { _ = unix.Munmap(mem) }()
	out := &launched{master: -1, steps: make([]string, len(placed.Ops))}
	for i := range out.steps {
		out.steps[i] = strings.Clone(placed.Name(i))
	}
	files := fork.Files{Stdin: 0, Stdout: 1, Stderr: 2, Park: l.park, Console: -1, Target: l.target, Errors: l.errs, Preserve: l.preserve}
	var ends [2]int
	if l.tty {
		if ends, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return nil, os.NewSyscallError("socketpair", err)
		}
		defer func() { _ = unix.Close(ends[0]) }()
		files.Console = ends[1]
	} else {
		l.ownStreams()
	}
	if err := keepOpen(l.preserve); err != nil {
		return nil, err
	}
	out.Child, err = fork.Start(placed, files)
	// Now the child alone has it: its end ends the reading.
	_ = unix.Close(l.errs)
	l.errs = -1
	if l.tty {
		_ = unix.Close(ends[1])
	}
	if err != nil {
		return nil, err
	}
	err = l.parked(out)
	if err == nil && l.stopped != nil {
		if err = l.stopped(out); err == nil {
			if err = kernel.WriteAll(l.park, []byte{1}); err == nil {
				err = l.parked(out)
			}
		}
	}
	if err != nil {
		out.kill()
		return nil, err
	}
	if l.tty {
		if out.master, err = receive(ends[0]); err != nil {
			out.kill()
			return nil, fmt.Errorf("no terminal came from the process: %w", err)
		}
	}
	return out, nil
}

// place puts a plan where the garbage collector does not come.
func place(blob []byte) (plan.Placed, []byte, error) {
	mem, err := unix.Mmap(-1, 0, len(blob), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return plan.Placed{}, nil, os.NewSyscallError("mmap", err)
	}
	copy(mem, blob)
	p, err := plan.Place(mem)
	if err != nil {
		_ = unix.Munmap(mem)
		return plan.Placed{}, nil, err
	}
	return p, mem, nil
}

// parked waits for the child to say that it is.
func (l launch) parked(out *launched) error {
	err := fork.Failed(l.errsFrom, out.name)
	if fork.IsForked(err) {
		// The process made by the one that we made is our child too.
		first := launched{Child: fork.Child{Pid: out.Pid}}
		if err = out.Follow(err, nil); err == nil {
			_ = first.wait() // it ends right after
			err = fork.Failed(l.errsFrom, out.name)
		}
	}
	var failed *fork.FailedError
	switch {
	case err == nil:
		return fork.ErrDied
	case errors.As(err, &failed) && failed.Step == plan.StepParked:
		return nil
	}
	return classed(err)
}

// classed gives a failed operation a class and, for execve, the words that
// callers look for.
func classed(err error) error {
	var failed *fork.FailedError
	if !errors.As(err, &failed) {
		return err
	}
	switch failed.Errno {
	case unix.ENOENT, unix.ENOTDIR:
		return fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	case unix.EACCES, unix.EPERM:
		return fmt.Errorf("%w: %w", err, errdefs.ErrPermissionDenied)
	}
	return err
}

// kill ends a child that nobody is to have, and takes it away.
func (l *launched) kill() {
	if l.PidFD < 0 {
		return
	}
	_ = kernel.PidfdSignal(l.PidFD, int(unix.SIGKILL))
	_ = l.wait()
	l.close()
}

func (l *launched) close() {
	_ = unix.Close(l.PidFD)
	if l.master >= 0 {
		_ = unix.Close(l.master)
		l.master = -1
	}
}

// wait reaps the child.
func (l *launched) wait() unix.WaitStatus {
	var status unix.WaitStatus
	for {
		if _, err := unix.Wait4(l.Pid, &status, 0, nil); !errors.Is(err, unix.EINTR) {
			return status
		}
	}
}

// ownStreams gives our standard streams to the process's user, who may want to
// open /dev/stdout again. What cannot be given is left.
func (l launch) ownStreams() {
	var null unix.Stat_t
	_ = unix.Stat("/dev/null", &null)
	for fd := range 3 {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || st.Rdev == null.Rdev && st.Mode&unix.S_IFMT == unix.S_IFCHR || st.Uid == l.uid {
			continue
		}
		_ = unix.Fchown(fd, int(l.uid), -1)
	}
}

// hostUID is the host's ID of a process's user.
func hostUID(s *specs.Spec, p *specs.Process) uint32 {
	for _, m := range s.Linux.UIDMappings {
		if p.User.UID >= m.ContainerID && p.User.UID-m.ContainerID < m.Size {
			return m.HostID + p.User.UID - m.ContainerID
		}
	}
	return p.User.UID
}

// keepOpen has n descriptors from 3 on outlive execve.
func keepOpen(n int) error {
	for fd := 3; fd < 3+n; fd++ {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("--preserve-fds: descriptor %d: %w: %w", fd, err, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// receive takes one descriptor from a socket.
func receive(socket int) (int, error) {
	var b [16]byte
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, b[:], oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("recvmsg", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return -1, err
	}
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil && len(fds) == 1 {
			return fds[0], nil
		}
	}
	return -1, unix.EBADMSG
}

// sendConsole hands a terminal's master to whoever listens at path, as callers
// of runc expect it: one message with a name and the descriptor.
func sendConsole(path string, master int) error {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("console socket: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if _, _, err := conn.WriteMsgUnix([]byte("/dev/pts/ptmx"), unix.UnixRights(master), nil); err != nil {
		return fmt.Errorf("console socket: %w", err)
	}
	return nil
}

// letGo has a parked process run its program, and returns once it does or tells
// why it could not. errsFrom must have been opened before.
func letGo(park, errsFrom int, name func(int) string) error {
	if err := kernel.WriteAll(park, []byte{1}); err != nil {
		return fmt.Errorf("let the process go: %w", err)
	}
	return classed(fork.Failed(errsFrom, name))
}

// afterPark are the names of a plan's steps from its parking on.
func afterPark(steps []string) (first int, tail []string) {
	i := slices.Index(steps, "wait for the start")
	if i < 0 {
		return 0, nil
	}
	return i, steps[i:]
}
