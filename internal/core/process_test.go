package core_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// TestAStartErrorIsToldOnce: the class of an error says nothing that the kernel has not said, and is
// still its class.
func TestAStartErrorIsToldOnce(t *testing.T) {
	inner := &core.StartError{Errno: syscall.ENOENT, Err: fmt.Errorf(`exec "/x": no such file or directory: %w`, errdefs.ErrNotFound)}
	for _, c := range []struct {
		err   error
		class error
		want  string
	}{
		{inner, errdefs.ErrNotFound, `exec "/x": no such file or directory`},
		{&core.StartError{Err: fmt.Errorf("%w: its loader is not there", inner)}, errdefs.ErrNotFound, `exec "/x": no such file or directory: its loader is not there`},
		{&core.StartError{Err: fmt.Errorf("exec /x: %w: %w", syscall.ENOEXEC, errdefs.ErrFailedPrecondition)}, errdefs.ErrFailedPrecondition, "exec /x: exec format error"},
		{&core.StartError{Err: fmt.Errorf("exec /x: permission denied: it is no executable file: %w", errdefs.ErrPermissionDenied)}, errdefs.ErrPermissionDenied, "exec /x: permission denied: it is no executable file"},
		{&core.StartError{Err: fmt.Errorf("exec /x: %w", syscall.EACCES)}, syscall.EACCES, "exec /x: permission denied"},
		{&core.StartError{Err: fmt.Errorf("the policy p refuses it: %w", errdefs.ErrPermissionDenied)}, errdefs.ErrPermissionDenied, "the policy p refuses it: permission denied"},
	} {
		if c.err.Error() != c.want || !errors.Is(c.err, c.class) {
			t.Errorf("%q, want %q and %v", c.err, c.want, c.class)
		}
	}
}
