// Package uffd has the kernel's userfaultfd interface. One process uses such a descriptor to supply the missing
// pages of another process, and to observe its forks and changed mappings. Start at Space.
package uffd

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The numbers are those of linux/userfaultfd.h.
const (
	api           = 0xaa
	ioctlAPI      = 0xc018aa3f
	ioctlRegister = 0xc020aa00
	ioctlUnreg    = 0x8010aa01
	ioctlWake     = 0x8010aa02
	ioctlCopy     = 0xc028aa03
	ioctlZero     = 0xc020aa04

	// IoctlNew makes a descriptor for the calling process by /dev/userfaultfd.
	IoctlNew = 0xaa00

	modeMissing  = 1
	modeDontWake = 1

	featureFork   = 1 << 1
	featureRemap  = 1 << 2
	featureRemove = 1 << 3
	featureUnmap  = 1 << 6
)

// Event is the kind of a message.
type Event uint8

// The events.
const (
	Fault  Event = 0x12
	Fork   Event = 0x13
	Remap  Event = 0x14
	Remove Event = 0x15
	Unmap  Event = 0x16
)

// MessageSize is the size of a message in bytes.
const MessageSize = 32

// Message is a message of a descriptor. The kernel defines the layout.
type Message struct {
	Event Event
	_     [7]byte
	// Args depend on Event. Fault: flags, address. Fork: the new descriptor. Remap: from, to, length.
	// Remove and Unmap: start, end.
	Args [3]uint64
}

// Forked returns the descriptor of the child process in a Fork.
func (m *Message) Forked() int { return int(int32(uint32(m.Args[0]))) }

// Space is a descriptor of one address space.
type Space int

// Range is a range of addresses. Both ends are multiples of the page size.
type Range struct{ Addr, Len uint64 }

// End returns the first address behind the range.
func (r Range) End() uint64 { return r.Addr + r.Len }

// Enable agrees on the interface with the kernel. It must be the first call on a descriptor. It
// needs CAP_SYS_PTRACE, as the events of forks do.
func (s Space) Enable() error {
	a := struct{ api, features, ioctls uint64 }{api: api, features: featureFork | featureRemap | featureRemove | featureUnmap}
	if err := s.ioctl(ioctlAPI, unsafe.Pointer(&a)); err != nil {
		return fmt.Errorf("userfaultfd: agree on its interface: %w", err)
	}
	return nil
}

// Register asks for the faults in a range. EBUSY if another descriptor has it, EINVAL for mappings of
// a kind that the kernel supplies no pages for.
func (s Space) Register(r Range) error {
	g := struct {
		Range
		mode, ioctls uint64
	}{Range: r, mode: modeMissing}
	return s.ioctl(ioctlRegister, unsafe.Pointer(&g))
}

// Unregister gives a range back to the kernel: pages that are missing are empty from now on.
func (s Space) Unregister(r Range) error { return s.ioctl(ioctlUnreg, unsafe.Pointer(&r)) }

// Wake lets threads continue that wait for a page in the range.
func (s Space) Wake(r Range) error { return s.ioctl(ioctlWake, unsafe.Pointer(&r)) }

// Copy supplies pages at addr and lets the threads continue that wait for them. It returns the number
// of supplied bytes, also with an error. EEXIST: the process has the page. EAGAIN: an event must be read first. ENOENT: the range is no longer mapped or registered.
// ESRCH: the address space is gone. ENOMEM: the memory limit of the process.
func (s Space) Copy(addr uint64, from []byte) (int, error) {
	c := struct {
		dst, src, len, mode uint64
		copied              int64
	}{dst: addr, src: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(from)))), len: uint64(len(from))}
	err := s.ioctl(ioctlCopy, unsafe.Pointer(&c))
	return int(max(c.copied, 0)), err
}

// Zero supplies empty pages, and otherwise is as Copy.
func (s Space) Zero(r Range) (int, error) {
	z := struct {
		Range
		mode   uint64
		zeroed int64
	}{Range: r}
	err := s.ioctl(ioctlZero, unsafe.Pointer(&z))
	return int(max(z.zeroed, 0)), err
}

// Read reads messages into buf and returns their number, 0 if there are none. The length of buf is a multiple of
// MessageSize.
func (s Space) Read(buf []byte) (int, error) {
	for {
		n, err := unix.Read(int(s), buf)
		switch {
		case err == nil:
			return n / MessageSize, nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return 0, nil
		default:
			return 0, fmt.Errorf("userfaultfd: read: %w", err)
		}
	}
}

func (s Space) ioctl(request uintptr, arg unsafe.Pointer) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s), request, uintptr(arg))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

// Bytes returns the memory of the message, to be read into.
func (m *Message) Bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(m)), MessageSize)
}
