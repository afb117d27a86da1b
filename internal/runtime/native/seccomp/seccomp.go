// Package seccomp compiles the seccomp section of an OCI spec into a BPF filter. It is
// pure: it installs nothing, and the only fact of this machine that it uses is the
// architecture.
//
// The filter first checks the architecture, then finds the system call by binary search,
// then compares arguments. System calls that are newer than the profile get ENOSYS; see
// defaults. Start at Compile.
package seccomp

//go:generate go run ./gen

import (
	"fmt"
	"runtime"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Filter is a compiled filter.
type Filter struct {
	Program []unix.SockFilter
	// Flags are SECCOMP_FILTER_FLAG_* bits.
	Flags uint64
	// Notify is set if an action notifies a listener. The filter must then be installed
	// with SECCOMP_FILTER_FLAG_NEW_LISTENER.
	Notify bool
	// Unknown are names of system calls that this architecture's table does not have.
	// They get the default action, as with libseccomp.
	Unknown []string
}

// Offsets in struct seccomp_data.
const (
	offNR   = 0
	offArch = 4
	offArgs = 16
)

// x32Bit marks the calls of the x32 ABI, which share AUDIT_ARCH_X86_64.
const x32Bit = 0x40000000

// arch is one system call table.
type arch struct {
	audit uint32
	calls map[string]uint32
	x86   bool // with the x32 ABI's bit
}

func arches(spec []specs.Arch) ([]arch, error) {
	var native arch
	switch runtime.GOARCH {
	case "amd64":
		native = arch{unix.AUDIT_ARCH_X86_64, callsAMD64(), true}
	case "arm64":
		native = arch{unix.AUDIT_ARCH_AARCH64, callsARM64(), false}
	default:
		return nil, fmt.Errorf("seccomp: no system call table for %s: %w", runtime.GOARCH, errdefs.ErrNotImplemented)
	}
	found := []arch{native}
	for _, a := range spec {
		switch {
		case a == specs.ArchX86 && runtime.GOARCH == "amd64":
			found = append(found, arch{unix.AUDIT_ARCH_I386, calls386(), false})
		case a == specs.ArchARM && runtime.GOARCH == "arm64":
			found = append(found, arch{unix.AUDIT_ARCH_ARM, callsARM(), false})
		}
		// other architectures cannot run here, and x32 is refused below
	}
	return found, nil
}

// Compile turns a spec's seccomp section into a filter. Errors are
// InvalidArgument and name the field.
func Compile(s *specs.LinuxSeccomp) (Filter, error) {
	var f Filter
	def, err := action(s.DefaultAction, s.DefaultErrnoRet)
	if err != nil {
		return f, fmt.Errorf("seccomp: default action: %w", err)
	}
	if f.Flags, err = flags(s.Flags); err != nil {
		return f, err
	}
	tables, err := arches(s.Architectures)
	if err != nil {
		return f, err
	}
	unknown := map[string]bool{}
	var sections [][]unix.SockFilter
	for _, a := range tables {
		rules, err := rulesFor(s, a, def, unknown)
		if err != nil {
			return f, err
		}
		sections = append(sections, section(a, rules, defaults(s, a, def)))
	}
	f.Program = assemble(tables, sections)
	if len(f.Program) > unix.BPF_MAXINSNS {
		return f, fmt.Errorf("seccomp: the filter has %d instructions, the kernel takes %d: %w", len(f.Program), unix.BPF_MAXINSNS, errdefs.ErrInvalidArgument)
	}
	f.Notify = s.DefaultAction == specs.ActNotify
	for _, r := range s.Syscalls {
		f.Notify = f.Notify || r.Action == specs.ActNotify
	}
	if !f.Notify { // the kernel accepts the flag only with a listener
		f.Flags &^= unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	}
	for name := range unknown {
		f.Unknown = append(f.Unknown, name)
	}
	slices.Sort(f.Unknown)
	return f, nil
}

func flags(names []specs.LinuxSeccompFlag) (bits uint64, err error) {
	for _, n := range names {
		switch n {
		case specs.LinuxSeccompFlagLog:
			bits |= unix.SECCOMP_FILTER_FLAG_LOG
		case specs.LinuxSeccompFlagSpecAllow:
			bits |= unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
		case specs.LinuxSeccompFlagWaitKillableRecv:
			bits |= unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
		case "SECCOMP_FILTER_FLAG_TSYNC": // the process has one thread, so the flag changes nothing
		default:
			return 0, fmt.Errorf("seccomp: flag %q: unknown: %w", n, errdefs.ErrInvalidArgument)
		}
	}
	return bits, nil
}

func action(a specs.LinuxSeccompAction, errno *uint) (uint32, error) {
	data := uint32(unix.EPERM)
	if errno != nil {
		if *errno > 0xffff {
			return 0, fmt.Errorf("errno %d: %w", *errno, errdefs.ErrInvalidArgument)
		}
		data = uint32(*errno)
	}
	switch a {
	case specs.ActKill, specs.ActKillThread:
		return unix.SECCOMP_RET_KILL_THREAD, nil
	case specs.ActKillProcess:
		return unix.SECCOMP_RET_KILL_PROCESS, nil
	case specs.ActTrap:
		return unix.SECCOMP_RET_TRAP, nil
	case specs.ActErrno:
		return unix.SECCOMP_RET_ERRNO | data, nil
	case specs.ActTrace:
		return unix.SECCOMP_RET_TRACE | data, nil
	case specs.ActAllow:
		return unix.SECCOMP_RET_ALLOW, nil
	case specs.ActLog:
		return unix.SECCOMP_RET_LOG, nil
	case specs.ActNotify:
		return unix.SECCOMP_RET_USER_NOTIF, nil
	default:
		return 0, fmt.Errorf("%q: unknown: %w", a, errdefs.ErrInvalidArgument)
	}
}

// rule is the rule for one system call: the first branch with matching arguments decides, otherwise
// the default.
type rule struct {
	nr       uint32
	branches []branch
}

type branch struct {
	args   []specs.LinuxSeccompArg
	action uint32
}

func rulesFor(s *specs.LinuxSeccomp, a arch, def uint32, unknown map[string]bool) ([]rule, error) {
	by := map[uint32]*rule{}
	for i, r := range s.Syscalls {
		act, err := action(r.Action, r.ErrnoRet)
		if err != nil {
			return nil, fmt.Errorf("seccomp: syscalls[%d]: action: %w", i, err)
		}
		for _, arg := range r.Args {
			if arg.Index > 5 {
				return nil, fmt.Errorf("seccomp: syscalls[%d]: argument index %d: %w", i, arg.Index, errdefs.ErrInvalidArgument)
			}
			if !knownOp(arg.Op) {
				return nil, fmt.Errorf("seccomp: syscalls[%d]: operator %q: unknown: %w", i, arg.Op, errdefs.ErrInvalidArgument)
			}
		}
		if act == def {
			continue
		}
		for _, name := range r.Names {
			nr, ok := a.calls[name]
			if !ok {
				unknown[name] = true
				continue
			}
			if by[nr] == nil {
				by[nr] = &rule{nr: nr}
			}
			by[nr].branches = append(by[nr].branches, branches(r.Args, act)...)
		}
	}
	rules := make([]rule, 0, len(by))
	var numbers []int
	for nr := range by {
		numbers = append(numbers, int(nr))
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		r := by[uint32(n)]
		// A branch without conditions ends the list. Put the conditional ones first,
		// because a rule for some arguments is meant as an exception.
		var first, last []branch
		for _, b := range r.branches {
			if len(b.args) > 0 {
				first = append(first, b)
			} else {
				last = append(last, b)
			}
		}
		rules = append(rules, rule{nr: r.nr, branches: append(first, last...)})
	}
	return rules, nil
}

// branches returns the alternatives of one entry. Conditions on different arguments must
// all hold; several conditions on one argument are alternatives, as runc has always
// treated them, although the specification now says otherwise.
func branches(args []specs.LinuxSeccompArg, act uint32) []branch {
	seen := map[uint]int{}
	for _, a := range args {
		seen[a.Index]++
	}
	for _, n := range seen {
		if n > 1 {
			alt := make([]branch, len(args))
			for i, a := range args {
				alt[i] = branch{[]specs.LinuxSeccompArg{a}, act}
			}
			return alt
		}
	}
	return []branch{{args, act}}
}

func knownOp(op specs.LinuxSeccompOperator) bool {
	switch op {
	case specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpEqualTo, specs.OpGreaterEqual, specs.OpGreaterThan, specs.OpMaskedEqual:
		return true
	}
	return false
}

// CallName returns the name of a system call of this program's architecture, or "" for
// an unknown number.
func CallName(nr uint32) string {
	table := callsAMD64()
	if runtime.GOARCH == "arm64" {
		table = callsARM64()
	}
	for name, n := range table {
		if n == nr {
			return name
		}
	}
	return ""
}
