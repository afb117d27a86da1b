package kernel

import (
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/weaken"
)

// LockKeyring gives the calling thread, and the programs that it starts, an empty session keyring
// that no program may use. A container's process without a keyring of its own, because other
// containers have used up their user's quota, keeps the keeper's. That must not be the keyring of
// the login session that started the agent.
func LockKeyring() error {
	if weaken.Off(weaken.SessionKeyring) {
		return nil
	}
	id, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0)
	if err == unix.ENOSYS || err == unix.EPERM { // a filter of system calls denies them to its children as well
		return nil
	}
	if err != nil {
		return err
	}
	return unix.KeyctlSetperm(id, 0)
}
