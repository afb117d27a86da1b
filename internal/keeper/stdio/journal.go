package stdio

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
)

// MaxSinks is how many sinks a process can have.
const MaxSinks = 8

const (
	chunk      = 64 << 10 // the most that one transaction moves: a pipe's size
	headerSize = 4096
	lostSize   = 4096
	lostSlots  = lostSize / 32
	sentinel   = 16
	ttyChunk   = 4096
	// untouchedByte fills the buffer before a terminal is read, because a terminal has no peek. It
	// occurs in no text.
	untouchedByte = 0xff
)

// The states of a transaction.
const (
	idle    = iota
	reading // perhaps consumed; nothing is written yet
	writing // consumed; the slots say which sinks are written
)

// The states of a sink within a transaction.
const (
	untouched = iota
	begun
	done
)

// slot is one sink's part of a transaction: which file it writes, by inode so
// that a rename does not hide it, and how long the file was before.
type slot struct {
	state    uint32
	fifo     uint32
	dev, ino uint64
	off      int64 // file: its length before; FIFO: bytes written so far
}

// header is the journal's first page. The file is mapped shared: its content outlives this process.
type header struct {
	magic   [8]byte
	state   uint32
	n       uint32 // bytes asked of read, later bytes read
	key     uint32 // length of the sentinel that was compared; 0 for a terminal
	stderr  uint32
	serial  uint64
	nonce   [sentinel]byte
	ts      [40]byte
	slots   [MaxSinks]slot
	reserve [64]byte
}

// lostSlot counts the lost bytes of a process (which is 0), or those that one of its sinks (which
// is its index plus one) has still to mark.
type lostSlot struct {
	serial, which, n uint64
	why              uint64
}

// Journal holds the one transaction that can be under way, and the counts of
// lost bytes. One loop has one transaction at a time, so that one small file
// serves all processes of a node.
type Journal struct {
	mem  []byte
	h    *header
	data []byte
	lost *[lostSlots]lostSlot
	peek [2]int // a pipe for reading others without consuming
}

// OpenJournal maps the journal at path, and makes it if it does not exist. A file that
// is not a journal is replaced by an empty one.
func OpenJournal(path string) (*Journal, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	const size = headerSize + lostSize + chunk
	if err := unix.Ftruncate(fd, size); err != nil {
		return nil, err
	}
	// Allocate the space now: a full file system would otherwise raise SIGBUS later.
	if err := unix.Fallocate(fd, 0, 0, size); err != nil && err != unix.EOPNOTSUPP {
		return nil, err
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	j := &Journal{
		mem:  mem,
		h:    (*header)(unsafe.Pointer(&mem[0])),
		data: mem[headerSize+lostSize:], // the bytes of the transaction
		lost: (*[lostSlots]lostSlot)(unsafe.Pointer(&mem[headerSize:][0])),
	}
	if err := unix.Pipe2(j.peek[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		_ = unix.Munmap(mem)
		return nil, err
	}
	if magic := [8]byte{'L', 'S', 'J', 'O', 'U', 'R', 'N', 1}; j.h.magic != magic {
		*j.h, *j.lost = header{}, [lostSlots]lostSlot{}
		j.h.magic = magic
	}
	if j.h.nonce == [sentinel]byte{} {
		if _, err := unix.Getrandom(j.h.nonce[:], 0); err != nil {
			j.Close()
			return nil, err
		}
	}
	return j, nil
}

// Close unmaps the journal; the file stays.
func (j *Journal) Close() {
	_ = unix.Munmap(j.mem)
	kernel.CloseAll(j.peek[:])
}

// begin opens a transaction of at most most bytes, in state reading. seen is the known content of
// the pipe, or nil. It returns the buffer to read into, or nil if there is nothing to read.
func (j *Journal) begin(s *Source, now []byte, most int, seen []byte) []byte {
	n, key := ttyChunk, sentinel
	if s.TTY {
		key = 0
		for i := range n {
			j.data[i] = untouchedByte
		}
	} else {
		if n = len(seen); n == 0 {
			n = kernel.Available(s.FD)
		}
		if n == 0 {
			return nil
		}
		n = min(n, most, chunk)
		copy(j.data, j.h.nonce[:])
		if n < sentinel {
			// Too few bytes to compare safely: the sentinel is a byte that differs
			// from the first one.
			key = 1
			var one [1]byte
			if seen == nil {
				seen = j.look(s.FD, one[:])
			}
			if seen == nil {
				return nil
			}
			j.data[0] = ^seen[0]
			j.h.reserve[0] = ^seen[0]
		}
	}
	h := j.h
	h.serial, h.n, h.key, h.stderr = s.Serial, uint32(n), uint32(key), 0
	if s.Stderr {
		h.stderr = 1
	}
	copy(h.ts[:], now)
	h.slots = [MaxSinks]slot{}
	j.set(reading)
	return j.data[:n]
}

// consumed returns, after a crash in state reading, how many bytes were read.
func (j *Journal) consumed() int {
	n := int(min(j.h.n, chunk))
	switch j.h.key {
	case 0: // a terminal: the buffer was filled before, and the bytes that differ were read
		for n = min(n, ttyChunk); n > 0 && j.data[n-1] == untouchedByte; {
			n--
		}
		return n
	case 1:
		if j.data[0] == j.h.reserve[0] {
			return 0
		}
	default:
		if [sentinel]byte(j.data[:sentinel]) == j.h.nonce {
			return 0
		}
	}
	return n
}

func (j *Journal) set(state uint32) { atomic.StoreUint32(&j.h.state, state) }

// Lost returns how many bytes the process lost so far.
func (j *Journal) Lost(serial uint64) uint64 {
	if s := j.slot(serial, 0, false); s != nil {
		return s.n
	}
	return 0
}

// Restore tells a process's sinks for how many bytes they have still to write markers.
func (j *Journal) Restore(serial uint64, sinks []*Sink) {
	for i, k := range sinks {
		if s := j.slot(serial, uint64(i)+1, false); s != nil {
			k.lost, k.why = s.n, unix.Errno(s.why)
		}
	}
}

func (j *Journal) slot(serial, which uint64, fresh bool) *lostSlot {
	for i := range j.lost {
		if s := &j.lost[i]; s.serial == serial && s.which == which {
			return s
		}
	}
	if fresh {
		for i := range j.lost {
			if s := &j.lost[i]; s.serial == 0 {
				*s = lostSlot{serial: serial, which: which}
				return s
			}
		}
	}
	return nil
}

// addLost counts bytes that no sink took. If more processes lose output than there are
// slots, the counts of the others do not survive a restart.
func (j *Journal) addLost(serial, n uint64) {
	if s := j.slot(serial, 0, true); s != nil {
		s.n += n
	}
}

// unmarked stores for how many bytes a sink has still to write a marker.
func (j *Journal) unmarked(serial uint64, sink int, k *Sink) {
	s := j.slot(serial, uint64(sink)+1, k.lost > 0)
	if s == nil {
		return
	}
	if s.n, s.why = k.lost, uint64(k.why); k.lost == 0 {
		*s = lostSlot{}
	}
}

// ForgetLost frees a process's count.
func (j *Journal) ForgetLost(serial uint64) {
	for i := range j.lost {
		if j.lost[i].serial == serial {
			j.lost[i] = lostSlot{}
		}
	}
}
