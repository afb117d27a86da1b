package hostvsock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Flags of a descriptor, and of a ring of available ones.
const (
	descNext    = 1
	descWrite   = 2
	noInterrupt = 1
)

const (
	descLen     = 16
	maxRing     = 1024
	ringHead    = 4 // flags and index
	usedElement = 8
)

// region is a part of the guest's memory.
type region struct {
	guest, user uint64 // where the guest has it, and where QEMU has it
	mem         []byte
	mapping     []byte // mem is its end
}

type memory []region

// at returns the memory at an address of the guest, in as many parts as it has.
func (m memory) at(addr, n uint64) (parts [][]byte, err error) {
	for n > 0 {
		part := m.find(addr, func(r *region) uint64 { return r.guest })
		if len(part) == 0 {
			return nil, fmt.Errorf("the guest has no memory at %#x", addr)
		}
		part = part[:min(n, uint64(len(part)))]
		parts = append(parts, part)
		addr += uint64(len(part))
		n -= uint64(len(part))
	}
	return parts, nil
}

// user returns the memory at an address of QEMU, in one part.
func (m memory) user(addr, n uint64) ([]byte, error) {
	part := m.find(addr, func(r *region) uint64 { return r.user })
	if uint64(len(part)) < n || addr%ringHead != 0 {
		return nil, fmt.Errorf("no memory for a ring at %#x", addr)
	}
	return part[:n], nil
}

// find returns the rest of the region that has an address.
func (m memory) find(addr uint64, start func(*region) uint64) []byte {
	for i := range m {
		if off := addr - start(&m[i]); addr >= start(&m[i]) && off < uint64(len(m[i].mem)) {
			return m[i].mem[off:]
		}
	}
	return nil
}

func (m memory) unmap() (err error) {
	for _, r := range m {
		err = errors.Join(err, unix.Munmap(r.mapping))
	}
	return err
}

// ring is one virtqueue, split.
type ring struct {
	num                           uint16
	descAddr, usedAddr, availAddr uint64
	kick, call                    *os.File
	enabled                       bool

	desc, used, avail []byte // in the guest's memory; nil while the ring is stopped
	taken, given      uint16 // how many buffers, modulo 2^16
}

// word is the flags and the index of a ring of available or used buffers, which stand
// side by side; a processor reads and writes them at once.
func word(b []byte) *uint32 { return (*uint32)(unsafe.Pointer(unsafe.SliceData(b))) }

// start finds the ring in memory.
func (r *ring) start(m memory) (err error) {
	n := uint64(r.num)
	desc, err := m.user(r.descAddr, n*descLen)
	if err != nil {
		return err
	}
	avail, err := m.user(r.availAddr, ringHead+2*n)
	if err != nil {
		return err
	}
	used, err := m.user(r.usedAddr, ringHead+usedElement*n)
	if err != nil {
		return err
	}
	r.desc, r.avail, r.used = desc, avail, used
	r.given = uint16(atomic.LoadUint32(word(used)) >> 16)
	return nil
}

func (r *ring) stop() {
	r.desc, r.avail, r.used = nil, nil, nil
	if r.kick != nil {
		_ = r.kick.Close()
		r.kick = nil
	}
}

func (r *ring) running() bool { return r.desc != nil && r.enabled }

// take returns the next buffer that the guest has made available, for reading or writing. give
// returns its head.
func (r *ring) take(m memory) (head uint16, out, in [][]byte, err error) {
	le := binary.LittleEndian
	if uint16(atomic.LoadUint32(word(r.avail))>>16) == r.taken {
		return 0, nil, nil, nil
	}
	head = le.Uint16(r.avail[ringHead+2*(r.taken%r.num):])
	at := head
	for range r.num {
		if at >= r.num {
			break
		}
		d := r.desc[descLen*int(at):]
		addr, n, flags := le.Uint64(d), le.Uint32(d[8:]), le.Uint16(d[12:])
		parts, err := m.at(addr, uint64(n))
		switch {
		case err != nil:
			return 0, nil, nil, err
		case flags&^(descNext|descWrite) != 0:
			return 0, nil, nil, fmt.Errorf("a descriptor's flags are %#x", flags)
		case flags&descWrite != 0:
			in = append(in, parts...)
		default:
			out = append(out, parts...)
		}
		if flags&descNext == 0 {
			r.taken++
			return head, out, in, nil
		}
		at = le.Uint16(d[14:])
	}
	return 0, nil, nil, errors.New("a chain of descriptors leads nowhere")
}

// give gives a buffer back into which n bytes were written.
func (r *ring) give(head uint16, n uint32) {
	e := r.used[ringHead+usedElement*int(r.given%r.num):]
	binary.LittleEndian.PutUint32(e, uint32(head))
	binary.LittleEndian.PutUint32(e[4:], n)
	r.given++
	atomic.StoreUint32(word(r.used), uint32(r.given)<<16)
}

// interrupt notifies the guest of returned buffers, if it wants that.
func (r *ring) interrupt() error {
	if r.call == nil || atomic.LoadUint32(word(r.avail))&noInterrupt != 0 {
		return nil
	}
	_, err := r.call.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0})
	return err
}
