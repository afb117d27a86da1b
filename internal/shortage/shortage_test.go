package shortage_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

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

// TestAcceptOutlastsAShortage: it waits between attempts, skips connections that were lost, and ends
// only with the listener.
func TestAcceptOutlastsAShortage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answers []error
		accept := func() (int, error) {
			err := answers[0]
			answers = answers[1:]
			return len(answers), err
		}
		begun := time.Now()
		answers = []error{os.NewSyscallError("accept4", syscall.EMFILE), syscall.ENOMEM, syscall.ECONNABORTED, nil}
		if c, err := shortage.Accept(accept); c != 0 || err != nil || time.Since(begun) != 2*shortage.Pause {
			t.Errorf("%d, %v after %v, want the connection after two pauses", c, err, time.Since(begun))
		}
		answers = []error{syscall.EMFILE, net.ErrClosed}
		if _, err := shortage.Accept(accept); !errors.Is(err, net.ErrClosed) || len(answers) > 0 {
			t.Errorf("error %v", err)
		}
		answers = []error{syscall.EINVAL, nil}
		if _, err := shortage.Accept(accept); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("error %v", err)
		}
	})
}
