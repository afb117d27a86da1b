// Package plan is the form of a process launch between agent and keeper: one flat blob of system
// calls and their arguments, which a forked child runs one after the other until execve.
//
// The agent builds a plan (Builder), the keeper checks and places it (Place) and its child
// interprets it. A plan knows nothing of containers; the meaning of the calls is
// internal/runtime/native's business. The package is linked into the keeper, so it imports next to
// nothing. Start at Op.
package plan

import (
	"encoding/binary"
	"math/bits"
	"unsafe"
)

// Kind is the kind of an operation and of the check of its result.
type Kind uint8

// The kinds of operations.
const (
	// Call makes a system call, which must succeed or fail with OK or OK2.
	Call Kind = iota
	// Must makes a system call; its result must be Want.
	Must
	// Try makes a system call; if it fails with OK or OK2, the next Want operations are
	// skipped.
	Try
	// Store writes a slot's value (its low four bytes) into the plan's data: A[0] is the
	// number of the slot, A[1] the offset.
	Store
	// Jump skips the next Want operations.
	Jump
	// Fork clones a second child with A[0], a struct clone_args in the plan's data. The second
	// child continues with the next operation, as a child of the keeper (CLONE_PARENT), and this
	// one ends. It reports the second child's pid to the keeper with StepForked.
	Fork
	// Same compares the A[2] bytes of the plan's data at A[0] and A[1]. If they differ,
	// the plan fails.
	Same
)

// Op is one operation. Its layout is part of the plan's format.
type Op struct {
	Kind  Kind
	Out   int8  // slot that gets the result, -1 for none
	Slots uint8 // bit i: A[i] is the number of a slot; its value is used
	Ptrs  uint8 // bit i: A[i] is an offset into the plan's data; its address is used
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
	SlotError   = 3 // failure pipe, closed by execve
	SlotPark    = 4 // pipe; a byte read from it means continue, its end means give up
	SlotConsole = 5 // socket that takes a pty's master
	SlotTarget  = 6 // pidfd of a process; an exec joins its namespaces
	SlotGo      = 7 // pipe with one byte for a second child, once the keeper has found it
	SlotFree    = 8 // the first slot for the plan's own use
	ownSlots    = 32
	SlotGiven   = 64 // the first of MaxGiven slots with the descriptors for the program
	MaxGiven    = 64
	NumSlots    = SlotGiven + MaxGiven
)

// StepParked is a parked child's report in its failure pipe, in place of an operation's number.
const StepParked = 1<<32 - 1

// Died is the error text for a child that ended before its program without reporting a
// failure: it was killed.
const Died = "the child died before its program ran"

// StepForked is a child's report that it has made a second child by Fork; the second child's pid is
// in the place of the errno.
const StepForked = 1<<32 - 2

// StepExec is set in the reported operation number if that operation was to execute a
// program.
const StepExec = 1 << 30

// Version of the format. A keeper accepts plans of its own version, and of earlier
// ones from clients that use those protocol versions (old.go).
const Version = 3

// Limits of a plan, so that a corrupt one cannot make the keeper use too much memory or
// time.
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
	Relocs     uint32 // array of uint32: offsets of 8-byte words; each contains an offset that becomes an address
	Given      uint32 // the number of descriptors for the program, in the slots from SlotGiven on
	CloneFlags uint64
	CgroupDir  uint32 // offset of the directory of the v2 cgroup to start in; 0 for none
	PidNS      uint32 // offset of the file of the pid namespace to start in; 0 for none
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

// sum returns the checksum of the blob, with Header.Sum taken as zero.
func sum(blob []byte) uint64 { return sumWithout(blob, int(unsafe.Offsetof(Header{}.Sum))) }

// sumWithout is FNV-1a over words. It takes the word at hole as zero and pads the last
// one with zeros.
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
		// Rotated, so that a word's high bits influence the whole sum.
		h = bits.RotateLeft64((h^w)*sumPrime, 32)
	}
	return h
}

const sumOffset, sumPrime = 14695981039346656037, 1099511628211
