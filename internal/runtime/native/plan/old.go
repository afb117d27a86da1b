package plan

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"unsafe"
)

// Format version 2 has fewer slots, at the end of its header: it cannot give a program
// descriptors. All its offsets are moreSlots bytes less.
//
// Format version 1 belongs to protocol version 1: its header has no user namespaces, and
// it has no Fork. All its offsets are eight bytes less than version 2's.
const (
	moreSlots   = (NumSlots - ownSlots) * 8
	headerSize2 = int(headerSize) - moreSlots
	usersAt     = int(unsafe.Offsetof(Header{}.Users)) // where version 1 has its checksum
	usersSize   = 8
)

// Errors of plans that need features of newer keepers.
var (
	ErrNotInVersion1 = errors.New("plan: needs a newer keeper, for its user namespaces")
	ErrNotInVersion2 = errors.New("plan: needs a newer keeper, for the descriptors that the program is given")
)

// ToVersion2 rewrites a plan for a keeper of version 2. It does not change blob.
func ToVersion2(blob []byte) ([]byte, error) {
	if err := Check(blob); err != nil {
		return nil, err
	}
	h, err := header(blob)
	if err != nil {
		return nil, err
	}
	if h.Given > 0 || slices.ContainsFunc(opsOf(blob, h), usesGiven) {
		return nil, ErrNotInVersion2
	}
	out := bytes.Clone(blob)
	shift(out, h.Ops, h.NumOps, h.Relocs, h.NumRelocs, -moreSlots)
	shiftUsers(out, -moreSlots)
	out = slices.Delete(out, headerSize2, int(headerSize))
	stamp(out, 2, sum)
	return out, nil
}

// usesGiven reports whether an operation names a slot that version 2 does not have.
func usesGiven(o Op) bool {
	for j, a := range o.A {
		if o.Slots&(1<<j) != 0 && a >= ownSlots {
			return true
		}
	}
	return o.Out >= ownSlots || o.Kind == Store && o.A[0] >= ownSlots
}

// FromVersion2 rewrites a plan of version 2 for the current format. It returns anything
// else unchanged, for Check to refuse.
func FromVersion2(blob []byte) []byte {
	if !isVersion(blob, 2, headerSize2, sum) {
		return blob
	}
	out, ok := grow(blob, headerSize2, moreSlots)
	if !ok {
		return blob
	}
	shiftUsers(out, moreSlots)
	stamp(out, Version, sum)
	return out
}

// ToVersion1 rewrites a plan for a keeper of version 1. It does not change blob.
func ToVersion1(blob []byte) ([]byte, error) {
	out, err := ToVersion2(blob)
	if err != nil {
		return nil, err
	}
	h, err := header(blob)
	if err != nil {
		return nil, err
	}
	if h.NumUsers > 0 || slices.ContainsFunc(opsOf(blob, h), func(o Op) bool { return o.Kind >= Fork }) {
		return nil, ErrNotInVersion1
	}
	shift(out, h.Ops-moreSlots, h.NumOps, h.Relocs-moreSlots, h.NumRelocs, -usersSize)
	out = slices.Delete(out, usersAt, usersAt+usersSize)
	stamp(out, 1, sum1)
	return out, nil
}

// FromVersion1 rewrites a plan of version 1 for the current format. It returns anything
// else unchanged, for Check to refuse.
func FromVersion1(blob []byte) []byte {
	if !isVersion(blob, 1, headerSize2-usersSize, sum1) {
		return blob
	}
	out, ok := grow(blob, usersAt, usersSize)
	if !ok {
		return blob
	}
	stamp(out, 2, sum)
	return FromVersion2(out)
}

// sumAt returns where the checksum is in a plan of a version.
func sumAt(version byte) int {
	if version == 1 {
		return usersAt
	}
	return usersAt + usersSize
}

// stamp writes version and checksum.
func stamp(blob []byte, version byte, sum func([]byte) uint64) {
	blob[len(magic)-1] = version
	binary.LittleEndian.PutUint32(blob[8:], uint32(version))
	binary.LittleEndian.PutUint64(blob[sumAt(version):], sum(blob))
}

// isVersion reports whether blob is whole and of a version.
func isVersion(blob []byte, version byte, headerSize int, sum func([]byte) uint64) bool {
	return len(blob) >= headerSize && len(blob) <= MaxSize && blob[len(magic)-1] == version && binary.LittleEndian.Uint32(blob[8:]) == uint32(version) &&
		binary.LittleEndian.Uint64(blob[sumAt(version):]) == sum(blob)
}

// grow inserts n zero bytes into the header of an old plan. It reports false if the plan's own
// numbers do not fit its size.
func grow(blob []byte, at, n int) ([]byte, bool) {
	field := func(at uintptr) uint32 { return binary.LittleEndian.Uint32(blob[at:]) }
	ops, numOps := field(unsafe.Offsetof(Header{}.Ops)), field(unsafe.Offsetof(Header{}.NumOps))
	relocs, numRelocs := field(unsafe.Offsetof(Header{}.Relocs)), field(unsafe.Offsetof(Header{}.NumRelocs))
	if numOps > MaxOps || numRelocs > MaxSize/4 || ops%8 != 0 || uint64(ops)+uint64(numOps)*uint64(opSize) != uint64(relocs) || uint64(relocs)+4*uint64(numRelocs) != uint64(len(blob)) {
		return nil, false
	}
	out := bytes.Clone(blob)
	shift(out, ops, numOps, relocs, numRelocs, n)
	return slices.Insert(out, at, make([]byte, n)...), true
}

// shift adds delta to every offset in blob; the bytes themselves are moved afterwards.
func shift(blob []byte, ops, numOps, relocs, numRelocs uint32, delta int) {
	add32 := func(at int) {
		if v := binary.LittleEndian.Uint32(blob[at:]); v != 0 {
			binary.LittleEndian.PutUint32(blob[at:], v+uint32(delta))
		}
	}
	add64 := func(at int) {
		binary.LittleEndian.PutUint64(blob[at:], binary.LittleEndian.Uint64(blob[at:])+uint64(delta))
	}
	for i := range int(numRelocs) {
		at := int(relocs) + 4*i
		if word := binary.LittleEndian.Uint32(blob[at:]); uint64(word)+8 <= uint64(ops) {
			add64(int(word))
		}
		add32(at)
	}
	for i := range int(numOps) {
		at := int(ops) + i*int(opSize)
		var o Op
		add32(at + int(unsafe.Offsetof(o.Name)))
		args := at + int(unsafe.Offsetof(o.A))
		for j := range len(o.A) {
			if blob[at+int(unsafe.Offsetof(o.Ptrs))]&(1<<j) != 0 {
				add64(args + 8*j)
			}
		}
		if Kind(blob[at+int(unsafe.Offsetof(o.Kind))]) == Store {
			add64(args + 8)
		}
	}
	var h Header
	for _, f := range []uintptr{unsafe.Offsetof(h.Size), unsafe.Offsetof(h.Ops), unsafe.Offsetof(h.Relocs), unsafe.Offsetof(h.CgroupDir), unsafe.Offsetof(h.PidNS)} {
		add32(int(f))
	}
}

// shiftUsers adds delta to the offset of the user namespaces, which version 1 does not have.
func shiftUsers(blob []byte, delta int) {
	if v := binary.LittleEndian.Uint32(blob[usersAt:]); v != 0 {
		binary.LittleEndian.PutUint32(blob[usersAt:], v+uint32(delta))
	}
}

// sum1 returns the checksum of version 1: FNV-1a over the bytes of the blob, with the
// checksum field taken as zero.
func sum1(blob []byte) uint64 {
	h := uint64(sumOffset)
	for i, b := range blob {
		if i >= usersAt && i < usersAt+8 {
			b = 0
		}
		h = (h ^ uint64(b)) * sumPrime
	}
	return h
}
