package shortage_test

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/longshore/longshore/internal/shortage"
)

// TestIs: wrapped errors are recognized, and errors that do not pass by themselves are not.
func TestIs(t *testing.T) {
	for _, e := range []error{
		syscall.EMFILE, os.NewSyscallError("sendmsg", syscall.ETOOMANYREFS), fmt.Errorf("open: %w", &os.PathError{Err: syscall.ENFILE}),
		errors.Join(errors.New("other"), syscall.ENOMEM), syscall.ENOBUFS,
	} {
		if !shortage.Is(e) {
			t.Errorf("%v is no shortage", e)
		}
	}
	for _, e := range []error{nil, syscall.EPIPE, syscall.EAGAIN, syscall.ENOSPC, os.ErrNotExist, errors.New("EMFILE")} {
		if shortage.Is(e) {
			t.Errorf("%v is a shortage", e)
		}
	}
}
