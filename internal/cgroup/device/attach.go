package device

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"github.com/moby/sys/userns"
	"golang.org/x/sys/unix"
)

// Attach attaches a program with these rules to the v2 cgroup in dir, replacing earlier
// ones. In a user namespace, which may load no programs, and whose processes can make no
// devices, it does nothing when the kernel refuses.
func Attach(dir string, rules []Rule) error {
	code, err := compile(rules)
	if err != nil {
		return err
	}
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open cgroup %s: %w", dir, err)
	}
	defer func() { _ = unix.Close(at) }()
	if err = replace(at, code); err != nil && (userns.RunningInUserNS() || !denies(rules)) {
		return nil
	}
	return err
}

// denies reports whether one of the rules takes something away.
func denies(rules []Rule) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool { return !r.Allow || r.Kind != All && r.Access != Full })
}

// replace attaches a program to a cgroup and detaches the others. Meanwhile all of them
// must allow an access, so that there is no moment without rules.
func replace(cgroup int, code []insn) error {
	before, err := attached(cgroup)
	if err != nil {
		return fmt.Errorf("list device programs: %w", err)
	}
	program, err := load(code)
	if err != nil {
		return fmt.Errorf("load device program: %w", err)
	}
	defer func() { _ = unix.Close(program) }()
	a := attachAttr{target: uint32(cgroup), program: uint32(program), kind: unix.BPF_CGROUP_DEVICE, flags: unix.BPF_F_ALLOW_MULTI}
	if _, err := bpf(unix.BPF_PROG_ATTACH, unsafe.Pointer(&a), unsafe.Sizeof(a)); err != nil {
		return fmt.Errorf("attach device program: %w", err)
	}
	for _, id := range before {
		if err := detach(cgroup, id); err != nil {
			return fmt.Errorf("detach device program %d: %w", id, err)
		}
	}
	return nil
}

// The kernel's parameters of each command: the parts of union bpf_attr.
type (
	loadAttr struct {
		kind, count   uint32
		code          unsafe.Pointer
		license       unsafe.Pointer
		level, size   uint32
		log           unsafe.Pointer
		version, flag uint32
		name          [16]byte
	}
	attachAttr struct{ target, program, kind, flags uint32 }
	queryAttr  struct {
		target, kind, flags, attached uint32
		ids                           unsafe.Pointer
		count, _                      uint32
	}
	idAttr struct{ id, next, flags uint32 }
)

// The structures above have the kernel's layout where a pointer has eight bytes.
const _ = uint(unsafe.Sizeof(uintptr(0)) - 8)

// bpf makes a call of bpf(2). attr must be of the size.
func bpf(command int, attr unsafe.Pointer, size uintptr) (int, error) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(attr), size)
		switch {
		case errno == 0:
			return int(n), nil
		case errno != unix.EINTR && errno != unix.EAGAIN: // the verifier was interrupted
			return -1, errno
		}
	}
}

// load returns a descriptor of a program. Kernels before 5.11 charge the program to
// RLIMIT_MEMLOCK, which it raises for the time of the call when the kernel refuses.
func load(code []insn) (int, error) {
	fd, err := loadOnce(code, nil)
	if errors.Is(err, unix.EPERM) {
		var old unix.Rlimit
		all := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
		if unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &all, &old) == nil {
			defer func() { _ = unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &old, nil) }()
			fd, err = loadOnce(code, nil)
		}
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EACCES) {
		log := make([]byte, 64<<10)
		if fd, err = loadOnce(code, log); err != nil {
			text, _, _ := strings.Cut(string(log), "\x00")
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(text))
		}
	}
	return fd, err
}

// loadOnce loads a program; the verifier's words are written to log, unless it is nil.
func loadOnce(code []insn, log []byte) (int, error) {
	license := []byte("Apache\x00") // the program calls nothing of the kernel's
	a := loadAttr{kind: unix.BPF_PROG_TYPE_CGROUP_DEVICE, count: uint32(len(code)), code: unsafe.Pointer(&code[0]), license: unsafe.Pointer(&license[0])}
	copy(a.name[:len(a.name)-1], "longshore_dev")
	if len(log) > 0 {
		a.level, a.size, a.log = 1, uint32(len(log)), unsafe.Pointer(&log[0])
	}
	fd, err := bpf(unix.BPF_PROG_LOAD, unsafe.Pointer(&a), unsafe.Sizeof(a))
	runtime.KeepAlive(&a)
	return fd, err
}

// attached lists the device programs of a cgroup.
func attached(cgroup int) ([]uint32, error) {
	ids := make([]uint32, 64) // as many as a cgroup may have
	q := queryAttr{target: uint32(cgroup), kind: unix.BPF_CGROUP_DEVICE, ids: unsafe.Pointer(&ids[0]), count: uint32(len(ids))}
	if _, err := bpf(unix.BPF_PROG_QUERY, unsafe.Pointer(&q), unsafe.Sizeof(q)); err != nil {
		return nil, err
	}
	runtime.KeepAlive(&q)
	return ids[:min(int(q.count), len(ids))], nil
}

// detach detaches a program. One that is gone already is detached.
func detach(cgroup int, id uint32) error {
	byID := idAttr{id: id}
	program, err := bpf(unix.BPF_PROG_GET_FD_BY_ID, unsafe.Pointer(&byID), unsafe.Sizeof(byID))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(program) }()
	a := attachAttr{target: uint32(cgroup), program: uint32(program), kind: unix.BPF_CGROUP_DEVICE}
	if _, err := bpf(unix.BPF_PROG_DETACH, unsafe.Pointer(&a), unsafe.Sizeof(a)); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}
