// Package shortage recognizes errors of system calls that pass by themselves, because the
// process, its user or the machine lacks descriptors or memory for now. An operation that failed
// with such an error can be repeated later; the objects that it was about must be kept.
//
// It must not import anything but the standard library's errors and the numbers of errors: the
// keeper links it.
package shortage

import (
	"errors"
	"syscall"
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
