package plan

import (
	"slices"
	"strings"
	"unsafe"
)

// Ptr is an offset into the plan's data.
type Ptr uint32

// Slot names a slot as an argument.
type Slot uint8

// Arg is one argument of an operation: an int, uint64, Ptr or Slot.
type Arg struct {
	value uint64
	kind  uint8
}

const (
	argValue = iota
	argPtr
	argSlot
)

// V is an argument passed as it is.
func V[T ~int | ~int32 | ~int64 | ~uint | ~uint32 | ~uint64 | ~uintptr](v T) Arg {
	return Arg{value: uint64(v)}
}

// P is an argument that points into the plan's data.
func P(p Ptr) Arg { return Arg{uint64(p), argPtr} }

// S is an argument read from a slot.
func S(s Slot) Arg { return Arg{uint64(s), argSlot} }

// Builder builds a plan. The zero Builder is ready for use.
type Builder struct {
	ops    []Op
	data   []byte // offsets handed out are relative to the blob's start; see base
	relocs []uint32
	names  map[string]Ptr
	next   Slot
	flags  uint64
	cgroup Ptr
	pidNS  Ptr
	users  []User
	given  uint32
	nul    *string // the first string that contains a NUL
}

// HoldsNUL returns the first string that contains a NUL, at which the kernel would have
// cut it off; nil if there is none.
func (b *Builder) HoldsNUL() (s string, bad bool) {
	if b.nul == nil {
		return "", false
	}
	return *b.nul, true
}

// The data stands first in the blob, right after the header, so that offsets
// are final when they are handed out.
const base = headerSize

// Clone sets the flags of clone3 and, unless empty, the v2 cgroup directory of the child.
func (b *Builder) Clone(flags uint64, cgroupDir string) {
	b.flags = flags
	if cgroupDir != "" {
		b.cgroup = b.String(cgroupDir)
	}
}

// Give sets the number of descriptors for the program: the keeper puts them into the slots from
// SlotGiven on. n is at most MaxGiven.
func (b *Builder) Give(n int) { b.given = uint32(n) }

// JoinPid makes the child start in the pid namespace of that file.
func (b *Builder) JoinPid(file string) { b.pidNS = b.String(file) }

// NewSlot returns a slot for the plan's own use. It panics when the slots are used up,
// which is a bug in the compiler and does not depend on its input.
func (b *Builder) NewSlot() Slot {
	if b.next < SlotFree {
		b.next = SlotFree
	}
	if b.next == ownSlots {
		panic("plan: out of slots")
	}
	b.next++
	return b.next - 1
}

// Len is the number of operations so far.
func (b *Builder) Len() int { return len(b.ops) }

// Bytes copies v into the data, aligned to eight bytes.
func (b *Builder) Bytes(v []byte) Ptr {
	for (int(base)+len(b.data))%8 != 0 {
		b.data = append(b.data, 0)
	}
	p := Ptr(int(base) + len(b.data))
	b.data = append(b.data, v...)
	return p
}

// String copies s and a NUL into the data; equal strings are stored once. See HoldsNUL
// for a string that contains a NUL.
func (b *Builder) String(s string) Ptr {
	if b.nul == nil && strings.IndexByte(s, 0) >= 0 {
		bad := s // a copy, because &s would move s to the heap on every call
		b.nul = &bad
	}
	if p, ok := b.names[s]; ok {
		return p
	}
	if b.names == nil {
		// Room for a common container, allocated at once.
		b.names, b.data = make(map[string]Ptr, 256), slices.Grow(b.data, 16<<10)
	}
	p := Ptr(int(base) + len(b.data))
	b.data = append(append(b.data, s...), 0)
	b.names[s] = p
	return p
}

// Words stores 64-bit words.
func (b *Builder) Words(w ...uint64) Ptr {
	buf := make([]byte, 0, 8*len(w))
	for _, v := range w {
		buf = le64(buf, v)
	}
	return b.Bytes(buf)
}

// Struct stores words; some of them become addresses.
func (b *Builder) Struct(args ...Arg) Ptr {
	w := make([]uint64, len(args))
	for i, a := range args {
		w[i] = a.value
	}
	p := b.Words(w...)
	for i, a := range args {
		if a.kind == argPtr {
			b.relocs = append(b.relocs, uint32(p)+uint32(8*i))
		}
	}
	return p
}

// Strings stores a NULL-terminated array of pointers to strings, as execve
// wants it.
func (b *Builder) Strings(s []string) Ptr {
	args := make([]Arg, 0, len(s)+1)
	for _, v := range s {
		args = append(args, P(b.String(v)))
	}
	return b.Struct(append(args, V(0))...)
}

// Add appends a Call and returns it for further settings; the pointer is valid
// until the next Add.
func (b *Builder) Add(name string, nr uintptr, args ...Arg) *Op {
	o := Op{Kind: Call, Out: -1, NR: uint32(nr), Name: uint32(b.String(name))}
	for i, a := range args {
		o.A[i] = a.value
		switch a.kind {
		case argPtr:
			o.Ptrs |= 1 << i
		case argSlot:
			o.Slots |= 1 << i
		}
	}
	b.ops = append(b.ops, o)
	return &b.ops[len(b.ops)-1]
}

// AddStore appends a Store of slot s to p.
func (b *Builder) AddStore(name string, s Slot, p Ptr) {
	b.ops = append(b.ops, Op{Kind: Store, Out: -1, Name: uint32(b.String(name)), A: [6]uint64{uint64(s), uint64(p)}})
}

// AddSame appends a Same of n bytes at p and q.
func (b *Builder) AddSame(name string, p, q Ptr, n int) {
	b.ops = append(b.ops, Op{Kind: Same, Out: -1, Ptrs: 3, Name: uint32(b.String(name)), A: [6]uint64{uint64(p), uint64(q), uint64(n)}})
}

// At returns operation i, so that values can be set that were not known when it was
// added.
func (b *Builder) At(i int) *Op { return &b.ops[i] }

// Over makes o, the operation at index i, skip all operations added since.
func (b *Builder) Over(i int) { b.ops[i].Want = uint64(len(b.ops) - i - 1) }

// To keeps the result in s.
func (o *Op) To(s Slot) *Op { o.Out = int8(s); return o }

// Allow names one or two errnos that do not count as failure.
func (o *Op) Allow(errno ...uint16) *Op {
	if len(errno) > 0 {
		o.OK = errno[0]
	}
	if len(errno) > 1 {
		o.OK2 = errno[1]
	}
	return o
}

// Result makes the operation a Must with this result.
func (o *Op) Result(want uint64) *Op { o.Kind, o.Want = Must, want; return o }

// Encode returns the blob.
func (b *Builder) Encode() []byte {
	users := b.encodeUsers()
	data := b.data
	for (int(base)+len(data))%8 != 0 {
		data = append(data, 0)
	}
	h := Header{
		Magic: magic, Version: Version, Arch: arch, CloneFlags: b.flags, CgroupDir: uint32(b.cgroup), PidNS: uint32(b.pidNS),
		Given: b.given, Users: uint32(users), NumUsers: uint32(len(b.users)),
		NumOps: uint32(len(b.ops)), Ops: base + uint32(len(data)), NumRelocs: uint32(len(b.relocs)),
	}
	h.Relocs = h.Ops + h.NumOps*opSize
	h.Size = h.Relocs + 4*h.NumRelocs
	blob := make([]byte, 0, h.Size)
	blob = append(blob, unsafe.Slice((*byte)(unsafe.Pointer(&h)), headerSize)...)
	blob = append(blob, data...)
	if len(b.ops) > 0 {
		blob = append(blob, unsafe.Slice((*byte)(unsafe.Pointer(&b.ops[0])), len(b.ops)*int(opSize))...)
	}
	for _, r := range b.relocs {
		blob = append(blob, byte(r), byte(r>>8), byte(r>>16), byte(r>>24))
	}
	(*Header)(unsafe.Pointer(&blob[0])).Sum = sum(blob)
	return blob
}

func le64(b []byte, v uint64) []byte {
	return append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24), byte(v>>32), byte(v>>40), byte(v>>48), byte(v>>56))
}
