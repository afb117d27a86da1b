package seccomp

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

const (
	eperm  = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	enosys = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
)

// tables are all that some machine has, also those that this one cannot run.
func tables() map[string]arch {
	return map[string]arch{
		"amd64": {unix.AUDIT_ARCH_X86_64, callsAMD64(), true}, "386": {unix.AUDIT_ARCH_I386, calls386(), false},
		"arm64": {unix.AUDIT_ARCH_AARCH64, callsARM64(), false}, "arm": {unix.AUDIT_ARCH_ARM, callsARM(), false},
	}
}

// compileFor compiles a profile for one table.
func compileFor(t *testing.T, s *specs.LinuxSeccomp, a arch) []unix.SockFilter {
	t.Helper()
	def, err := action(s.DefaultAction, s.DefaultErrnoRet)
	if err != nil {
		t.Fatal(err)
	}
	rules, err := rulesFor(s, a, def, map[string]bool{})
	if err != nil {
		t.Fatal(err)
	}
	return assemble([]arch{a}, [][]unix.SockFilter{section(a, rules, defaults(s, a, def))})
}

func TestCallsNewerThanTheProfileAreAnsweredAsUnknown(t *testing.T) {
	profile := func(def specs.LinuxSeccompAction, names ...string) *specs.LinuxSeccomp {
		return &specs.LinuxSeccomp{DefaultAction: def, Syscalls: []specs.LinuxSyscall{{Names: names, Action: specs.ActAllow}}}
	}
	old := profile(specs.ActErrno, "read", "set_tls", "openat2")
	for name, a := range tables() {
		want := func(s *specs.LinuxSeccomp, call string, nr, want uint32) {
			t.Helper()
			if got := run(t, compileFor(t, s, a), nr, a.audit, [6]uint64{}); got != want {
				t.Errorf("%s: %s (%d) gets %#x, want %#x", name, call, nr, got, want)
			}
		}
		for call, action := range map[string]uint32{
			"read": unix.SECCOMP_RET_ALLOW, "openat2": unix.SECCOMP_RET_ALLOW, // named
			"write": eperm, "clone3": eperm, "io_uring_setup": eperm, // older than the newest that is named
			"faccessat2": enosys, "futex_waitv": enosys, "listns": enosys, "uretprobe": enosys, "uprobe": enosys, // newer
			"cacheflush": eperm, "set_tls": unix.SECCOMP_RET_ALLOW, // 32-bit ARM's own
		} {
			if nr, ok := a.calls[call]; ok {
				want(old, call, nr, action)
			}
		}
		want(old, "a call of tomorrow", 600, enosys)
		want(old, "a number in a gap", 415+map[string]uint32{"386": 200, "arm": 200}[name], enosys)
		if name == "arm" {
			want(old, "an unknown private call", private+77, eperm)
		}
		uretprobe := profile(specs.ActErrno, "read", "setxattrat")
		if nr, ok := a.calls["uretprobe"]; ok {
			want(uretprobe, "uretprobe of a younger profile", nr, eperm)
		}
		// It is for profiles that forbid.
		for _, def := range []specs.LinuxSeccompAction{specs.ActAllow, specs.ActLog, specs.ActTrace} {
			act, err := action(def, nil)
			if err != nil {
				t.Fatal(err)
			}
			want(profile(def, "read"), "a call of tomorrow, default "+string(def), 600, act)
		}
		want(profile(specs.ActKillProcess, "openat2"), "a call of tomorrow, default kill", 600, enosys)
		want(profile(specs.ActKillProcess, "openat2"), "write, default kill", a.calls["write"], unix.SECCOMP_RET_KILL_PROCESS)
		// A profile without a name of this architecture says nothing of its age.
		want(profile(specs.ActErrno, "frobnicate"), "a call of tomorrow, nothing named", 600, eperm)
	}
}
