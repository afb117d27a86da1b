package plan

import (
	"slices"
	"strconv"
	"unsafe"
)

// Print renders a plan for people: how the child is cloned, then one operation per line
// with its number, name, system call and arguments. It neither runs nor changes the
// plan.
func Print(blob []byte) (string, error) {
	head, lines, err := Lines(blob, nil)
	if err != nil {
		return "", err
	}
	out := ""
	for _, l := range head {
		out += l + "\n"
	}
	for i, l := range lines {
		out += strconv.Itoa(i) + " " + l + "\n"
	}
	return out, nil
}

// Lines returns Print's output, line by line and without numbers and header, so that two plans can
// be compared. call names system calls; if it is nil or returns "", the number is printed.
func Lines(blob []byte, call func(nr uint32) string) (head, ops []string, err error) {
	if err := Check(blob); err != nil {
		return nil, nil, err
	}
	h, err := header(blob)
	if err != nil {
		return nil, nil, err
	}
	users, err := usersOf(blob, h)
	if err != nil {
		return nil, nil, err
	}
	p := printer{blob: blob, end: h.Ops, call: call}
	p.look(h)
	first := "clone flags 0x" + strconv.FormatUint(h.CloneFlags, 16)
	if h.CgroupDir != 0 {
		first += " into " + cstring(blob, h.CgroupDir)
	}
	if h.PidNS != 0 {
		first += " in pid namespace " + cstring(blob, h.PidNS)
	}
	head = []string{first}
	for _, u := range users {
		head = append(head, "user namespace -> slot"+strconv.Itoa(int(u.Slot))+": uids "+u.UIDs.String()+", gids "+u.GIDs.String())
	}
	for _, o := range opsOf(blob, h) {
		ops = append(ops, cstring(blob, o.Name)+": "+p.op(&o))
	}
	return head, ops, nil
}

// printer prints data by its content, so that a plan reads the same wherever its parts
// are stored.
type printer struct {
	blob   []byte
	end    uint32
	starts []uint32            // where pieces of data begin, sorted
	points map[uint32]struct{} // words that are pointers
	call   func(nr uint32) string
}

// look finds the pieces of data: every offset that something points to begins one.
func (p *printer) look(h *Header) {
	p.points = map[uint32]struct{}{}
	p.starts = []uint32{h.CgroupDir, h.PidNS, h.Users}
	for _, o := range opsOf(p.blob, h) {
		p.starts = append(p.starts, o.Name)
		for j, a := range o.A {
			if o.Ptrs&(1<<j) != 0 {
				p.starts = append(p.starts, uint32(a))
			}
		}
	}
	for _, at := range relocsOf(p.blob, h) {
		p.points[at] = struct{}{}
		p.starts = append(p.starts, uint32(p.word(at)))
	}
	slices.Sort(p.starts)
	p.starts = slices.Compact(p.starts)
}

func (p *printer) word(at uint32) uint64 { return *(*uint64)(unsafe.Pointer(&p.blob[at])) }

// next returns where the piece at off ends.
func (p *printer) next(off uint32) uint32 {
	i, _ := slices.BinarySearch(p.starts, off+1)
	if i < len(p.starts) {
		return p.starts[i]
	}
	return p.end
}

func (p *printer) op(o *Op) string {
	switch o.Kind {
	case Store:
		return "store slot " + strconv.FormatUint(o.A[0], 10) + p.place(uint32(o.A[1]))
	case Fork:
		return "clone with flags 0x" + strconv.FormatUint(p.word(uint32(o.A[0])), 16) + " and end"
	case Same:
		return "compare " + p.data(uint32(o.A[0]), 0) + " and " + p.data(uint32(o.A[1]), 0) + ", " + strconv.FormatUint(o.A[2], 10) + " bytes"
	case Jump:
		return "pass over " + strconv.FormatUint(o.Want, 10)
	}
	name := ""
	if p.call != nil {
		name = p.call(o.NR)
	}
	if name == "" {
		name = "call " + strconv.FormatUint(uint64(o.NR), 10)
	}
	s := name + "("
	last := len(o.A)
	for last > 0 && o.A[last-1] == 0 && (o.Ptrs|o.Slots)&(1<<(last-1)) == 0 {
		last--
	}
	for j, a := range o.A[:last] {
		if j > 0 {
			s += ", "
		}
		switch {
		case o.Slots&(1<<j) != 0:
			s += "slot" + strconv.FormatUint(a, 10)
		case o.Ptrs&(1<<j) != 0:
			s += p.data(uint32(a), 0)
		default:
			s += number(a)
		}
	}
	s += ")"
	if o.Out >= 0 {
		s += " -> slot" + strconv.Itoa(int(o.Out))
	}
	switch o.Kind {
	case Must:
		s += " must be " + strconv.FormatUint(o.Want, 10)
	case Try:
		s += " else pass over " + strconv.FormatUint(o.Want, 10)
	}
	for _, e := range []uint16{o.OK, o.OK2} {
		if e != 0 {
			s += " or errno " + strconv.Itoa(int(e))
		}
	}
	return s
}

// place returns the position of off in its piece of data, if that is known.
func (p *printer) place(off uint32) string {
	i, exact := slices.BinarySearch(p.starts, off)
	if !exact {
		i--
	}
	if i < 0 || p.starts[i] < headerSize {
		return ""
	}
	piece := p.data(p.starts[i], 0)
	if piece[0] != '{' {
		return ""
	}
	return " at byte " + strconv.FormatUint(uint64(off-p.starts[i]), 10) + " of " + piece
}

func number(v uint64) string {
	if v > 1<<62 {
		return strconv.FormatInt(int64(v), 10)
	}
	return "0x" + strconv.FormatUint(v, 16)
}

// Limits for how much of one piece is printed, and how deep pointers are followed.
const (
	maxShown = 64
	maxDepth = 3
)

// data prints text as a string, and anything else as words, following those that are
// pointers.
func (p *printer) data(off uint32, depth int) string {
	_, pointer := p.points[off] // its bytes may look like text
	for i, b := range p.blob[off:p.end] {
		if pointer {
			break
		}
		if b == 0 && (i > 0 || p.next(off) == off+1) {
			return strconv.Quote(string(p.blob[off : int(off)+i]))
		}
		if b < ' ' || b > '~' || i > 4096 {
			break
		}
	}
	end := p.next(off)
	if off%8 != 0 || depth == maxDepth {
		return strconv.Quote(string(p.blob[off:end]))
	}
	s := "{"
	for at, n := off, 0; at+8 <= end; at, n = at+8, n+1 {
		if n > 0 {
			s += ", "
		}
		if n == maxShown {
			return s + "... " + strconv.Itoa(int(end-off)) + " bytes, sum " + strconv.FormatUint(sumWithout(p.blob[off:end], -1), 16) + "}"
		}
		if _, ok := p.points[at]; ok {
			s += p.data(uint32(p.word(at)), depth+1)
		} else {
			s += number(p.word(at))
		}
	}
	return s + "}"
}
