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
// which waits while its mapping is written and is then killed. It executes
// nothing.
func Namespaces(flags uint64, uids, gids plan.IDMap, kinds ...string) (fds []int, err error) {
	if err := errors.Join(uids.Check(), gids.Check()); err != nil {
		return nil, err
	}
	pid, life, err := hold(flags | unix.CLONE_NEWUSER)
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = unix.Close(life)
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
	for _, k := range kinds {
		fd, err := unix.Open(proc+"ns/"+k, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fds, &os.PathError{Op: "open", Path: proc + "ns/" + k, Err: err}
		}
		fds = append(fds, fd)
	}
	return fds, nil
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

// hold clones a child that does nothing until life, or we, end.
func hold(flags uint64) (pid, life int, err error) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return 0, -1, os.NewSyscallError("pipe2", err)
	}
	defer func() { _ = unix.Close(pipe[0]) }()
	h := &plan.Header{}
	h.Slot[plan.SlotError] = ^uint64(0)
	buf := new([8]byte)
	ops := []plan.Op{
		{Kind: plan.Call, Out: -1, NR: unix.SYS_DUP3, A: [6]uint64{uint64(pipe[0]), 0, 0}},
		{Kind: plan.Call, Out: -1, NR: unix.SYS_CLOSE_RANGE, A: [6]uint64{1, uint64(^uint32(0)), 0}},
		{Kind: plan.Call, Out: -1, NR: unix.SYS_READ, A: [6]uint64{0, uint64(uintptr(unsafe.Pointer(buf))), 1}},
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		_ = unix.Close(pipe[1])
		return 0, -1, os.NewSyscallError("prctl", err)
	}
	ca := &cloneArgs{flags: flags}
	syscall.ForkLock.Lock()
	runtimeBeforeFork()
	n, errno := cloneAndRun(ops, h, ca, nil)
	runtimeAfterFork()
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(buf)
	runtime.KeepAlive(ca)
	if errno != 0 {
		_ = unix.Close(pipe[1])
		return 0, -1, os.NewSyscallError("clone3", errno)
	}
	return int(n), pipe[1], nil
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
