package plan

import (
	"strconv"
	"unsafe"
)

// Print renders a plan for people, one operation a line: its number, name,
// system call and arguments. It does not run or change it.
func Print(blob []byte) (string, error) {
	if err := Check(blob); err != nil {
		return "", err
	}
	h, err := header(blob)
	if err != nil {
		return "", err
	}
	out := "clone flags 0x" + strconv.FormatUint(h.CloneFlags, 16)
	if h.CgroupDir != 0 {
		out += " into " + cstring(blob, h.CgroupDir)
	}
	if h.PidNS != 0 {
		out += " in pid namespace " + cstring(blob, h.PidNS)
	}
	out += "\n"
	users, err := usersOf(blob, h)
	if err != nil {
		return "", err
	}
	for _, u := range users {
		out += "user namespace -> slot" + strconv.Itoa(int(u.Slot)) + ": uids " + u.UIDs.String() + ", gids " + u.GIDs.String() + "\n"
	}
	for i, o := range opsOf(blob, h) {
		out += strconv.Itoa(i) + " " + cstring(blob, o.Name) + ": " + printOp(blob, h, &o) + "\n"
	}
	return out, nil
}

func printOp(blob []byte, h *Header, o *Op) string {
	switch o.Kind {
	case Store:
		return "store slot " + strconv.FormatUint(o.A[0], 10) + " at +" + strconv.FormatUint(o.A[1], 10)
	case Fork:
		return "clone with flags 0x" + strconv.FormatUint(*(*uint64)(unsafe.Pointer(&blob[o.A[0]])), 16) + " and end"
	case Jump:
		return "pass over " + strconv.FormatUint(o.Want, 10)
	}
	s := "call " + strconv.FormatUint(uint64(o.NR), 10) + "("
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
			s += printData(blob, uint32(a), h.Ops)
		case a > 1<<62:
			s += strconv.FormatInt(int64(a), 10)
		default:
			s += "0x" + strconv.FormatUint(a, 16)
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

// printData shows text as a string and anything else as its place.
func printData(blob []byte, off, end uint32) string {
	for i, b := range blob[off:end] {
		if b == 0 && i > 0 {
			return strconv.Quote(string(blob[off : int(off)+i]))
		}
		if b < ' ' || b > '~' || i > 4096 {
			break
		}
	}
	return "+" + strconv.FormatUint(uint64(off), 10)
}
