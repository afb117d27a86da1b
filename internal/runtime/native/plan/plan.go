// Package plan is the form in which a process launch travels from the agent to
// the keeper: one flat blob of system calls and their arguments, which a forked
// child runs one after the other until execve.
//
// The agent builds a plan (Builder), the keeper checks and places it (Place)
// and its child interprets it. A plan knows nothing of containers; what the
// calls mean is internal/runtime/native's business. The package is linked into
// the keeper, so it imports next to nothing. Start at Op.
package plan

import (
	"encoding/binary"
	"math/bits"
	"unsafe"
)

// Kind says how an operation's outcome is taken.
type Kind uint8

// The kinds of operations.
const (
	// Call makes a system call, which must succeed or fail with OK or OK2.
	Call Kind = iota
	// Must makes a system call whose result must be Want.
	Must
	// Try makes a system call; when it fails with OK or OK2 the next Want
	// operations are passed over.
	Try
	// Store writes a slot (the low four bytes) into the plan's data: A[0] is
	// the slot's number, A[1] the offset.
	Store
	// Jump passes the next Want operations over.
	Jump
	// Fork clones once more, as A[0] (struct clone_args in the plan's data)
	// says: the new process goes on with the next operation, as the keeper's
	// own child (CLONE_PARENT), and this one ends. It tells the keeper the new
	// one's pid as StepForked.
	Fork
	// Same compares A[2] bytes of the plan's data at A[0] and A[1]; where they
	// differ the plan fails.
	Same
)

// Op is one operation. Its layout is part of the plan's format.
type Op struct {
	Kind  Kind
	Out   int8  // slot that keeps the result, -1 for none
	Slots uint8 // bit i: A[i] is the number of a slot, not a value
	Ptrs  uint8 // bit i: A[i] is an offset into the plan's data, not a value
	OK    uint16
	OK2   uint16
	NR    uint32 // system call number
	Name  uint32 // offset of the NUL-terminated name, for errors
	A     [6]uint64
	Want  uint64
}

// Slots that the keeper fills before the child runs.
const (
	SlotStdin   = 0
	SlotStdout  = 1
	SlotStderr  = 2
	SlotError   = 3 // the pipe that tells of a failure, closed by execve
	SlotPark    = 4 // read one byte from here to go on; nothing: give up
	SlotConsole = 5 // socket that takes a pty's master
	SlotTarget  = 6 // pidfd of the process whose namespaces an exec joins
	SlotGo      = 7 // what a Fork made reads one byte from here, once the keeper knows it
	SlotFree    = 8 // the first slot for the plan's own use
	NumSlots    = 32
)

// StepParked is what a child tells by its failure pipe, as the number of an
// operation, when it has come to where it parks.
const StepParked = 1<<32 - 1

// Died is what is said of a child that ended before its program without telling
// why: it was killed.
const Died = "the child died before its program ran"

// StepForked is what a child tells when it has made another by Fork; the pid
// stands where else an errno does.
const StepForked = 1<<32 - 2

// StepExec is set in the number of an operation that a child tells of when that was
// to execute a program.
const StepExec = 1 << 30

// Version of the format. A keeper takes plans of its own version, and of the one
// before where its client speaks that (old.go).
const Version = 2

// Limits of a plan, so that a corrupt one cannot make the keeper map or walk
// what it should not.
const (
	MaxOps  = 4096
	MaxSize = 4 << 20
)

// Header stands at the start of the blob. Offsets count from there.
type Header struct {
	Magic      [8]byte
	Version    uint32
	Arch       uint32
	Size       uint32 // of the whole blob
	NumOps     uint32
	Ops        uint32
	NumRelocs  uint32
	Relocs     uint32 // array of uint32: offsets of 8-byte words that hold an offset and are to hold an address
	CloneFlags uint64
	CgroupDir  uint32 // offset of the v2 directory to be born in; 0 for none
	PidNS      uint32 // offset of the pid namespace's file to be born in; 0 for none
	Users      uint32 // offset of the user namespaces to make first (users.go); 0 for none
	NumUsers   uint32
	Sum        uint64 // of the blob with this field zero
	Slot       [NumSlots]uint64
}

const (
	headerSize = uint32(unsafe.Sizeof(Header{}))
	opSize     = uint32(unsafe.Sizeof(Op{}))
)

var magic = [8]byte{'L', 'S', 'P', 'L', 'A', 'N', 0, Version}

// sum guards the blob against damage, with Header.Sum taken for zero.
func sum(blob []byte) uint64 { return sumWithout(blob, int(unsafe.Offsetof(Header{}.Sum))) }

// sumWithout is FNV-1a by words, of which the one at hole is taken for zero and
// the last is filled up with zeros.
func sumWithout(b []byte, hole int) uint64 {
	h := uint64(sumOffset)
	for i := 0; i < len(b); i += 8 {
		var w uint64
		switch rest := b[i:]; {
		case i == hole:
		case len(rest) >= 8:
			w = binary.LittleEndian.Uint64(rest)
		default:
			for j, b := range rest {
				w |= uint64(b) << (8 * j)
			}
		}
		// Turned, so that what is high in a word reaches all of the sum.
		h = bits.RotateLeft64((h^w)*sumPrime, 32)
	}
	return h
}

const sumOffset, sumPrime = 14695981039346656037, 1099511628211
