// Package confine takes away what a process does not need before it processes data from
// an untrusted source.
//
// It confines the calling process for good: call it in a child that was started for the
// purpose. Start at Apply.
package confine

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// Leave lists what a process keeps.
type Leave struct {
	Dirs      []string // full access below these directories
	ReadDirs  []string // read access below these directories; missing ones are skipped
	ReadFiles []string // read access to these files; missing ones are skipped
	Caps      []uint   // capabilities that it keeps, if it has them
	Families  []uint32 // families of sockets that it may create
	// PlainSockets denies ioctl, and the options of sockets that change the rules of networks. It is for a process that keeps
	// CAP_NET_ADMIN.
	PlainSockets bool
}

// Apply takes everything else away from this process, including system calls that no
// caller needs. It returns which of the restrictions the kernel has accepted.
func Apply(l Leave) (string, error) {
	if err := psxCall("no new privileges", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return "", err
	}
	files, err := restrictFiles(l)
	if err != nil {
		return "", err
	}
	caps, err := dropCapabilities(l.Caps)
	if err != nil {
		return "", err
	}
	calls, err := filterCalls(l.Families, l.PlainSockets)
	if err != nil {
		return "", err
	}
	return strings.Join([]string{files, calls, caps, "no new privileges"}, ", "), nil
}

// LandlockABI returns the version of Landlock of this kernel, 0 for none.
func LandlockABI() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

func restrictFiles(l Leave) (string, error) {
	abi := LandlockABI()
	switch abi {
	case 0:
		return "no landlock (the kernel lacks it or it is off)", nil
	case 1: // this version cannot allow renames and links between directories
		return "no landlock (abi 1 forbids renames between directories)", nil
	}
	rules := []landlock.Rule{
		landlock.RWDirs(l.Dirs...).WithRefer(),
		landlock.ROFiles(l.ReadFiles...).IgnoreIfMissing(),
		landlock.RODirs(l.ReadDirs...).IgnoreIfMissing(),
	}
	// Use one ruleset for everything: a second one that does not handle renames between
	// directories would forbid them.
	cfg := landlock.Config{HandledAccessFS: landlock.V5.HandledAccessFS, Scoped: landlock.V6.Scoped}
	if err := cfg.BestEffort().Restrict(rules...); err != nil {
		return "", fmt.Errorf("landlock: %w", err)
	}
	return fmt.Sprintf("landlock abi %d", abi), nil
}

// dropCapabilities drops all capabilities but kept, in all threads.
func dropCapabilities(kept []uint) (string, error) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return "", fmt.Errorf("read capabilities: %w", err)
	}
	var keep [2]uint32
	for _, c := range kept {
		keep[c/32] |= 1 << (c % 32)
	}
	n := 0
	for i := range data {
		data[i].Permitted &= keep[i]
		data[i].Effective = data[i].Permitted
		data[i].Inheritable = 0
		for v := data[i].Permitted; v != 0; v &= v - 1 {
			n++
		}
	}

	if _, _, errno := psx.Syscall3(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0); errno != 0 {
		return "", fmt.Errorf("drop capabilities: %w", errno)
	}
	return fmt.Sprintf("%d capabilities", n), nil
}

func psxCall(what string, nr, a, b uintptr) error {
	if _, _, errno := psx.Syscall6(nr, a, b, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("%s: %w", what, errno)
	}
	return nil
}

// filterCalls installs the seccomp filter in all threads.
func filterCalls(families []uint32, plain bool) (string, error) {
	denied := deniedCalls()
	if plain {
		denied = append(denied, unix.SYS_IOCTL)
	}
	prog := compileFilter(auditArch, denied, families, plain)
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}

	r, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&fprog)))
	switch {
	case errno == unix.ENOSYS || errno == unix.EINVAL:
		return "no seccomp (the kernel lacks it)", nil
	case errno != 0:
		return "", fmt.Errorf("seccomp: %w", errno)
	case r != 0:
		return "", errors.New("seccomp: a thread did not take the filter")
	}
	return "seccomp", nil
}
