// Package shortage recognizes errors of system calls that pass by themselves, because the
// process, its user or the machine lacks descriptors or memory for now. An operation that failed
// with such an error can be repeated later; the objects that it was about must be kept.
//
// It must not import more than the numbers of errors, errors and time: the keeper links it.
package shortage

import (
	"errors"
	"syscall"
	"time"
)

// errnos are the errors of a shortage: the process has too many open files, the machine has, too
// many descriptors of the user are in flight between processes, or the kernel has no memory.
var errnos = [...]syscall.Errno{
	syscall.EMFILE, syscall.ENFILE, syscall.ETOOMANYREFS, syscall.ENOBUFS, syscall.ENOMEM,
}

// Is reports whether err means that descriptors or memory are used up for now.
func Is(err error) bool {
	for _, e := range errnos {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Pause is how long to wait before an operation is repeated that a shortage has prevented.
const Pause = 100 * time.Millisecond

// lostConnections are errors of accept that concern the one connection, which is gone from the queue.
// The listener works as before.
var lostConnections = [...]syscall.Errno{
	syscall.ECONNABORTED, syscall.EPROTO, syscall.EPERM, syscall.ENOPROTOOPT, syscall.EOPNOTSUPP,
	syscall.ENETDOWN, syscall.ENETUNREACH, syscall.ENONET, syscall.EHOSTDOWN, syscall.EHOSTUNREACH,
}

// Accept returns the next connection of a listener, whose method accept is. During a shortage the
// connection waits in the kernel's queue, and accept is called again after each Pause. Errors of single
// connections are skipped. Accept returns only errors that end the listener, such as net.ErrClosed.
func Accept[C any](accept func() (C, error)) (C, error) {
	for {
		c, err := accept()
		switch {
		case Is(err):
			<-time.After(Pause)
		case !isLostConnection(err):
			return c, err
		}
	}
}

func isLostConnection(err error) bool {
	for _, e := range lostConnections {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
