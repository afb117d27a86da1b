package seccomp

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// run executes a filter as the kernel does, on one call.
func run(t *testing.T, prog []unix.SockFilter, nr, audit uint32, args [6]uint64) uint32 {
	t.Helper()
	word := func(off uint32) uint32 {
		switch {
		case off == offNR:
			return nr
		case off == offArch:
			return audit
		case off >= offArgs && off < offArgs+48:
			return uint32(args[(off-offArgs)/8] >> (8 * ((off - offArgs) % 8)))
		}
		t.Fatalf("load of offset %d", off)
		return 0
	}
	var a uint32
	for pc := 0; ; pc++ {
		if pc >= len(prog) {
			t.Fatal("the filter runs off its end")
		}
		in := prog[pc]
		cond := false
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = word(in.K)
			continue
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= in.K
			continue
		case unix.BPF_RET | unix.BPF_K:
			return in.K
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(in.K)
			continue
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			cond = a == in.K
		case unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K:
			cond = a > in.K
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			cond = a >= in.K
		default:
			t.Fatalf("instruction %#x", in.Code)
		}
		if cond {
			pc += int(in.Jt)
		} else {
			pc += int(in.Jf)
		}
	}
}

func nativeArch(t *testing.T) arch {
	t.Helper()
	a, err := arches(nil)
	if err != nil {
		t.Skip(err)
	}
	return a[0]
}

func holds(a specs.LinuxSeccompArg, v uint64) bool {
	switch a.Op {
	case specs.OpEqualTo:
		return v == a.Value
	case specs.OpNotEqual:
		return v != a.Value
	case specs.OpMaskedEqual:
		return v&a.Value == a.ValueTwo
	case specs.OpGreaterThan:
		return v > a.Value
	case specs.OpGreaterEqual:
		return v >= a.Value
	case specs.OpLessThan:
		return v < a.Value
	default:
		return v <= a.Value
	}
}

func TestEveryOperatorOnEveryHalf(t *testing.T) {
	native := nativeArch(t)
	nr := native.calls["read"]
	values := []uint64{0, 1, 2, 0xffffffff, 0x100000000, 0x100000001, 0x1ffffffff, 0x200000000, ^uint64(0), ^uint64(0) - 1}
	for _, op := range []specs.LinuxSeccompOperator{
		specs.OpEqualTo, specs.OpNotEqual, specs.OpMaskedEqual, specs.OpGreaterThan, specs.OpGreaterEqual, specs.OpLessThan, specs.OpLessEqual,
	} {
		for _, want := range values {
			arg := specs.LinuxSeccompArg{Index: 3, Value: want, ValueTwo: want & 0xff000000ff, Op: op}
			f, err := Compile(&specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{
				{Names: []string{"read"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{arg}},
			}})
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range values {
				got := run(t, f.Program, nr, native.audit, [6]uint64{9, 9, 9, v, 9, 9}) == unix.SECCOMP_RET_ALLOW
				if got != holds(arg, v) {
					t.Errorf("%s: value %#x against %#x: allowed %v", op, v, want, got)
				}
			}
		}
	}
}

// TestRandomProfilesMeanWhatTheySay compares compiled filters with the plain
// reading of their profile.
func TestRandomProfilesMeanWhatTheySay(t *testing.T) {
	native := nativeArch(t)
	var names []string
	for n := range native.calls {
		names = append(names, n)
	}
	slices.Sort(names)
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		profile := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno}
		for range 1 + rnd.IntN(5) {
			s := specs.LinuxSyscall{Action: []specs.LinuxSeccompAction{specs.ActAllow, specs.ActLog, specs.ActKillProcess}[rnd.IntN(3)]}
			for range 1 + rnd.IntN(150) {
				n := names[rnd.IntN(len(names))]
				if !mentioned(profile, n) && !slices.Contains(s.Names, n) {
					s.Names = append(s.Names, n)
				}
			}
			if rnd.IntN(2) == 0 {
				s.Args = []specs.LinuxSeccompArg{{Index: uint(rnd.IntN(6)), Value: uint64(rnd.IntN(4)), Op: specs.OpEqualTo}}
			}
			profile.Syscalls = append(profile.Syscalls, s)
		}
		f, err := Compile(profile)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			args := [6]uint64{1, 2, 3, 0, 1, 2}
			if got, want := run(t, f.Program, native.calls[n], native.audit, args), plain(t, profile, n, args); got != want {
				t.Fatalf("%s: %#x, want %#x", n, got, want)
			}
		}
		if got := run(t, f.Program, 100000, native.audit, [6]uint64{}); got != unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS) {
			t.Errorf("an unknown number gets %#x", got)
		}
	}
}

func mentioned(p *specs.LinuxSeccomp, name string) bool {
	return slices.ContainsFunc(p.Syscalls, func(s specs.LinuxSyscall) bool { return slices.Contains(s.Names, name) })
}

func plain(t *testing.T, p *specs.LinuxSeccomp, name string, args [6]uint64) uint32 {
	t.Helper()
	act := p.DefaultAction
	calls, last := nativeArch(t).calls, uint32(0)
	for _, s := range p.Syscalls {
		for _, n := range s.Names {
			last = max(last, calls[n])
		}
	}
	if !mentioned(p, name) && (calls[name] > last || name == "uretprobe" && last < 463 || name == "uprobe" && last < 470) {
		return unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	}
	for _, s := range p.Syscalls {
		if slices.Contains(s.Names, name) && (len(s.Args) == 0 || holds(s.Args[0], args[s.Args[0].Index])) {
			act = s.Action
		}
	}
	v, err := action(act, nil)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestForeignArchitecturesAreKilledAndX32IsRefused(t *testing.T) {
	native := nativeArch(t)
	f, err := Compile(&specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchX86}})
	if err != nil {
		t.Fatal(err)
	}
	if got := run(t, f.Program, 0, 0x12345678, [6]uint64{}); got != unix.SECCOMP_RET_KILL_PROCESS {
		t.Errorf("another architecture gets %#x", got)
	}
	if runtime.GOARCH != "amd64" {
		return
	}
	if got := run(t, f.Program, x32Bit|1, native.audit, [6]uint64{}); got != unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS) {
		t.Errorf("x32 gets %#x", got)
	}
	if got := run(t, f.Program, 1, unix.AUDIT_ARCH_I386, [6]uint64{}); got != unix.SECCOMP_RET_ALLOW {
		t.Errorf("i386 gets %#x", got)
	}
}

func TestErrnoAndUnknownNames(t *testing.T) {
	native := nativeArch(t)
	enosys := uint(unix.ENOSYS)
	f, err := Compile(&specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{
		{Names: []string{"clone3", "frobnicate"}, Action: specs.ActErrno, ErrnoRet: &enosys},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got := run(t, f.Program, native.calls["clone3"], native.audit, [6]uint64{}); got != unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS) {
		t.Errorf("%#x", got)
	}
	if !slices.Equal(f.Unknown, []string{"frobnicate"}) {
		t.Errorf("unknown: %v", f.Unknown)
	}
}

func TestBadProfilesAreRefusedByField(t *testing.T) {
	for name, p := range map[string]*specs.LinuxSeccomp{
		"action":   {DefaultAction: "SCMP_ACT_SMILE"},
		"flag":     {DefaultAction: specs.ActAllow, Flags: []specs.LinuxSeccompFlag{"X"}},
		"operator": {DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActErrno, Args: []specs.LinuxSeccompArg{{Op: "?"}}}}},
		"index":    {DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActErrno, Args: []specs.LinuxSeccompArg{{Index: 6, Op: specs.OpEqualTo}}}}},
	} {
		if _, err := Compile(p); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzCompile: any profile is refused or gives a filter that ends for every
// call with one of its own actions.
func FuzzCompile(f *testing.F) {
	f.Add([]byte(`{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["read","clone"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":5,"valueTwo":1,"op":"SCMP_CMP_MASKED_EQ"}]}]}`), uint32(3), uint64(4))
	f.Fuzz(func(t *testing.T, profile []byte, nr uint32, arg uint64) {
		var s specs.LinuxSeccomp
		if json.Unmarshal(profile, &s) != nil {
			return
		}
		c, err := Compile(&s)
		if err != nil {
			return
		}
		run(t, c.Program, nr, nativeArch(t).audit, [6]uint64{arg, arg, arg, arg, arg, arg})
	})
}
