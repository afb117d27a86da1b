package kernel

import "golang.org/x/sys/unix"

// ZombieStatus returns the exit status of an unreaped process from /proc. It reports false if the
// process runs, is reaped, or may not be read by this one. The pidfd must be the process's: the pid
// alone may belong to another by now.
func ZombieStatus(pid, pidfd int) (unix.WaitStatus, bool) {
	line := stat(pid)
	status, ok := number(line, 52)
	if !ok || len(line) < 2 || line[1] != 'Z' {
		return 0, false
	}
	// A process without the right to see another's secrets reads 0 for its exit status. Another
	// file with the same condition shows whether this is so.
	var b [64]byte
	if _, err := unix.Readlink("/proc/"+Itoa(pid)+"/ns/user", b[:]); err != nil {
		return 0, false
	}
	// The process is not reaped yet, so all the time the pid was its own.
	if PidfdSignal(pidfd, 0) != nil {
		return 0, false
	}
	return unix.WaitStatus(status), true
}

// PidfdHangsUp reports whether the kernel tells by POLLHUP that the process of a pidfd has
// been reaped. Linux has done so since 6.9, which also brought the flag that is tried here.
func PidfdHangsUp() bool {
	fd, err := unix.PidfdOpen(unix.Getpid(), unix.PIDFD_THREAD)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}

// stat returns the part of a process's stat file after the name: a space, the state, which is its
// third field, and the others. It is empty if there is no such process.
func stat(pid int) []byte {
	b, err := ReadFile("/proc/"+Itoa(pid)+"/stat", 4096)
	if err != nil {
		return nil
	}
	i := len(b) - 1
	for i >= 0 && b[i] != ')' { // the name may contain anything
		i--
	}
	return b[i+1:]
}

// number returns a field of stat's result, a number that is not negative, by its number in proc(5).
func number(line []byte, field int) (n int, ok bool) {
	at := 2
	for _, c := range line {
		switch {
		case c == ' ':
			at++
		case at != field:
		case c < '0' || c > '9':
			return n, ok // the line's end
		default:
			n, ok = n*10+int(c-'0'), true
		}
	}
	return n, ok
}
