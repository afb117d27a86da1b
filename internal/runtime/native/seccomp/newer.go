package seccomp

import (
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// private is where the numbers of calls begin that only one architecture has (32-bit ARM's). They
// say nothing about a profile's age.
const private = 0x0f0000

// since are calls that fill a gap in the table, so that their number does not show their age. Each
// has the lowest number of the calls that were added after it: a profile that names no call from
// there on, and not the call itself, is older.
var since = map[string]uint32{ //nolint:gochecknoglobals // a table
	"uretprobe": 463, // Linux 6.11
	"uprobe":    470, // Linux 6.18
}

// defaults returns the action for calls that no rule of the profile decides. A call that is newer
// than the profile gets ENOSYS, so that libc and language runtimes fall back to an older one: one
// above the highest that the profile names, one that was added later with a lower number, and one
// that the table does not have. The others get the profile's default action, as do all when that
// allows the call or names none of this architecture.
func defaults(s *specs.LinuxSeccomp, a arch, def uint32) func(nr uint32) uint32 {
	last := a.last(s)
	switch s.DefaultAction {
	case specs.ActAllow, specs.ActLog, specs.ActTrace: // a tracer answers itself
		last = 0
	}
	if last == 0 {
		return func(uint32) uint32 { return def }
	}
	known := map[uint32]bool{}
	for name, nr := range a.calls {
		known[nr] = max(nr, since[name]) <= last
	}
	for _, r := range s.Syscalls { // with other arguments than the rule's
		for _, name := range r.Names {
			if nr, ok := a.calls[name]; ok {
				known[nr] = true
			}
		}
	}
	return func(nr uint32) uint32 {
		if known[nr] || nr >= private {
			return def
		}
		return unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	}
}

// last returns the number of the newest call that a profile names.
func (a arch) last(s *specs.LinuxSeccomp) (last uint32) {
	for _, r := range s.Syscalls {
		for _, name := range r.Names {
			if nr, ok := a.calls[name]; ok && nr < private {
				last = max(last, nr)
			}
		}
	}
	return last
}

// beyond is the first number above all of the table but the private ones.
func (a arch) beyond() (first uint32) {
	for _, nr := range a.calls {
		if nr < private {
			first = max(first, nr+1)
		}
	}
	return first
}
