package secprofile_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/face/cri/secprofile"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/runtime/native/seccomp"
)

func compiled(t testing.TB, s *specs.LinuxSeccomp) seccomp.Filter {
	t.Helper()
	f, err := seccomp.Compile(s)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// values are arguments at which the conditions of the tests differ.
var values = []uint64{0, 1, 2, 3, 4, 8, 40, 41, 0x10000000, 0x7E020000, 0x20008, 0xffffffff, 1 << 40} //nolint:gochecknoglobals // constant

// calls are the numbers of the calls in the tests' profiles, and of others.
const calls, few = 500, 3

// compare compares an intersection with the two filters that the kernel would apply one after the other.
func compare(t *testing.T, base, with *specs.LinuxSeccomp, numbers uint32, exact bool) {
	t.Helper()
	got, err := secprofile.Intersect(base, with)
	if err != nil {
		if exact {
			t.Fatal(err)
		}
		return
	}
	a, b, both := compiled(t, base), compiled(t, with), compiled(t, got)
	for nr := range numbers {
		for _, x := range values {
			for _, y := range []uint64{0, 2, 40} {
				args := [6]uint64{x, y, x}
				want := a.Allows(nr, args) && b.Allows(nr, args)
				if allowed := both.Allows(nr, args); allowed && !want || exact && allowed != want {
					t.Fatalf("call %d (%s) with %v: the intersection permits it: %v, both profiles: %v\nbase %+v\nprofile %+v\nintersection %+v",
						nr, seccomp.CallName(nr), args, allowed, want, rules(base, nr), rules(with, nr), rules(got, nr))
				}
			}
		}
	}
}

func rules(s *specs.LinuxSeccomp, nr uint32) (found []specs.LinuxSyscall) {
	for _, r := range s.Syscalls {
		if slices.Contains(r.Names, seccomp.CallName(nr)) {
			found = append(found, specs.LinuxSyscall{Action: r.Action, Args: r.Args})
		}
	}
	return append(found, specs.LinuxSyscall{Names: []string{"others"}, Action: s.DefaultAction})
}

// random returns a profile of some calls with conditions that can contradict each other.
func random(r *rand.Rand) *specs.LinuxSeccomp {
	actions := []specs.LinuxSeccompAction{specs.ActAllow, specs.ActLog, specs.ActErrno, specs.ActKillProcess, specs.ActTrap}
	ops := []specs.LinuxSeccompOperator{specs.OpEqualTo, specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpGreaterThan, specs.OpGreaterEqual, specs.OpMaskedEqual}
	s := &specs.LinuxSeccomp{DefaultAction: actions[r.IntN(4)]}
	for range 1 + r.IntN(12) {
		rule := specs.LinuxSyscall{Names: []string{seccomp.CallName(uint32(r.IntN(2)))}, Action: actions[r.IntN(len(actions))]}
		for range r.IntN(3) {
			arg := specs.LinuxSeccompArg{Index: uint(r.IntN(2)), Op: ops[r.IntN(len(ops))], Value: values[r.IntN(6)]}
			if arg.Op == specs.OpMaskedEqual {
				arg.ValueTwo = arg.Value & uint64(r.IntN(8))
			}
			rule.Args = append(rule.Args, arg)
		}
		s.Syscalls = append(s.Syscalls, rule)
	}
	return s
}

// TestIntersectionsOnlyTighten compares intersections of random profiles with both profiles.
func TestIntersectionsOnlyTighten(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		compare(t, random(r), random(r), few, false)
	}
}

func defaultProfile(t *testing.T, capabilities ...string) *specs.LinuxSeccomp {
	t.Helper()
	s := &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: capabilities}}}
	if err := ocispec.DefaultSeccomp(s); err != nil {
		t.Fatal(err)
	}
	return s.Linux.Seccomp
}

func TestIntersectionsWithTheDefault(t *testing.T) {
	usual := defaultProfile(t)
	block := func(names ...string) *specs.LinuxSeccomp {
		return &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: names, Action: specs.ActErrno}}}
	}
	for name, with := range map[string]*specs.LinuxSeccomp{
		"itself":           usual,
		"with more rights": defaultProfile(t, "CAP_SYS_ADMIN", "CAP_BPF"),
		"everything":       {DefaultAction: specs.ActAllow},
		"nothing":          {DefaultAction: specs.ActErrno},
		"without two":      block("mkdir", "unshare"),
		"a part of one":    {DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"socket"}, Action: specs.ActErrno, Args: []specs.LinuxSeccompArg{{Index: 1, Op: specs.OpEqualTo, Value: 2}}}}},
		"a few":            {DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{{Names: []string{"read", "write", "personality", "mount"}, Action: specs.ActAllow}}},
		"a few, logged":    {DefaultAction: specs.ActKillProcess, Syscalls: []specs.LinuxSyscall{{Names: []string{"read", "socket"}, Action: specs.ActLog}}},
		"alternatives of one": {DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{{Names: []string{"personality"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{
			{Index: 0, Op: specs.OpEqualTo, Value: 8}, {Index: 0, Op: specs.OpEqualTo, Value: 0x7E020000},
		}}}},
	} {
		t.Run(name, func(t *testing.T) {
			compare(t, usual, with, calls, true)
			compare(t, with, usual, calls, true)
		})
	}
}

// TestDenialsKeepTheirAnswer shows that libc's ways out of a call that is missing still work.
func TestDenialsKeepTheirAnswer(t *testing.T) {
	got, err := secprofile.Intersect(defaultProfile(t), &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{
		{Names: []string{"read"}, Action: specs.ActAllow}, {Names: []string{"mount"}, Action: specs.ActKillProcess},
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"clone3": "SCMP_ACT_ERRNO 38", "read": "SCMP_ACT_ALLOW", "mount": "SCMP_ACT_KILL_PROCESS"}
	for _, r := range got.Syscalls {
		text := string(r.Action)
		if r.ErrnoRet != nil {
			text += fmt.Sprint(" ", *r.ErrnoRet)
		}
		if want[r.Names[0]] == text {
			delete(want, r.Names[0])
		}
	}
	if len(want) > 0 {
		t.Errorf("not found: %v in %+v", want, got.Syscalls)
	}
}

func TestIntersectionsThatAreRefused(t *testing.T) {
	cond := func(op specs.LinuxSeccompOperator, value, two uint64) []specs.LinuxSyscall {
		return []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Op: op, Value: value, ValueTwo: two}}}}
	}
	usual := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: cond(specs.OpNotEqual, 1, 0)}
	for want, with := range map[string]*specs.LinuxSeccomp{
		"cannot be combined":    {DefaultAction: specs.ActErrno, Syscalls: cond(specs.OpNotEqual, 2, 0)},
		"cannot be inverted":    {DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActErrno, Args: cond(specs.OpMaskedEqual, 1, 2)[0].Args}}},
		"no architecture":       {DefaultAction: specs.ActErrno, Architectures: []specs.Arch{specs.ArchS390X}},
		"SCMP_ACT_NOTIFY":       {DefaultAction: specs.ActNotify},
		"SCMP_ACT_TRACE":        {DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActTrace}}},
		"listenerPath":          {DefaultAction: specs.ActErrno, ListenerPath: "/x"},
		"argument 6":            {DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Index: 6, Op: specs.OpEqualTo}}}}},
		`operator "SCMP_CMP_X"`: {DefaultAction: specs.ActErrno, Syscalls: cond("SCMP_CMP_X", 1, 0)},
	} {
		usual.Architectures = []specs.Arch{specs.ArchX86_64}
		if _, err := secprofile.Intersect(usual, with); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// FuzzCheck checks that a profile of any bytes that is accepted can be compiled, and intersected or refused.
func FuzzCheck(f *testing.F) {
	f.Add([]byte(`{"defaultAction":"SCMP_ACT_ERRNO","archMap":[{"architecture":"SCMP_ARCH_X86_64"}],"syscalls":[{"names":["read"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"op":"SCMP_CMP_MASKED_EQ","value":3,"valueTwo":1}]}]}`))
	f.Add([]byte(`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"name":"mkdir","action":"SCMP_ACT_ERRNO","errnoRet":5}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if secprofile.Check(body) != nil {
			return
		}
		s := &specs.Spec{}
		p, err := secprofile.Parse(body, s)
		if err != nil {
			t.Fatal(err)
		}
		base := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{{Names: []string{"read", "mkdir"}, Action: specs.ActAllow}}}
		got, err := secprofile.Intersect(base, p)
		if err != nil {
			return
		}
		both, err := seccomp.Compile(got)
		if err != nil {
			return
		}
		for nr := range uint32(calls) {
			if name := seccomp.CallName(nr); both.Allows(nr, [6]uint64{}) && name != "read" && name != "mkdir" {
				t.Fatalf("it permits %s", name)
			}
		}
	})
}

// TestPairsOfConditions intersects each pair of conditions on one argument, once as permissions and once as a permission and a
// denial. Pairs that one condition cannot express are refused.
func TestPairsOfConditions(t *testing.T) {
	var all []specs.LinuxSeccompArg
	for _, op := range []specs.LinuxSeccompOperator{specs.OpEqualTo, specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpGreaterThan, specs.OpGreaterEqual, specs.OpMaskedEqual} {
		for _, v := range []uint64{0, 1, 2, 40, math.MaxUint64} {
			arg := specs.LinuxSeccompArg{Op: op, Value: v}
			if op == specs.OpMaskedEqual {
				arg.ValueTwo = v & 2
			}
			all = append(all, arg)
		}
	}
	of := func(fallback, action specs.LinuxSeccompAction, arg specs.LinuxSeccompArg) *specs.LinuxSeccomp {
		return &specs.LinuxSeccomp{DefaultAction: fallback, Syscalls: []specs.LinuxSyscall{{Names: []string{"write"}, Action: action, Args: []specs.LinuxSeccompArg{arg}}}}
	}
	refused := 0
	for _, x := range all {
		for _, y := range all {
			permit := of(specs.ActErrno, specs.ActAllow, x)
			for _, with := range []*specs.LinuxSeccomp{of(specs.ActErrno, specs.ActAllow, y), of(specs.ActAllow, specs.ActErrno, y)} {
				_, err := secprofile.Intersect(permit, with)
				if err != nil {
					refused++
				}
				compare(t, permit, with, few, err == nil)
			}
		}
	}
	if n := 2 * len(all) * len(all); refused > n/2 {
		t.Errorf("%d of %d pairs are refused", refused, n)
	}
}
