package fork

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// Namespaces makes a user namespace with the given mappings and, owned by it, the
// namespaces that flags names (CLONE_NEW*). It returns an open file for each of kinds,
// names below /proc/PID/ns, in their order.
//
// A program with many threads cannot make a user namespace for itself, so a child
// does. It waits while its mapping is written, becomes root in it, makes the other
// namespaces and is then killed. It executes nothing.
func Namespaces(flags uint64, uids, gids plan.IDMap, kinds ...string) (fds []int, err error) {
	if err := errors.Join(uids.Check(), gids.Check()); err != nil {
		return nil, err
	}
	pid, line, err := cloneWaiting(flags)
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = unix.Close(line)
		_ = unix.Kill(pid, unix.SIGKILL)
		for {
			// It sends no SIGCHLD, so no other wait finds it.
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

// letUnshare tells the child that its mapping is written, and waits until it has made
// the other namespaces.
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

// writeMap writes the whole mapping in one write, as the kernel demands.
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

// cloneWaiting clones a child in a new user namespace, which does nothing until the other end
// of line is closed or it is killed. With flags it first makes those namespaces, when
// told to over line.
func cloneWaiting(flags uint64) (pid, line int, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, -1, os.NewSyscallError("socketpair", err)
	}
	defer func() { _ = unix.Close(ends[0]) }()
	defer func() {
		if err != nil {
			_ = unix.Close(ends[1])
		}
	}()
	if err := notDumpable(); err != nil {
		return 0, -1, err
	}
	r, err := newRegion()
	if err != nil {
		return 0, -1, err
	}
	defer r.free()
	h := (*plan.Header)(r.room(unsafe.Sizeof(plan.Header{})))
	at := uint64(uintptr(r.room(8)))
	call := func(nr uint32, args ...uint64) plan.Op {
		o := plan.Op{Kind: plan.Call, Out: -1, NR: nr}
		copy(o.A[:], args)
		return o
	}
	// Descriptor 0 is the socket, also for the report of a failure.
	ops := []plan.Op{call(unix.SYS_DUP3, uint64(ends[0]), 0, 0), call(unix.SYS_CLOSE_RANGE, 1, uint64(^uint32(0)), 0)}
	if flags != 0 {
		ops = append(ops,
			call(unix.SYS_READ, 0, at, 1), call(unix.SYS_SETRESGID), call(unix.SYS_SETRESUID),
			call(unix.SYS_UNSHARE, flags), call(unix.SYS_WRITE, 0, at, 1))
	}
	ops = append(ops, call(unix.SYS_READ, 0, at, 1))
	placed := (*[maxHoldOps]plan.Op)(r.room(unsafe.Sizeof([maxHoldOps]plan.Op{})))
	t := r.task()
	t.kind, t.header, t.ops = runsPlan, uintptr(unsafe.Pointer(h)), uintptr(unsafe.Pointer(placed))
	t.numOps = uintptr(copy(placed[:], ops))
	ca := &cloneArgs{flags: unix.CLONE_NEWUSER}
	n, errno := r.start(ca)
	runtime.KeepAlive(ca)
	if errno != 0 {
		return 0, -1, os.NewSyscallError("clone3", errno)
	}
	return int(n), ends[1], nil
}

// maxHoldOps is more than the number of operations of the child that holds a user
// namespace.
const maxHoldOps = 16

// users makes the user namespaces that a plan names.
func (b *creation) users(p plan.Placed) error {
	for _, u := range p.Users() {
		made, err := Namespaces(0, u.UIDs, u.GIDs, "user")
		if err != nil {
			return err
		}
		b.opened = append(b.opened, made[0])
		b.passed = append(b.passed, passed{uint8(u.Slot), made[0]})
	}
	return nil
}

// makeGoPipe makes the pipe that the second child of a plan reads.
func (b *creation) makeGoPipe(p plan.Placed) error {
	if !p.Forks() {
		return nil
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return os.NewSyscallError("pipe2", err)
	}
	b.goPipe, b.opened = pipe[1], append(b.opened, pipe[0])
	b.passed = append(b.passed, passed{plan.SlotGo, pipe[0]})
	return nil
}

func closeGo(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// Follow makes the second child, which a report has announced (see IsForked), the Child, and lets
// it continue. It is for callers that read Files.Errors; see Parked for moved. A plan makes at most
// one second child. Its pid comes from memory that the kernel has written and no other process can
// change.
func (c *Child) Follow(failed error, moved func(pid, pidfd int)) error {
	f, ok := failed.(*FailedError) //nolint:errorlint // Failed wraps nothing
	if !ok || c.followed {
		return ErrDied
	}
	c.followed = true
	pid := int(f.Errno)
	if c.words != nil {
		pid = int(atomic.LoadUint32((*uint32)(unsafe.Add(unsafe.Pointer(c.words), 4))))
		c.letWordsGo()
	}
	if pid <= 0 {
		return ErrDied
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return ErrDied
	}
	// The second child waits for us, unless it was killed and reaped and its pid
	// belongs to another process now.
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
	// Any byte lets it continue. A child that has to send its pid to others reads the pid here, as
	// often as it needs to.
	var text [2 * pidDigits]byte
	for i := range text {
		text[i] = ' '
	}
	for i := range 2 {
		copy(text[i*pidDigits:(i+1)*pidDigits], strconv.Itoa(pid))
	}
	_, err = unix.Write(c.goPipe, text[:])
	closeGo(c.goPipe)
	c.goPipe = -1
	if err != nil {
		return ErrDied
	}
	return nil
}

// pidDigits is the room for one pid in the message to a second child.
const pidDigits = 10

// sharedPage is the size of the memory that is shared.
const sharedPage = 4096

// sharedWords are the two words for one child.
func sharedWords() (*uint32, error) {
	mem, err := unix.Mmap(-1, 0, sharedPage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return (*uint32)(unsafe.Pointer(&mem[0])), nil
}

func freeWords(w *uint32) {
	if w != nil {
		_ = unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(w)), sharedPage))
	}
}

func (c *Child) letWordsGo() {
	if c.ownWords {
		freeWords(c.words)
	}
	c.words, c.ownWords = nil, false
}
