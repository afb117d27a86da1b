package seccomp

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Allows reports whether the filter allows a call of this machine's own architecture
// without asking a listener. A nil Program allows nothing.
func (f Filter) Allows(nr uint32, args [6]uint64) bool {
	audit := uint32(unix.AUDIT_ARCH_X86_64)
	if runtime.GOARCH == "arm64" {
		audit = unix.AUDIT_ARCH_AARCH64
	}
	var a uint32
	for pc := 0; pc < len(f.Program); pc++ {
		in := f.Program[pc]
		var cond bool
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			switch {
			case in.K == offNR:
				a = nr
			case in.K == offArch:
				a = audit
			case in.K >= offArgs && in.K < offArgs+48:
				a = uint32(args[(in.K-offArgs)/8] >> (8 * ((in.K - offArgs) % 8)))
			default:
				return false
			}
			continue
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= in.K
			continue
		case unix.BPF_RET | unix.BPF_K:
			return in.K == unix.SECCOMP_RET_ALLOW || in.K == unix.SECCOMP_RET_LOG
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
			return false
		}
		if cond {
			pc += int(in.Jt)
		} else {
			pc += int(in.Jf)
		}
	}
	return false
}
