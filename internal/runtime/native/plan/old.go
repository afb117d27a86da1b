package plan

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"unsafe"
)

// Format version 1 belongs to protocol version 1: its header has no user namespaces, and
// it has no Fork. All its offsets are eight bytes less.
const (
	usersAt   = int(unsafe.Offsetof(Header{}.Users)) // where version 1 has its checksum
	usersSize = 8
)

// ErrNotInVersion1 means that a plan needs what a keeper of version 1 does not have.
var ErrNotInVersion1 = errors.New("plan: needs a newer keeper, for its user namespaces")

// ToVersion1 rewrites a plan for a keeper of version 1. It does not change blob.
func ToVersion1(blob []byte) ([]byte, error) {
	if err := Check(blob); err != nil {
		return nil, err
	}
	h, err := header(blob)
	if err != nil {
		return nil, err
	}
	if h.NumUsers > 0 || slices.ContainsFunc(opsOf(blob, h), func(o Op) bool { return o.Kind >= Fork }) {
		return nil, ErrNotInVersion1
	}
	out := bytes.Clone(blob)
	shift(out, h.Ops, h.NumOps, h.Relocs, h.NumRelocs, -usersSize)
	out = slices.Delete(out, usersAt, usersAt+usersSize)
	out[len(magic)-1] = 1
	binary.LittleEndian.PutUint32(out[8:], 1)
	binary.LittleEndian.PutUint64(out[usersAt:], sum1(out))
	return out, nil
}

// FromVersion1 rewrites a plan of version 1 for the current format. It returns anything
// else unchanged, for Check to refuse.
func FromVersion1(blob []byte) []byte {
	const old = int(headerSize) - usersSize
	if len(blob) < old || len(blob) > MaxSize || blob[len(magic)-1] != 1 || binary.LittleEndian.Uint32(blob[8:]) != 1 {
		return blob
	}
	if binary.LittleEndian.Uint64(blob[usersAt:]) != sum1(blob) {
		return blob
	}
	field := func(at uintptr) uint32 { return binary.LittleEndian.Uint32(blob[at:]) }
	ops, n := field(unsafe.Offsetof(Header{}.Ops)), field(unsafe.Offsetof(Header{}.NumOps))
	relocs, m := field(unsafe.Offsetof(Header{}.Relocs)), field(unsafe.Offsetof(Header{}.NumRelocs))
	if n > MaxOps || m > MaxSize/4 || ops%8 != 0 || uint64(ops)+uint64(n)*uint64(opSize) != uint64(relocs) || uint64(relocs)+4*uint64(m) != uint64(len(blob)) {
		return blob
	}
	out := bytes.Clone(blob)
	shift(out, ops, n, relocs, m, usersSize)
	out = slices.Insert(out, usersAt, make([]byte, usersSize)...)
	out[len(magic)-1] = Version
	binary.LittleEndian.PutUint32(out[8:], Version)
	binary.LittleEndian.PutUint64(out[usersAt+usersSize:], sum(out))
	return out
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
