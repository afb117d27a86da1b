package tracee

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/sleep/uffd"
)

// Device makes descriptors for processes without privileges (Linux 6.1).
const Device = "/dev/userfaultfd"

// ErrForbidden says that the kernel permits no descriptor to the process.
var ErrForbidden = errors.New("the kernel permits userfaultfd to no program without privileges: it needs /dev/userfaultfd (Linux 6.1) or vm.unprivileged_userfaultfd = 1")

// Userfaultfd opens a userfaultfd in the process, takes it, and closes it there. device is an
// open Device, or nil.
func (p *Process) Userfaultfd(device *os.File) (s uffd.Space, err error) {
	s = -1
	err = p.Calls(func(call Call) error {
		var fd uint64
		var err error
		if device == nil {
			if fd, err = call(unix.SYS_USERFAULTFD, unix.O_NONBLOCK); errors.Is(err, unix.EPERM) {
				return ErrForbidden
			}
		} else {
			fd, err = p.byDevice(call, device)
		}
		if err != nil {
			return err
		}
		own, err := p.take(fd)
		if _, err2 := call(unix.SYS_CLOSE, fd); err2 != nil {
			err = errors.Join(err, err2)
		}
		if err == nil {
			s = uffd.Space(own)
		} else if own >= 0 {
			_ = unix.Close(own)
		}
		return err
	})
	return s, err
}

// take returns a duplicate of one of the process's descriptors.
func (p *Process) take(fd uint64) (int, error) {
	pidfd, err := unix.PidfdOpen(p.Pid, 0)
	if err != nil {
		return -1, fmt.Errorf("open process %d: %w", p.Pid, err)
	}
	defer func() { _ = unix.Close(pidfd) }()
	own, err := unix.PidfdGetfd(pidfd, int(fd), 0)
	if err != nil {
		return -1, fmt.Errorf("take descriptor %d of process %d: %w", fd, p.Pid, err)
	}
	return own, nil
}

// byDevice passes the device to the process, and makes the descriptor there by an ioctl. With an open device the
// kernel requires neither privileges nor the parameter vm.unprivileged_userfaultfd.
func (p *Process) byDevice(call Call, device *os.File) (uint64, error) {
	page, err := call(unix.SYS_MMAP, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uint64(0), 0)
	if err != nil {
		return 0, fmt.Errorf("memory for a message: %w", err)
	}
	fd, err := p.receive(call, device, page)
	if _, err2 := call(unix.SYS_MUNMAP, page, 4096); err2 != nil {
		err = errors.Join(err, err2)
	}
	if err != nil {
		return 0, err
	}
	s, err := call(unix.SYS_IOCTL, fd, uffd.IoctlNew, unix.O_NONBLOCK)
	if _, err2 := call(unix.SYS_CLOSE, fd); err2 != nil {
		err = errors.Join(err, err2)
	}
	if err != nil {
		return 0, fmt.Errorf("open a userfaultfd by its device: %w", err)
	}
	return s, nil
}

// receive passes the device over a pair of sockets. page is memory of the process that it may write to.
func (p *Process) receive(call Call, device *os.File, page uint64) (fd uint64, err error) {
	if _, err := call(unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0, page); err != nil {
		return 0, fmt.Errorf("a pair of sockets: %w", err)
	}
	var b [256]byte
	if err := p.Memory(page, b[:8]); err != nil {
		return 0, err
	}
	ends := [2]uint64{uint64(binary.LittleEndian.Uint32(b[:])), uint64(binary.LittleEndian.Uint32(b[4:]))}
	defer func() {
		for _, e := range ends {
			if _, err2 := call(unix.SYS_CLOSE, e); err2 != nil {
				err = errors.Join(err, err2)
			}
		}
	}()
	own, err := p.take(ends[0])
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(own) }()
	raw, err := device.SyscallConn()
	if err != nil {
		return 0, err
	}
	err2 := raw.Control(func(d uintptr) { err = unix.Sendmsg(own, []byte{0}, unix.UnixRights(int(d)), nil, 0) })
	if err = errors.Join(err, err2); err != nil {
		return 0, fmt.Errorf("pass %s: %w", Device, err)
	}
	// struct msghdr at the beginning, then an iovec, its byte, and the control message.
	const vector, data, control, controlLen = 64, 80, 96, 24
	le := binary.LittleEndian
	clear(b[:])
	le.PutUint64(b[16:], page+vector)
	le.PutUint64(b[24:], 1)
	le.PutUint64(b[32:], page+control)
	le.PutUint64(b[40:], controlLen)
	le.PutUint64(b[vector:], page+data)
	le.PutUint64(b[vector+8:], 1)
	if err := p.SetMemory(page, b[:]); err != nil {
		return 0, err
	}
	if _, err := call(unix.SYS_RECVMSG, ends[1], page, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT); err != nil {
		return 0, fmt.Errorf("receive %s: %w", Device, err)
	}
	if err := p.Memory(page, b[:]); err != nil {
		return 0, err
	}
	if le.Uint64(b[40:]) < 20 || le.Uint32(b[control+8:]) != unix.SOL_SOCKET || le.Uint32(b[control+12:]) != unix.SCM_RIGHTS {
		return 0, fmt.Errorf("receive %s: the process got no descriptor; it may have as many as it is permitted", Device)
	}
	return uint64(le.Uint32(b[control+16:])), nil
}
