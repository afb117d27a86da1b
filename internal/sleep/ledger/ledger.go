// Package ledger has the files of a sleeping container: the compressed pages, their index, and the
// ledger. The ledger is a small mapped file with a bit for each page that a page server has supplied. It
// outlives the server, so that the next server continues at the same place. Start at Ledger.
package ledger

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/sleep/uffd"
)

// Phase is a step of a sleep and of the wake after it.
type Phase uint32

// The phases, in their order.
const (
	Copying Phase = iota // the processes have all pages
	Out                  // pages may be missing: the processes must not run without a server
	Waking               // the processes may run
	In                   // the processes have all pages again
)

// Format is the number of the format of index, pages and ledger.
const Format = 1

const (
	ledgerMagic   = 0x31474c53_4c50534c // format 1
	headerSize    = PageSize
	maxMoves      = 1 << 14
	moveSize      = int64(unsafe.Sizeof(move{}))
	bitmapsOffset = headerSize + maxMoves*moveSize
)

// header is the beginning of a ledger. Its layout, and that of move, is format 1.
type header struct {
	magic uint64
	phase atomic.Uint32
	_     uint32
	moves atomic.Uint64
	// inbox is the message that the server handles at present. The kernel writes it into this file, so that
	// the next server can handle it if this one dies.
	from  atomic.Uint64 // the space of the message plus 1; 0 for none
	inbox uffd.Message
	// Counters of the server, for the node's metrics.
	faults, supplied atomic.Uint64
}

// move is a fork or a moved mapping, in the order of the events.
type move struct {
	space  uint32
	fork   uint32 // 1: space was forked, and the descriptor of its child is from
	from   uint64
	to     uint64
	length uint64
}

// Ledger is the mapped file.
type Ledger struct {
	f    *os.File
	mem  []byte
	maps [][]byte // the bitmaps
	end  int64
}

// Create writes a new ledger to an empty file.
func Create(f *os.File) (*Ledger, error) {
	if err := f.Truncate(bitmapsOffset); err != nil {
		return nil, err
	}
	if _, err := f.WriteAt(unsafe.Slice((*byte)(unsafe.Pointer(&[]uint64{ledgerMagic}[0])), 8), 0); err != nil {
		return nil, err
	}
	return Open(f)
}

// ErrUnborn means that Create has not completed. The processes have all pages.
var ErrUnborn = errors.New("the ledger was not completed")

// Lock waits until no other process has the ledger locked. Two servers of the same pages would not see each other's
// events. The lock ends with the process.
func Lock(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	err2 := raw.Control(func(fd uintptr) {
		for {
			if err = unix.Flock(int(fd), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
				return
			}
		}
	})
	if err = errors.Join(err, err2); err != nil {
		return fmt.Errorf("lock the ledger: %w", err)
	}
	return nil
}

// Open maps a ledger. The caller keeps the file open while it uses the ledger.
func Open(f *os.File) (*Ledger, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() < bitmapsOffset {
		return nil, ErrUnborn
	}
	mem, err := mmap(f, 0, int(bitmapsOffset))
	if err != nil {
		return nil, fmt.Errorf("map the ledger: %w", err)
	}
	l := &Ledger{f: f, mem: mem, end: bitmapsOffset}
	if l.header().magic == 0 {
		_ = unix.Munmap(mem)
		return nil, ErrUnborn
	}
	if l.header().magic != ledgerMagic || l.header().moves.Load() > maxMoves {
		_ = unix.Munmap(mem)
		return nil, errors.New("this file is no ledger, or one of another format")
	}
	return l, nil
}

func mmap(f *os.File, at int64, size int) ([]byte, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var mem []byte
	err2 := raw.Control(func(fd uintptr) {
		mem, err = unix.Mmap(int(fd), at, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	})
	return mem, errors.Join(err, err2)
}

// Close unmaps the ledger.
func (l *Ledger) Close() error {
	errs := []error{unix.Munmap(l.mem)}
	for _, m := range l.maps {
		errs = append(errs, unix.Munmap(m))
	}
	return errors.Join(errs...)
}

func (l *Ledger) header() *header { return (*header)(unsafe.Pointer(&l.mem[0])) }

// Phase returns the phase.
func (l *Ledger) Phase() Phase { return Phase(l.header().phase.Load()) }

// Reach sets the phase, unless it was reached before.
func (l *Ledger) Reach(p Phase) {
	if l.Phase() < p {
		l.header().phase.Store(uint32(p))
	}
}

// Count adds to the numbers of faults and of supplied pages, and Counts returns them.
func (l *Ledger) Count(faults, supplied uint64) {
	l.header().faults.Add(faults)
	l.header().supplied.Add(supplied)
}

// Counts returns the numbers of faults and of supplied pages.
func (l *Ledger) Counts() (faults, supplied uint64) {
	return l.header().faults.Load(), l.header().supplied.Load()
}

// Inbox returns memory for one message of a space. The message outlives the server, until Handled.
func (l *Ledger) Inbox(space int) *uffd.Message {
	h := l.header()
	h.inbox = uffd.Message{}
	h.from.Store(uint64(space) + 1)
	return &h.inbox
}

// Unhandled returns the message that an earlier server has read but not handled.
func (l *Ledger) Unhandled() (space int, m *uffd.Message, ok bool) {
	h := l.header()
	return int(h.from.Load()) - 1, &h.inbox, h.from.Load() != 0 && h.inbox.Event != 0
}

// Handled removes the message from the inbox.
func (l *Ledger) Handled() { l.header().from.Store(0) }

// Bitmap has one bit for each page of a space, in the order of its blocks. The bit is set if the process has the
// page, or has discarded it.
type Bitmap []byte

// Has reports a bit, and Set sets it.
func (b Bitmap) Has(page uint64) bool { return b[page/8]&(1<<(page%8)) != 0 }

// Set sets a bit.
func (b Bitmap) Set(page uint64) { b[page/8] |= 1 << (page % 8) }

// Bitmap returns the bitmap of the next space, in the order of their numbers, for so many pages.
func (l *Ledger) Bitmap(pages uint64) (Bitmap, error) {
	size := int64(pages/8+PageSize) / PageSize * PageSize
	st, err := l.f.Stat()
	if err == nil && st.Size() < l.end+size {
		err = l.f.Truncate(l.end + size)
	}
	if err != nil {
		return nil, fmt.Errorf("extend the ledger: %w", err)
	}
	mem, err := mmap(l.f, l.end, int(size))
	if err != nil {
		return nil, fmt.Errorf("map the ledger: %w", err)
	}
	l.end += size
	l.maps = append(l.maps, mem)
	return Bitmap(mem), nil
}

// Move is an event that changes the addresses of pages.
type Move struct {
	Space int
	// Fork is the descriptor of a child of the space, if it was forked; otherwise Length bytes have
	// moved from From to To.
	Fork             int
	From, To, Length uint64
}

// ErrMoves is the error of Moved when the ledger is full.
var ErrMoves = errors.New("too many forks and moved mappings while pages were missing")

// Moved records a move. It does not record the last one again.
func (l *Ledger) Moved(m Move) error {
	h := l.header()
	n := h.moves.Load()
	e := move{space: uint32(m.Space), from: m.From, to: m.To, length: m.Length}
	if m.Length == 0 {
		e.fork, e.from = 1, uint64(m.Fork)
	}
	if n > 0 && *l.move(n - 1) == e {
		return nil
	}
	if n == maxMoves {
		return ErrMoves
	}
	*l.move(n) = e
	h.moves.Store(n + 1)
	return nil
}

// Moves returns the recorded moves.
func (l *Ledger) Moves() []Move {
	all := make([]Move, l.header().moves.Load())
	for i := range all {
		e := l.move(uint64(i))
		all[i] = Move{Space: int(e.space), From: e.from, To: e.to, Length: e.length}
		if e.fork == 1 {
			all[i].Fork, all[i].From = int(e.from), 0
		}
	}
	return all
}

func (l *Ledger) move(n uint64) *move {
	return (*move)(unsafe.Pointer(&l.mem[headerSize+int64(n)*moveSize]))
}
