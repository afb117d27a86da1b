package roottest

import (
	"testing"

	"golang.org/x/sys/unix"
)

// InFlight sends n descriptors that nobody receives until the test ends. While more than
// RLIMIT_NOFILE of a user's are in flight, an unprivileged process of this user can send none.
func InFlight(t testing.TB, n int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = unix.Close(fds[0]), unix.Close(fds[1]) })
	const most = 100 // in one message
	rights := make([]int, most)
	for i := range rights {
		rights[i] = fds[0]
	}
	for ; n > 0; n -= most {
		if err := unix.Sendmsg(fds[1], []byte("x"), unix.UnixRights(rights[:min(n, most)]...), nil, unix.MSG_DONTWAIT); err != nil {
			t.Fatal(err)
		}
	}
}

// LimitFiles sets how many descriptors a process may have, and with that how many of its user may be
// in flight when it sends one.
func LimitFiles(t testing.TB, pid int, most uint64) (restore func()) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: old.Max}, nil); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &old, nil); err != nil {
			t.Error(err)
		}
	}
}
