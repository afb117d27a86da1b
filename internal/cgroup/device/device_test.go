package device

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"
)

// run executes a program as the kernel does, for a device of a type and numbers.
func run(t testing.TB, p []insn, kind uint32, access Access, major, minor uint32) bool {
	t.Helper()
	context := map[int16]uint64{0: uint64(access)<<16 | uint64(kind), 4: uint64(major), 8: uint64(minor)}
	var regs [11]uint64
	for at, steps := 0, 0; at >= 0 && at < len(p) && steps < len(p); at, steps = at+1, steps+1 {
		i := p[at]
		dst, src := i.regs&15, i.regs>>4
		switch i.op {
		case opLoad:
			if src != regContext || dst == regContext {
				t.Fatalf("instruction %d reads by register %d", at, src)
			}
			regs[dst] = context[i.off]
		case opMove:
			regs[dst] = uint64(uint32(i.imm))
		case opCopy:
			regs[dst] = regs[src] & 0xffffffff
		case opAnd:
			regs[dst] = uint64(uint32(regs[dst]) & uint32(i.imm))
		case opShift:
			regs[dst] = uint64(uint32(regs[dst]) >> i.imm)
		case opUnequal:
			if regs[dst] != uint64(int64(i.imm)) {
				at += int(i.off)
			}
		case opEqual:
			if regs[dst] == uint64(int64(i.imm)) {
				at += int(i.off)
			}
		case opExit:
			return regs[regAnswer] != 0
		default:
			t.Fatalf("instruction %d has the operation %#x", at, i.op)
		}
	}
	t.Fatal("the program has no end")
	return false
}

// meant is the decision of rules: of each kind of access the last rule that fits decides.
func meant(rules []Rule, kind byte, access Access, major, minor int64) bool {
	decide := func(one Access) (allow, found bool) {
		for i := len(rules) - 1; i >= 0; i-- {
			r := rules[i]
			if r.Kind == All || r.Kind == kind && (r.Major == Any || r.Major == major) && (r.Minor == Any || r.Minor == minor) && r.Access&one != 0 {
				return r.Allow, true
			}
		}
		return false, false
	}
	for _, one := range []Access{Mknod, Read, Write} {
		if access&one == 0 {
			continue
		}
		if allow, found := decide(one); !found || !allow {
			return false
		}
	}
	return true
}

func kindOf(kind byte) uint32 {
	if kind == Block {
		return unix.BPF_DEVCG_DEV_BLOCK
	}
	return unix.BPF_DEVCG_DEV_CHAR
}

func TestRules(t *testing.T) {
	null, zero := func(a Access) Rule { return Rule{Allow: true, Kind: Char, Major: 1, Minor: 3, Access: a} }, Rule{Allow: true, Kind: Char, Major: 1, Minor: 5, Access: Read}
	none, all := Rule{Kind: All, Access: Full}, Rule{Allow: true, Kind: All, Access: Full}
	for _, tt := range []struct {
		name   string
		rules  []Rule
		kind   byte
		access Access
		minor  uint32
		want   bool
	}{
		{"no rule", nil, Char, Read, 3, false},
		{"all", []Rule{none, all}, Block, Full, 3, true},
		{"none", []Rule{all, none}, Block, Read, 3, false},
		{"one device", []Rule{none, null(Full)}, Char, Read | Write, 3, true},
		{"another one", []Rule{none, null(Full)}, Char, Read, 5, false},
		{"the same numbers of another kind", []Rule{none, null(Full)}, Block, Read, 3, false},
		{"two rules make an access", []Rule{none, null(Read), null(Write)}, Char, Read | Write, 3, true},
		{"more than is allowed", []Rule{none, null(Read), zero}, Char, Read | Write, 3, false},
		{"a hole in what is allowed", []Rule{none, {Allow: true, Kind: Char, Major: 1, Minor: Any, Access: Full}, {Kind: Char, Major: 1, Minor: 3, Access: Write}}, Char, Read | Write, 3, false},
		{"beside the hole", []Rule{none, {Allow: true, Kind: Char, Major: 1, Minor: Any, Access: Full}, {Kind: Char, Major: 1, Minor: 3, Access: Write}}, Char, Read, 3, true},
		{"a rule before one for all", []Rule{null(Full), none}, Char, Read, 3, false},
	} {
		p, err := compile(tt.rules)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if got := run(t, p, kindOf(tt.kind), tt.access, 1, tt.minor); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
	for _, bad := range []Rule{{Kind: 'p', Access: Full}, {Kind: Char, Major: 1 << 40, Access: Full}, {Kind: Block, Minor: -2, Access: Full}} {
		if _, err := compile([]Rule{bad}); err == nil {
			t.Errorf("%s is compiled", bad)
		}
	}
}

// rules makes rules of few different numbers, so that many fit the same device.
func rules(r *rand.Rand) (out []Rule) {
	for range r.IntN(8) {
		one := Rule{Allow: r.IntN(2) == 0, Kind: "ccbba"[r.IntN(5)], Major: r.Int64N(3) - 1, Minor: r.Int64N(3) - 1, Access: Access(1 + r.IntN(7))}
		out = append(out, one)
	}
	return out
}

// FuzzRules: the program decides as the rules mean, for every device and access.
func FuzzRules(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		list := rules(rand.New(rand.NewPCG(seed, 1)))
		p, err := compile(list)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []byte{Char, Block} {
			for access := Mknod; access <= Full; access++ {
				for major := range int64(3) {
					for minor := range int64(3) {
						if got, want := run(t, p, kindOf(kind), access, uint32(major), uint32(minor)), meant(list, kind, access, major, minor); got != want {
							t.Fatalf("%v: %c %d:%d %d is %t, want %t", list, kind, major, minor, access, got, want)
						}
					}
				}
			}
		}
	})
}

func TestAccess(t *testing.T) {
	for s, want := range map[string]string{"rwm": "rwm", "r": "r", "rm": "rm", "": "", "wr": "no", "rr": "no", "x": "no"} {
		a, ok := ParseAccess(s)
		got := "no"
		if ok {
			got = Rule{Access: a}.String()[len("\x00 0:0 "):]
		}
		if got != want {
			t.Errorf("%q is read as %q, want %q", s, got, want)
		}
	}
	if got := fmt.Sprint(Rule{Kind: Char, Major: 1, Minor: Any, Access: Read | Mknod}); got != "c 1:* rm" {
		t.Error(got)
	}
}
