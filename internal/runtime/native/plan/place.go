package plan

import (
	"errors"
	"unsafe"
)

// Errors of Place. The plan was made by an agent on this node, so one that is refused
// was damaged or comes from an unsupported version.
var (
	ErrShort    = errors.New("plan: too short")
	ErrMagic    = errors.New("plan: not a plan, or of another version")
	ErrArch     = errors.New("plan: made for another architecture")
	ErrDamaged  = errors.New("plan: damaged: wrong checksum")
	ErrBounds   = errors.New("plan: offset out of range")
	ErrOperand  = errors.New("plan: unknown operation")
	ErrTooLarge = errors.New("plan: too large")
)

// Check reports whether blob is a plan that can be placed and run. It checks every
// offset, so that the child need not.
func Check(blob []byte) error {
	h, err := header(blob)
	if err != nil {
		return err
	}
	if h.Sum != sum(blob) {
		return ErrDamaged
	}
	dataEnd := h.Ops
	ops := opsOf(blob, h)
	for i := range ops {
		if err := checkOp(&ops[i], i, len(ops), dataEnd, blob); err != nil {
			return err
		}
	}
	for _, p := range []uint32{h.CgroupDir, h.PidNS} {
		if p != 0 && !stringAt(blob, p, dataEnd) {
			return ErrBounds
		}
	}
	if _, err := usersOf(blob, h); err != nil {
		return err
	}
	for _, at := range relocsOf(blob, h) {
		if at%8 != 0 || at < headerSize || at > dataEnd-8 {
			return ErrBounds
		}
		if to := *(*uint64)(unsafe.Pointer(&blob[at])); to < uint64(headerSize) || to >= uint64(dataEnd) {
			return ErrBounds
		}
	}
	return nil
}

func checkOp(o *Op, i, n int, dataEnd uint32, blob []byte) error {
	if o.Kind > Same || o.Out < -1 || int(o.Out) >= NumSlots || !stringAt(blob, o.Name, dataEnd) {
		return ErrOperand
	}
	if (o.Kind == Try || o.Kind == Jump) && o.Want > uint64(n-i-1) {
		return ErrBounds
	}
	if o.Kind == Store && (o.A[0] >= NumSlots || o.A[1] < uint64(headerSize) || o.A[1] > uint64(dataEnd-4) || o.A[1]%4 != 0) {
		return ErrBounds
	}
	if o.Kind == Fork && (o.Ptrs != 1 || o.A[0]%8 != 0 || o.A[0] < uint64(headerSize) || o.A[0] > uint64(dataEnd)-CloneArgsSize) {
		return ErrBounds
	}
	if o.Kind == Same && (o.Ptrs != 3 || o.A[2] > uint64(dataEnd) || o.A[0] > uint64(dataEnd)-o.A[2] || o.A[1] > uint64(dataEnd)-o.A[2]) {
		return ErrBounds
	}
	for j, a := range o.A {
		switch bit := uint8(1) << j; {
		case o.Ptrs&bit != 0 && o.Slots&bit != 0:
			return ErrOperand
		case o.Ptrs&bit != 0 && (a < uint64(headerSize) || a >= uint64(dataEnd)):
			return ErrBounds
		case o.Slots&bit != 0 && a >= NumSlots:
			return ErrBounds
		}
	}
	return nil
}

func header(blob []byte) (*Header, error) {
	if len(blob) < int(headerSize) {
		return nil, ErrShort
	}
	if len(blob) > MaxSize {
		return nil, ErrTooLarge
	}
	if uintptr(unsafe.Pointer(&blob[0]))%8 != 0 {
		return nil, ErrBounds
	}
	h := (*Header)(unsafe.Pointer(&blob[0]))
	switch {
	case h.Magic != magic || h.Version != Version:
		return nil, ErrMagic
	case h.Arch != arch:
		return nil, ErrArch
	case h.Given > MaxGiven || h.Size != uint32(len(blob)) || h.NumOps > MaxOps || h.NumRelocs > MaxSize/4:
		return nil, ErrBounds
	case h.Ops < headerSize+8 || h.Ops%8 != 0 || h.Relocs != h.Ops+h.NumOps*opSize || h.Size != h.Relocs+4*h.NumRelocs:
		return nil, ErrBounds
	}
	return h, nil
}

// stringAt reports whether a NUL-terminated string starts at off and ends before end.
func stringAt(blob []byte, off, end uint32) bool {
	if off < headerSize || off >= end {
		return false
	}
	for _, b := range blob[off:end] {
		if b == 0 {
			return true
		}
	}
	return false
}

func opsOf(blob []byte, h *Header) []Op {
	if h.NumOps == 0 {
		return nil
	}
	return unsafe.Slice((*Op)(unsafe.Pointer(&blob[h.Ops])), h.NumOps)
}

func relocsOf(blob []byte, h *Header) []uint32 {
	if h.NumRelocs == 0 {
		return nil
	}
	return unsafe.Slice((*uint32)(unsafe.Pointer(&blob[h.Relocs])), h.NumRelocs)
}

// Placed is a plan with addresses of its memory in place of offsets. That memory must not move, and
// must not be the garbage collector's, until the child has run.
type Placed struct {
	Header *Header
	Ops    []Op
	blob   []byte
	users  []User
}

// Place checks the plan in mem and turns its offsets into addresses. mem must be
// writable and must not move; usually it is a private mapping of the memory file that
// the plan came in.
func Place(mem []byte) (Placed, error) {
	if err := Check(mem); err != nil {
		return Placed{}, err
	}
	return PlaceChecked(mem), nil
}

// PlaceChecked is Place for memory that Check has accepted and that was not written to
// since.
func PlaceChecked(mem []byte) Placed {
	h := (*Header)(unsafe.Pointer(&mem[0]))
	users, _ := usersOf(mem, h)
	addr := uint64(uintptr(unsafe.Pointer(&mem[0])))
	for _, at := range relocsOf(mem, h) {
		*(*uint64)(unsafe.Pointer(&mem[at])) += addr
	}
	ops := opsOf(mem, h)
	for i := range ops {
		o := &ops[i]
		for j := range o.A {
			if o.Ptrs&(1<<j) != 0 {
				o.A[j] += addr
			}
		}
	}
	return Placed{Header: h, Ops: ops, blob: mem, users: users}
}

// Name returns the name of operation i, for an error.
func (p Placed) Name(i int) string {
	if i < 0 || i >= len(p.Ops) {
		return "?"
	}
	return cstring(p.blob, p.Ops[i].Name)
}

// CgroupDir returns the directory of the child's cgroup, or "".
func (p Placed) CgroupDir() string {
	if p.Header.CgroupDir == 0 {
		return ""
	}
	return cstring(p.blob, p.Header.CgroupDir)
}

// PidNS returns the file of the child's pid namespace, or "".
func (p Placed) PidNS() string {
	if p.Header.PidNS == 0 {
		return ""
	}
	return cstring(p.blob, p.Header.PidNS)
}

func cstring(blob []byte, off uint32) string {
	end := off
	for blob[end] != 0 {
		end++
	}
	return string(blob[off:end])
}
