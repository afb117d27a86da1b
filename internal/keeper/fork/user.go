package fork

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// Namespaces makes a user namespace with the given mappings and, owned by it,
// those of the other kinds that flags names (CLONE_NEW*). It returns a
// descriptor of each file of kinds, names below /proc/PID/ns, in their order.
//
// A thread of a program with many cannot make a user namespace, so a child does,
// which waits while its mapping is written, becomes root in it, makes the others
// (what is in them belongs to it) and is then killed. It executes nothing.
func Namespaces(flags uint64, uids, gids plan.IDMap, kinds ...string) (fds []int, err error) {
	if err := errors.Join(uids.Check(), gids.Check()); err != nil {
		return nil, err
	}
	pid, line, err := hold(flags)
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = unix.Close(line)
		_ = unix.Kill(pid, unix.SIGKILL)
		for {
			// It sends no SIGCHLD, so nobody else waits for it.
			if _, werr := unix.Wait4(pid, nil, unix.WCLONE, nil); werr != unix.EINTR {
				break
			}
		}
		if err != nil {
			kernel.CloseAll(fds)
			fds = nil
		}
	}()
	proc := "/proc/" + strconv.Itoa(pid) + "/"
	for _, m := range []struct {
		file string
		ids  plan.IDMap
	}{{"uid_map", uids}, {"gid_map", gids}} {
		if err := writeMap(proc+m.file, m.ids.String()); err != nil {
			return nil, err
		}
	}
	if flags != 0 {
		if err := letUnshare(line); err != nil {
			return nil, err
		}
	}
	for _, k := range kinds {
		fd, err := unix.Open(proc+"ns/"+k, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fds, &os.PathError{Op: "open", Path: proc + "ns/" + k, Err: err}
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// letUnshare tells the child that its mapping is there and waits until it has
// made the other namespaces.
func letUnshare(line int) error {
	if _, err := unix.Write(line, []byte{0}); err != nil {
		return os.NewSyscallError("write", err)
	}
	var answer [8]byte
	for {
		n, err := unix.Read(line, answer[:])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return os.NewSyscallError("read", err)
		case n == 1:
			return nil
		case n < 8:
			return ErrDied
		}
		return &FailedError{Name: "make namespaces", Step: int(answer[0]), Errno: syscall.Errno(*(*uint32)(unsafe.Pointer(&answer[4])))}
	}
}

// writeMap writes the whole mapping at once, as the kernel wants it.
func writeMap(path, text string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	_, err = unix.Write(fd, []byte(text))
	_ = unix.Close(fd)
	if err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// hold clones a child in a new user namespace that does nothing until line, or
// we, end; but with flags it makes those namespaces first, when line says so.
func hold(flags uint64) (pid, line int, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, -1, os.NewSyscallError("socketpair", err)
	}
	defer func() { _ = unix.Close(ends[0]) }()
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		_ = unix.Close(ends[1])
		return 0, -1, os.NewSyscallError("prctl", err)
	}
	h, buf := &plan.Header{}, new([8]byte)
	at := uint64(uintptr(unsafe.Pointer(buf)))
	call := func(nr uint32, args ...uint64) plan.Op {
		o := plan.Op{Kind: plan.Call, Out: -1, NR: nr}
		copy(o.A[:], args)
		return o
	}
	// Descriptor 0, which is also where a failure is told.
	ops := []plan.Op{call(unix.SYS_DUP3, uint64(ends[0]), 0, 0), call(unix.SYS_CLOSE_RANGE, 1, uint64(^uint32(0)), 0)}
	if flags != 0 {
		ops = append(ops,
			call(unix.SYS_READ, 0, at, 1), call(unix.SYS_SETRESGID), call(unix.SYS_SETRESUID),
			call(unix.SYS_UNSHARE, flags), call(unix.SYS_WRITE, 0, at, 1))
	}
	ops = append(ops, call(unix.SYS_READ, 0, at, 1))
	ca := &cloneArgs{flags: unix.CLONE_NEWUSER}
	syscall.ForkLock.Lock()
	runtimeBeforeFork()
	n, errno := cloneAndRun(ops, h, ca, nil)
	runtimeAfterFork()
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(buf)
	runtime.KeepAlive(ca)
	if errno != 0 {
		_ = unix.Close(ends[1])
		return 0, -1, os.NewSyscallError("clone3", errno)
	}
	return int(n), ends[1], nil
}

// makeUsers makes a plan's user namespaces.
func makeUsers(p plan.Placed, f Files) (fds []int, err error) {
	for _, u := range p.Users() {
		made, err := Namespaces(0, u.UIDs, u.GIDs, "user")
		if err != nil {
			return fds, err
		}
		high, err := f.above(made[0])
		_ = unix.Close(made[0])
		if err != nil {
			return fds, err
		}
		p.Header.Slot[u.Slot] = uint64(high)
		fds = append(fds, high)
	}
	return fds, nil
}

// makeGo makes what the second child of a plan waits for.
func makeGo(p plan.Placed, f Files) (goOn int, waits []int, err error) {
	if !p.Forks() {
		return -1, nil, nil
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return -1, nil, os.NewSyscallError("pipe2", err)
	}
	r, err := f.above(pipe[0])
	_ = unix.Close(pipe[0])
	if err != nil {
		_ = unix.Close(pipe[1])
		return -1, nil, err
	}
	p.Header.Slot[plan.SlotGo] = uint64(r)
	return pipe[1], []int{r}, nil
}

func closeGo(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// Follow makes the second child, whose pid was told with StepForked, the Child,
// and lets it go on. It is for who reads Files.Errors; see Parked for moved.
func (c *Child) Follow(pid int, moved func(pid, pidfd int)) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return ErrDied
	}
	// It waits for us, unless it was killed and reaped, and its pid is now
	// another's.
	if err := unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != nil {
		_ = unix.Close(fd)
		return ErrDied
	}
	old := c.PidFD
	c.Pid, c.PidFD = pid, fd
	if moved != nil {
		moved(pid, fd)
	} else {
		_ = unix.Close(old)
	}
	_, err = unix.Write(c.goOn, []byte{0})
	closeGo(c.goOn)
	c.goOn = -1
	if err != nil {
		return ErrDied
	}
	return nil
}
