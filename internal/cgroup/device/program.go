package device

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// insn is an instruction, as struct bpf_insn.
type insn struct {
	op   uint8
	regs uint8 // the destination in the lower half, the source in the upper
	off  int16
	imm  int32
}

// The operations of the program.
const (
	opLoad    = unix.BPF_LDX | unix.BPF_MEM | unix.BPF_W // dst = *(u32 *)(src + off)
	opMove    = unix.BPF_ALU | unix.BPF_MOV | unix.BPF_K // dst = imm
	opCopy    = unix.BPF_ALU | unix.BPF_MOV | unix.BPF_X // dst = src
	opAnd     = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K // dst &= imm
	opShift   = unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K // dst >>= imm
	opUnequal = unix.BPF_JMP | unix.BPF_JNE | unix.BPF_K // if dst != imm, skip off instructions
	opEqual   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K // if dst == imm, skip off instructions
	opExit    = unix.BPF_JMP | unix.BPF_EXIT
)

// The registers of the program. The kernel gives struct bpf_cgroup_dev_ctx in regContext.
const (
	regAnswer  = iota
	regContext // access in the upper half of the first word and type in the lower; major; minor
	regType
	regAccess // what is asked for and no rule has allowed yet
	regMajor
	regMinor
)

// compile returns the program of rules that apply in their order: of each kind of access
// the last rule for the device decides, and without one it is denied. So the program
// looks at the last rule first. A rule for all devices decides everything that is left.
func compile(rules []Rule) ([]insn, error) {
	p := []insn{
		{op: opLoad, regs: regType | regContext<<4},
		{op: opCopy, regs: regAccess | regType<<4},
		{op: opAnd, regs: regType, imm: 0xffff},
		{op: opShift, regs: regAccess, imm: 16},
		{op: opLoad, regs: regMajor | regContext<<4, off: 4},
		{op: opLoad, regs: regMinor | regContext<<4, off: 8},
	}
	for i := len(rules) - 1; i >= 0; i-- {
		r := rules[i]
		if r.Kind == All {
			return append(p, answer(r.Allow)...), nil
		}
		block, err := r.block()
		if err != nil {
			return nil, fmt.Errorf("device rule %s: %w", r, err)
		}
		p = append(p, block...)
	}
	return append(p, answer(false)...), nil
}

// block returns the instructions of one rule. What the rule does not decide goes on
// behind them.
func (r Rule) block() (b []insn, err error) {
	kinds := map[byte]int32{Char: unix.BPF_DEVCG_DEV_CHAR, Block: unix.BPF_DEVCG_DEV_BLOCK}
	kind, ok := kinds[r.Kind]
	if !ok {
		return nil, fmt.Errorf("there is no kind %q", r.Kind)
	}
	b = append(b, insn{op: opUnequal, regs: regType, imm: kind})
	for _, n := range []struct {
		reg  uint8
		want int64
	}{{regMajor, r.Major}, {regMinor, r.Minor}} {
		switch {
		case n.want == Any:
		case n.want < 0 || n.want > math.MaxInt32:
			return nil, fmt.Errorf("no device has the number %d", n.want)
		default:
			b = append(b, insn{op: opUnequal, regs: n.reg, imm: int32(n.want)})
		}
	}
	switch {
	case r.Access == Full:
	case r.Allow:
		b = append(b, insn{op: opAnd, regs: regAccess, imm: int32(Full &^ r.Access)}, insn{op: opUnequal, regs: regAccess})
	default:
		b = append(b, insn{op: opCopy, regs: regAnswer | regAccess<<4}, insn{op: opAnd, regs: regAnswer, imm: int32(r.Access)}, insn{op: opEqual, regs: regAnswer})
	}
	b = append(b, answer(r.Allow)...)
	for i := range b {
		if b[i].op == opUnequal || b[i].op == opEqual {
			b[i].off = int16(len(b) - i - 1) // a block has ten instructions at most
		}
	}
	return b, nil
}

func answer(allow bool) []insn {
	move := insn{op: opMove, regs: regAnswer}
	if allow {
		move.imm = 1
	}
	return []insn{move, {op: opExit}}
}
