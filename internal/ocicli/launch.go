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

// launch describes a process to start by a plan.
type launch struct {
	plan     []byte
	park     int // the parked process continues after reading a byte from it
	errs     int // write end of its failure pipe
	errsFrom int // read end
	target   int // pidfd of an exec's target, -1 for none
	tty      bool
	// stopped, unless nil, is called when the process waits before pivot_root; it has to
	// release the process.
	stopped  func(*launched) error
	uid      uint32 // the host's ID of the process's user
	preserve int
}

// launched is a process that has parked.
type launched struct {
	fork.Child
	master int // of its terminal, -1 if it has none
	steps  []string
}

// name returns the name of a step, for errors.
func (l *launched) name(step int) string {
	if step >= 0 && step < len(l.steps) {
		return l.steps[step]
	}
	return fmt.Sprintf("operation %d", step)
}

// run forks and waits until the child has parked. If it fails, nothing of the child is
// left. It takes ownership of errs.
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
	// Now only the child has it open, so reading ends when the child ends.
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
			return nil, fmt.Errorf("the process sent no terminal: %w", err)
		}
	}
	return out, nil
}

// place copies a plan into memory outside the garbage collector's.
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

// parked waits until the child reports that it has parked.
func (l launch) parked(out *launched) error {
	err := fork.Failed(l.errsFrom, out.name)
	if fork.IsForked(err) {
		// The second child, which the first one has made, is our child too.
		first := launched{Child: fork.Child{Pid: out.Pid}}
		if err = out.Follow(err, nil); err == nil {
			_ = first.wait() // it ends right afterwards
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
	return withClass(err)
}

// withClass adds an error class to a failed operation and, for execve, the words that
// callers search for.
func withClass(err error) error {
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

// kill kills the child and reaps it.
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

// ownStreams gives the standard streams to the process's user, who may want to open /dev/stdout
// again. Errors are ignored.
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

// hostUID returns the host's ID of a process's user.
func hostUID(s *specs.Spec, p *specs.Process) uint32 {
	for _, m := range s.Linux.UIDMappings {
		if p.User.UID >= m.ContainerID && p.User.UID-m.ContainerID < m.Size {
			return m.HostID + p.User.UID - m.ContainerID
		}
	}
	return p.User.UID
}

// keepOpen clears close-on-exec of n descriptors from 3 on.
func keepOpen(n int) error {
	for fd := 3; fd < 3+n; fd++ {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("--preserve-fds: descriptor %d: %w: %w", fd, err, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// receive receives one descriptor from a socket.
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

// sendConsole sends a terminal's master to the listener at path, in the form that
// callers of runc expect: one message with a name and the descriptor.
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

// releaseParked releases a parked process, and returns once the process executes its program or
// has reported why it could not. errsFrom must have been opened before.
func releaseParked(park, errsFrom int, name func(int) string) error {
	if err := kernel.WriteAll(park, []byte{1}); err != nil {
		return fmt.Errorf("release the process: %w", err)
	}
	return withClass(fork.Failed(errsFrom, name))
}

// afterPark returns the names of a plan's steps after its parking.
func afterPark(steps []string) (first int, tail []string) {
	i := slices.Index(steps, "wait for the start")
	if i < 0 {
		return 0, nil
	}
	return i, steps[i:]
}
