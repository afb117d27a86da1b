package granted

import (
	"os"
	"runtime"
	"unsafe"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// userOf returns a container's user as the host sees it. In a user namespace only its first group counts.
func userOf(c core.RuntimeCreate) specs.User {
	u := specs.User{UID: c.UID, GID: c.GID}
	if len(c.Spec.Linux.GIDMappings) == 0 {
		u.AdditionalGids = c.Spec.Process.User.AdditionalGids
	}
	return u
}

// as calls fn on a thread with a user's rights on files: a program gets only files that it could open itself. The
// host's root has every right, and needs no other thread.
func as(u specs.User, fn func() error) error {
	if u.UID == 0 {
		return fn()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		// These calls change one thread only, unlike those of package unix.
		groups := append([]uint32{u.GID}, u.AdditionalGids...)
		_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0])), 0)
		if errno != 0 {
			done <- os.NewSyscallError("setgroups", errno)
			return
		}
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, uintptr(u.GID), 0, 0)
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, uintptr(u.UID), 0, 0) // takes the capabilities on files away, too
		const unchanged = ^uintptr(0)
		for nr, want := range map[uintptr]uint32{unix.SYS_SETFSUID: u.UID, unix.SYS_SETFSGID: u.GID} {
			if now, _, _ := unix.RawSyscall(nr, unchanged, 0, 0); uint32(now) != want {
				done <- os.NewSyscallError("setfsuid", unix.EPERM)
				return
			}
		}
		done <- fn()
	}()
	return <-done
}
