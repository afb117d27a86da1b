// Package kernel has the few system calls that keeper and nest need, each as a plain
// function, so that they need no larger library.
//
// It must not know the purpose of the descriptors. Start reading at Send.
package kernel

import (
	"errors"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/shortage"
)

// Send sends one message with descriptors, and waits for room if there is none.
func Send(fd int, b []byte, fds []int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		err := unix.Sendmsg(fd, b, oob, nil, unix.MSG_NOSIGNAL)
		switch err {
		case nil:
			return nil
		case unix.EINTR:
		case unix.EAGAIN:
			if err := Wait(fd, unix.POLLOUT, -1); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// TrySend sends one message, or fails with EAGAIN when there is no room.
func TrySend(fd int, b []byte, fds []int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		err := unix.Sendmsg(fd, b, oob, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if err != unix.EINTR {
			return err
		}
	}
}

// Wait polls one descriptor; timeout is milliseconds, -1 for ever.
func Wait(fd int, events int16, timeout int) error {
	p := []unix.PollFd{{Fd: int32(fd), Events: events}}
	for {
		if _, err := unix.Poll(p, timeout); err != unix.EINTR {
			return err
		}
	}
}

// Revents returns the events that poll reports for a descriptor now.
func Revents(fd int, events int16) int16 {
	p := []unix.PollFd{{Fd: int32(fd), Events: events}}
	for {
		n, err := unix.Poll(p, 0)
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			return 0
		}
		return p[0].Revents
	}
}

// Receiver receives frames into buffers that it reuses.
type Receiver struct {
	b   [wire.MaxFrame]byte
	oob [4*wire.MaxFDs + 64]byte
}

// Recv receives one message with its descriptors, which are close-on-exec. The message
// is valid until the next call. An empty message without an error means that the peer
// has gone. The error EMFILE means that this process had no room for the descriptors: the message
// is returned without them, and they are lost. A message that was cut short fails with EMSGSIZE.
func (r *Receiver) Recv(fd, flags int) (b []byte, fds []int, err error) {
	var n, on, rf int
	for {
		n, on, rf, _, err = unix.RecvmsgBuffers(fd, [][]byte{r.b[:]}, r.oob[:], flags|unix.MSG_CMSG_CLOEXEC)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if on > 0 {
		fds = rights(r.oob[:on])
	}
	switch {
	case rf&unix.MSG_TRUNC != 0:
		CloseAll(fds)
		return nil, nil, unix.EMSGSIZE
	case rf&unix.MSG_CTRUNC != 0:
		CloseAll(fds)
		return r.b[:n], nil, unix.EMFILE
	}
	return r.b[:n], fds, nil
}

func rights(oob []byte) []int {
	cs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var fds []int
	for i := range cs {
		if cs[i].Header.Level != unix.SOL_SOCKET || cs[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		if f, err := unix.ParseUnixRights(&cs[i]); err == nil {
			fds = append(fds, f...)
		}
	}
	return fds
}

// CloseAll closes descriptors.
func CloseAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// Sender builds frames in a buffer that it reuses.
type Sender struct{ b []byte }

// Send sends a frame with Send or TrySend. A body that is too long for the frame
// travels in a memory file.
func (s *Sender) Send(send func(int, []byte, []int) error, fd int, h wire.Header, m wire.Message, fds []int) error {
	b := h.Append(s.b[:0])
	if m != nil {
		b = wire.Marshal(b, m)
	}
	if cap(b) <= wire.MaxFrame {
		s.b = b
	}
	if len(b) <= wire.MaxFrame {
		return send(fd, b, fds)
	}
	mem, err := Memfd(b[wire.HeaderLen:])
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(mem) }()
	h.Flags |= wire.FlagMemfd
	return send(fd, h.Append(nil), append([]int{mem}, fds...))
}

// SendAgain sends a frame with Send, and retries while descriptors or memory are used up and the
// receiver runs.
func (s *Sender) SendAgain(fd int, h wire.Header, m wire.Message, fds []int) error {
	for {
		err := s.Send(Send, fd, h, m, fds)
		if !shortage.Is(err) {
			return err
		}
		if err := Wait(fd, 0, int(shortage.Pause.Milliseconds())); err != nil { // until the receiver ends, at most
			return err
		}
	}
}

// Body returns a frame's body, from its memory file if it has one, and the remaining
// descriptors.
func Body(h wire.Header, inline []byte, fds []int) (body []byte, rest []int, err error) {
	if h.Flags&wire.FlagMemfd == 0 {
		return inline, fds, nil
	}
	if len(fds) == 0 {
		return nil, nil, unix.EBADMSG
	}
	body, err = ReadFD(fds[0], wire.MaxBody)
	_ = unix.Close(fds[0])
	return body, fds[1:], err
}

// Memfd makes a sealed memory file that holds b.
func Memfd(b []byte) (int, error) {
	fd, err := unix.MemfdCreate("longshore", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, err
	}
	if err := WriteAll(fd, b); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	seals := unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// ReadFD reads a file of at most limit bytes from its beginning.
func ReadFD(fd, limit int) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > int64(limit) {
		return nil, unix.EFBIG
	}
	b := make([]byte, st.Size)
	for off := 0; off < len(b); {
		n, err := unix.Pread(fd, b[off:], int64(off))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, unix.EIO
		}
		off += n
	}
	return b, nil
}

// ReadFile reads at most limit bytes of a file of unknown size, like those of cgroups.
func ReadFile(path string, limit int) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	b := make([]byte, 0, 512)
	for len(b) < limit {
		if len(b) == cap(b) {
			b = append(b, make([]byte, cap(b))...)[:len(b)]
		}
		n, err := unix.Read(fd, b[len(b):min(cap(b), limit)])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return b, err
		}
		if n == 0 {
			break
		}
		b = b[:len(b)+n]
	}
	return b, nil
}

// WriteAll writes the whole of b.
func WriteAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// WriteFile writes a file and renames it into place, so that readers see the old or
// the new content. It does not sync: the content is worthless after a reboot.
func WriteFile(path string, b []byte, mode uint32) error {
	tmp := path + ".new"
	fd, err := unix.Open(tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, mode)
	if err != nil {
		return err
	}
	err = WriteAll(fd, b)
	_ = unix.Close(fd)
	if err == nil {
		err = unix.Rename(tmp, path)
	}
	if err != nil {
		_ = unix.Unlink(tmp)
	}
	return err
}

// Available returns how many bytes can be read from a pipe or a terminal.
func Available(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		return 0
	}
	return n
}

// PidfdSignal sends a signal by a pidfd.
func PidfdSignal(fd, signal int) error {
	return unix.PidfdSendSignal(fd, unix.Signal(signal), nil, 0)
}

// Ended describes an ended child.
type Ended struct {
	Pid  int
	Wait unix.WaitStatus // as wait4 returns it
}

// Peek looks for an ended child without reaping it; pid 0 means any child. Ended.Pid
// is 0 if none has ended. The error ECHILD means that there is no such child at all.
func Peek(pid int, block bool) (Ended, error) {
	kind, opts := unix.P_PID, unix.WEXITED|unix.WNOWAIT
	if pid == 0 {
		kind = unix.P_ALL
	}
	if !block {
		opts |= unix.WNOHANG
	}
	var info unix.Siginfo
	for {
		err := unix.Waitid(kind, pid, &info, opts, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return Ended{}, err
		}
		break
	}
	// The fields of SIGCHLD's siginfo, which x/sys leaves opaque: si_pid,
	// si_uid, si_status follow the three ints and their padding.
	type sigchld struct {
		signo, errno, code, pad int32
		pid, uid, status        int32
	}
	s := (*sigchld)(unsafe.Pointer(&info))
	e := Ended{Pid: int(s.pid)}
	const exited, dumped = 1, 3 // CLD_EXITED, CLD_DUMPED
	switch s.code {
	case exited:
		e.Wait = unix.WaitStatus(s.status & 0xff << 8)
	case dumped:
		e.Wait = unix.WaitStatus(s.status&0x7f | 0x80)
	default:
		e.Wait = unix.WaitStatus(s.status & 0x7f)
	}
	return e, nil
}

// Reap reaps an ended child. It reports whether no child of this pid is left.
func Reap(pid int) bool {
	for {
		if n, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); err != unix.EINTR {
			return err != nil || n == pid
		}
	}
}

// PidfdExit asks the kernel how the process of a pidfd ended. Linux 6.15 and later
// tell that to any process, once the process has been reaped.
func PidfdExit(fd int) (unix.WaitStatus, bool) {
	const exitBit = 8 // PIDFD_INFO_EXIT
	i := struct {
		mask, cgroup uint64
		ids          [11]uint32
		exit         int32
	}{mask: exitBit}
	const getInfo = 3<<30 | unsafe.Sizeof(i)<<16 | 0xff<<8 | 11
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), getInfo, uintptr(unsafe.Pointer(&i)))
	if e != 0 || i.mask&exitBit == 0 {
		return 0, false
	}
	return unix.WaitStatus(i.exit), true
}

// Parent returns a process's parent, or 0 if the process does not exist.
func Parent(pid int) int {
	n, _ := number(stat(pid), 4)
	return n
}

// Itoa is strconv.Itoa for numbers that are not negative.
func Itoa(n int) string {
	var b [20]byte
	i := len(b)
	for {
		i--
		b[i] = byte('0' + n%10)
		n /= 10
		if n == 0 {
			return string(b[i:])
		}
	}
}

// Poke makes an eventfd readable.
func Poke(fd int) {
	one := [8]byte{1}
	_, _ = unix.Write(fd, one[:])
}

// Unpoke makes an eventfd unreadable.
func Unpoke(fd int) {
	var b [8]byte
	_, _ = unix.Read(fd, b[:])
}

// Errno returns the error number in err, 0 for no error, EIO for any other.
func Errno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return unix.EIO
}

// ReadDir returns the names in a directory, or none if it cannot be read.
func ReadDir(dir string) []string {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	var names []string
	buf := make([]byte, 8<<10)
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return names
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// Listen makes the socket for agents, keeper.sock in dir, for root only.
func Listen(dir string) (int, error) {
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(d) }()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	// Through /proc, because a socket's address is limited to 108 bytes.
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: "/proc/self/fd/" + Itoa(d) + "/keeper.sock"})
	if err == nil {
		err = unix.Chmod(dir+"/keeper.sock", 0o600)
	}
	if err == nil {
		err = unix.Listen(fd, 128)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
