package fork

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/plan"
	"github.com/longshore/longshore/internal/shortage"
)

// Launcher is a process that clones children for the process that made it, as that
// one's own children (CLONE_PARENT). It has one thread, a stack and the program, and
// nothing else: no heap, and no descriptors except its socket and the standard
// streams. Its children are therefore copies of almost nothing. A direct child would
// be a copy of this whole process, which would then have to copy each page it writes
// to.
//
// It ends when its socket is closed. Its methods may be called concurrently.
type Launcher struct {
	mu     sync.Mutex // guards socket, pidfd; serializes launches
	socket int
	pid    int
	pidfd  int
}

// ErrNoLauncher means that the launcher has ended.
var ErrNoLauncher = errors.New("the launcher has ended")

// ErrShort means that the launcher cannot be reached now, because descriptors or memory are used up. It
// has not ended.
var ErrShort = errors.New("the launcher could not be asked: descriptors or memory are used up")

// maxPassed is how many descriptors can be sent to a launcher with one plan.
const maxPassed = 32 + plan.MaxGiven

// cgroupSlot marks the directory of the child's first cgroup, which is not one of the plan's slots.
const cgroupSlot = 0xff

// request is a request to the launcher: run the plan in the first descriptor, with the
// others in the given slots.
type request struct {
	size     uint64 // of the plan
	flags    uint64 // of clone3
	progress uint64 // address of the two words that are shared
	count    uint32 // of slots
	slots    [maxPassed]uint8
}

// reply is the launcher's answer.
type reply struct {
	pid   int32
	errno uint32
}

// controlSize is the room for the descriptors that come with a request.
const controlSize = unix.SizeofCmsghdr + 4*(maxPassed+1) + 4

// buffers is the launcher's working memory, which lies beside its task.
type buffers struct {
	in      request
	out     reply
	iov     [2]uint64
	message [7]uint64
	control [controlSize]byte
	clone   cloneArgs
}

// NewLauncher starts a launcher. shared is the memory that its children share with
// this process.
func NewLauncher(shared []byte) (*Launcher, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	defer func() { _ = unix.Close(ends[0]) }()
	// Do not wait for ever for one that does not answer.
	_ = unix.SetsockoptTimeval(ends[1], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerSeconds})
	r, err := newRegion()
	if err != nil {
		_ = unix.Close(ends[1])
		return nil, err
	}
	defer r.free()
	if err := notDumpable(); err != nil {
		_ = unix.Close(ends[1])
		return nil, err
	}
	r.room(unsafe.Sizeof(buffers{}))
	t := r.task()
	t.kind, t.socket = launches, uintptr(ends[0])
	keep := span{}
	if len(shared) > 0 {
		keep = pages(unsafe.Pointer(&shared[0]), uintptr(len(shared)))
	}
	pidfd := (*int32)(r.room(4)) // not on this stack, which may move before the kernel writes to it
	ca := &cloneArgs{flags: unix.CLONE_PIDFD, pidFD: uint64(uintptr(unsafe.Pointer(pidfd))), exitSignal: uint64(unix.SIGCHLD)}
	pid, errno := r.start(ca, keep)
	if errno != 0 {
		_ = unix.Close(ends[1])
		return nil, os.NewSyscallError("clone3", errno)
	}
	return &Launcher{socket: ends[1], pid: int(pid), pidfd: int(*pidfd)}, nil
}

const answerSeconds = 10

// Pid returns the pid of the launcher, which is a child of this process.
func (l *Launcher) Pid() int { return l.pid }

// Close ends the launcher. The caller reaps it.
func (l *Launcher) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end()
}

// end closes the socket and kills the launcher. Preconditions: mu is held.
func (l *Launcher) end() {
	if l.socket < 0 {
		return
	}
	_ = unix.Close(l.socket)
	_ = unix.PidfdSendSignal(l.pidfd, unix.SIGKILL, nil, 0)
	_ = unix.Close(l.pidfd)
	l.socket, l.pidfd = -1, -1
}

// Ready reports whether the launcher is running.
func (l *Launcher) Ready() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.socket >= 0
}

// Start clones a child for p as the function Start does, by the launcher. blob is the sealed file
// that p came in, which the child maps for itself. The error ErrNoLauncher means that the launcher
// has ended and no child was made; ErrShort, that it made none and still runs.
func (l *Launcher) Start(p plan.Placed, blob int, f Files) (Child, error) {
	b, err := prepare(p, f)
	if err != nil {
		return Child{}, err
	}
	defer b.close()
	if len(b.passed) > maxPassed {
		return Child{}, ErrNoLauncher
	}
	req := request{size: uint64(p.Header.Size), flags: p.Header.CloneFlags | unix.CLONE_PARENT, progress: uint64(uintptr(unsafe.Pointer(f.Progress))), count: uint32(len(b.passed))}
	fds := []int{blob}
	for i, s := range b.passed {
		req.slots[i] = s.slot
		fds = append(fds, s.fd)
	}
	pid, err := l.ask(&req, fds)
	if err != nil {
		b.fail()
		return Child{}, err
	}
	// It cannot be reaped in between: that is up to this process.
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		b.fail()
		_ = unix.Kill(pid, unix.SIGKILL)
		return Child{}, os.NewSyscallError("pidfd_open", err)
	}
	return b.child(pid, pidfd, f.Progress), nil
}

// ask sends a request and waits for its answer.
func (l *Launcher) ask(req *request, fds []int) (pid int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.socket < 0 {
		return 0, ErrNoLauncher
	}
	text := unsafe.Slice((*byte)(unsafe.Pointer(req)), unsafe.Sizeof(*req))
	for {
		err = unix.Sendmsg(l.socket, text, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
		if err != unix.EINTR {
			break
		}
	}
	if shortage.Is(err) {
		return 0, ErrShort
	}
	if err != nil {
		l.end()
		return 0, ErrNoLauncher
	}
	var ans reply
	buf := unsafe.Slice((*byte)(unsafe.Pointer(&ans)), unsafe.Sizeof(ans))
	for {
		n, err := unix.Read(l.socket, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n != len(buf) {
			l.end()
			return 0, ErrNoLauncher
		}
		break
	}
	if ans.errno != 0 {
		return 0, os.NewSyscallError("clone3", syscall.Errno(ans.errno))
	}
	return int(ans.pid), nil
}

// launcherSocket is the descriptor of a launcher's socket.
const launcherSocket = 3

// serve answers requests until the socket is closed. It returns true in a child that
// is to run its plan.
//
//go:noinline
//go:norace
//go:nosplit
//go:nocheckptr
func serve(t *task) bool {
	if t.socket != launcherSocket {
		_, _, _ = syscall.RawSyscall(unix.SYS_DUP3, t.socket, launcherSocket, unix.O_CLOEXEC)
	}
	_, _, _ = syscall.RawSyscall(unix.SYS_CLOSE_RANGE, launcherSocket+1, 1<<31-1, 0)
	name := [16]byte{'l', 'o', 'n', 'g', 's', 'h', 'o', 'r', 'e', '-', 'f', 'o', 'r', 'k'}
	_, _, _ = syscall.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name)), 0)
	d := (*buffers)(unsafe.Add(unsafe.Pointer(t), (unsafe.Sizeof(task{})+7)&^7))
	for {
		d.iov[0], d.iov[1] = uint64(uintptr(unsafe.Pointer(&d.in))), uint64(unsafe.Sizeof(d.in))
		d.message[0], d.message[1] = 0, 0
		d.message[2], d.message[3] = uint64(uintptr(unsafe.Pointer(&d.iov))), 1
		d.message[4], d.message[5] = uint64(uintptr(unsafe.Pointer(&d.control))), controlSize
		d.message[6] = 0
		n, _, e := syscall.RawSyscall(unix.SYS_RECVMSG, launcherSocket, uintptr(unsafe.Pointer(&d.message)), unix.MSG_CMSG_CLOEXEC)
		if e == unix.EINTR {
			continue
		}
		if e != 0 || n != unsafe.Sizeof(d.in) {
			return false
		}
		d.out.pid, d.out.errno = 0, 0
		t.ops = 0
		pid, e := launchOne(t, d)
		if e == 0 && pid == 0 {
			return t.ops != 0
		}
		d.out.pid, d.out.errno = int32(pid), uint32(e)
		_, _, _ = syscall.RawSyscall(unix.SYS_CLOSE_RANGE, launcherSocket+1, 1<<31-1, 0)
		_, _, _ = syscall.RawSyscall6(unix.SYS_SENDTO, launcherSocket, uintptr(unsafe.Pointer(&d.out)), unsafe.Sizeof(d.out), unix.MSG_NOSIGNAL, 0, 0)
	}
}

// launchOne clones a child for a request. In the child it returns 0 when the plan is
// placed; if that failed, it has reported the failure and the plan is missing.
//
//go:noinline
//go:norace
//go:nosplit
//go:nocheckptr
func launchOne(t *task, d *buffers) (pid uintptr, e syscall.Errno) {
	count := uintptr(d.in.count)
	got := *(*uint64)(unsafe.Pointer(&d.control))
	if count > maxPassed || d.message[5] < unix.SizeofCmsghdr || got != unix.SizeofCmsghdr+4*(uint64(count)+1) {
		return 0, unix.EBADMSG
	}
	fds := uintptr(unsafe.Pointer(&d.control)) + unix.SizeofCmsghdr
	c := &d.clone
	c.flags, c.cgroup = d.in.flags, 0
	c.exitSignal = 0 // with CLONE_PARENT the kernel uses the launcher's
	for i := uintptr(0); i < count; i++ {
		if *(*uint8)(unsafe.Add(unsafe.Pointer(&d.in.slots), i)) == cgroupSlot {
			c.flags |= unix.CLONE_INTO_CGROUP
			c.cgroup = uint64(*(*uint32)(at(fds + 4*(i+1))))
		}
	}
	pid, _, e = syscall.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(c)), unsafe.Sizeof(*c), 0)
	if e != 0 || pid != 0 {
		return pid, e
	}
	size := uintptr(d.in.size)
	base, _, e := syscall.RawSyscall6(unix.SYS_MMAP, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_POPULATE, uintptr(*(*uint32)(at(fds))), 0)
	if e != 0 {
		tellEarly(d, fds, e)
		return 0, 0
	}
	h := (*plan.Header)(at(base))
	place(base, h)
	for i := range plan.Slot(plan.NumSlots) {
		h.Slot[i&(plan.NumSlots-1)] = 1<<64 - 1
	}
	for i := uintptr(0); i < count; i++ {
		slot := *(*uint8)(unsafe.Add(unsafe.Pointer(&d.in.slots), i))
		high, _, e := syscall.RawSyscall(unix.SYS_FCNTL, uintptr(*(*uint32)(at(fds + 4*(i+1)))), unix.F_DUPFD_CLOEXEC, firstFree+uintptr(h.Given))
		if e != 0 {
			tellEarly(d, fds, e)
			return 0, 0
		}
		if slot < plan.NumSlots {
			h.Slot[slot&(plan.NumSlots-1)] = uint64(high)
		}
	}
	t.ops, t.numOps, t.header, t.progress = base+uintptr(h.Ops), uintptr(h.NumOps), base, uintptr(d.in.progress)
	return 0, 0
}

// tellEarly is tell for a child that has no plan yet.
//
//go:norace
//go:nosplit
//go:nocheckptr
func tellEarly(d *buffers, fds uintptr, e syscall.Errno) {
	m := [2]uint32{0, uint32(e)}
	for i := uintptr(0); i < uintptr(d.in.count); i++ {
		if *(*uint8)(unsafe.Add(unsafe.Pointer(&d.in.slots), i)) == plan.SlotError {
			_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, uintptr(*(*uint32)(at(fds + 4*(i+1)))), uintptr(unsafe.Pointer(&m)), 8)
		}
	}
}

// place is plan.PlaceChecked for the memory at base.
//
//go:norace
//go:nosplit
//go:nocheckptr
func place(base uintptr, h *plan.Header) {
	for i := range uintptr(h.NumRelocs) {
		word := *(*uint32)(at(base + uintptr(h.Relocs) + 4*i))
		*(*uint64)(at(base + uintptr(word))) += uint64(base)
	}
	for i := range uintptr(h.NumOps) {
		o := (*plan.Op)(at(base + uintptr(h.Ops) + i*unsafe.Sizeof(plan.Op{})))
		for j := range 6 {
			if o.Ptrs&(1<<j) != 0 {
				o.A[j] += uint64(base)
			}
		}
	}
}
