package seccomp

import (
	"math"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func load(off uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
}

func ret(v uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: v} }

func jump(over int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(over)}
}

// test compares and jumps 8-bit distances: over jt instructions if the comparison holds,
// otherwise over jf.
func test(op uint16, k uint32, jt, jf int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: k, Jt: uint8(jt), Jf: uint8(jf)}
}

// assemble puts a dispatcher on the architecture before the sections. A call of an
// architecture without a section kills the process, because it could bypass every rule.
func assemble(tables []arch, sections [][]unix.SockFilter) []unix.SockFilter {
	prog := []unix.SockFilter{load(offArch)}
	for i, a := range tables {
		// A conditional jump cannot reach over a section.
		prog = append(prog, test(unix.BPF_JEQ, a.audit, 1, 0), jump(len(sections[i])))
		prog = append(prog, sections[i]...)
	}
	return append(prog, ret(unix.SECCOMP_RET_KILL_PROCESS))
}

// section is the filter for one architecture.
func section(a arch, rules []rule, def func(nr uint32) uint32) []unix.SockFilter {
	prog := []unix.SockFilter{load(offNR)}
	if a.x86 {
		prog = append(prog, test(unix.BPF_JGE, x32Bit, 0, 1), ret(unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS)))
	}
	return append(prog, search(a.spans(rules, def))...)
}

// span is a range of system call numbers with the same rule, up to the next span's
// start.
type span struct {
	from     uint32
	branches []branch
	def      uint32
}

func (s span) same(t span) bool {
	return s.def == t.def && slices.EqualFunc(s.branches, t.branches, func(x, y branch) bool {
		return x.action == y.action && slices.Equal(x.args, y.args)
	})
}

// spans returns the action of each number. def is the action for calls without a rule; it is the
// same for all numbers from beyond on, and for all from private on.
func (a arch) spans(rules []rule, def func(nr uint32) uint32) []span {
	var all []span
	add := func(s span) {
		if len(all) == 0 || !all[len(all)-1].same(s) {
			all = append(all, s)
		}
	}
	beyond := a.beyond()
	fill := func(from, to uint32) { // [from, to)
		for nr := from; nr < min(to, beyond); nr++ {
			add(span{nr, nil, def(nr)})
		}
		for _, nr := range []uint32{max(from, beyond), max(from, private)} {
			if nr < to {
				add(span{nr, nil, def(nr)})
			}
		}
	}
	next := uint32(0)
	for _, r := range rules {
		fill(next, r.nr)
		add(span{r.nr, r.branches, def(r.nr)})
		next = r.nr + 1
	}
	fill(next, math.MaxUint32)
	return all
}

// search finds the span for the number in the accumulator.
func search(all []span) []unix.SockFilter {
	if len(all) == 1 {
		return leaf(all[0])
	}
	mid := len(all) / 2
	left, right := search(all[:mid]), search(all[mid:])
	if len(left) < 256 {
		return slices.Concat([]unix.SockFilter{test(unix.BPF_JGE, all[mid].from, len(left), 0)}, left, right)
	}
	return slices.Concat([]unix.SockFilter{test(unix.BPF_JGE, all[mid].from, 0, 1), jump(len(left))}, left, right)
}

// leaf compares the arguments for each branch in turn.
func leaf(s span) []unix.SockFilter {
	var prog []unix.SockFilter
	for _, b := range s.branches {
		body := []unix.SockFilter{ret(b.action)}
		for _, a := range slices.Backward(b.args) {
			body = append(compare(a, len(body)), body...)
		}
		prog = append(prog, body...)
		if len(b.args) == 0 {
			return prog
		}
	}
	return append(prog, ret(s.def))
}

// compare falls through if the argument matches, and otherwise jumps over the skip
// instructions that follow it. Registers have 64 bits and the filter's words 32, so the
// high half is compared first.
func compare(a specs.LinuxSeccompArg, skip int) []unix.SockFilter {
	lo, hi := offArgs+8*uint32(a.Index), offArgs+8*uint32(a.Index)+4
	vlo, vhi := uint32(a.Value), uint32(a.Value>>32)
	and := func(mask uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: mask}
	}
	switch a.Op {
	case specs.OpEqualTo:
		return []unix.SockFilter{load(hi), test(unix.BPF_JEQ, vhi, 0, 2+skip), load(lo), test(unix.BPF_JEQ, vlo, 0, skip)}
	case specs.OpNotEqual:
		return []unix.SockFilter{load(hi), test(unix.BPF_JEQ, vhi, 0, 2), load(lo), test(unix.BPF_JEQ, vlo, skip, 0)}
	case specs.OpMaskedEqual:
		// Value is the mask, ValueTwo the expected result.
		wlo, whi := uint32(a.ValueTwo), uint32(a.ValueTwo>>32)
		return []unix.SockFilter{
			load(hi), and(vhi), test(unix.BPF_JEQ, whi, 0, 3+skip),
			load(lo), and(vlo), test(unix.BPF_JEQ, wlo, 0, skip),
		}
	case specs.OpGreaterThan, specs.OpGreaterEqual:
		op := uint16(unix.BPF_JGT)
		if a.Op == specs.OpGreaterEqual {
			op = unix.BPF_JGE
		}
		return []unix.SockFilter{
			load(hi), test(unix.BPF_JGT, vhi, 3, 0), test(unix.BPF_JEQ, vhi, 0, 2+skip),
			load(lo), test(op, vlo, 0, skip),
		}
	default: // less than, less or equal: the inverse of these
		op := uint16(unix.BPF_JGE)
		if a.Op == specs.OpLessEqual {
			op = unix.BPF_JGT
		}
		return []unix.SockFilter{
			load(hi), test(unix.BPF_JGT, vhi, 3+skip, 0), test(unix.BPF_JEQ, vhi, 0, 2),
			load(lo), test(op, vlo, skip, 0),
		}
	}
}
