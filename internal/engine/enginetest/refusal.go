package enginetest

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Refusal is an error for a program that cannot be started.
type Refusal struct {
	Err    error // as a runtime returns it
	Status int   // the exit status that a shell shows for it
}

// Refusals returns the refusals of execve, and one error before execve, by name.
func Refusals() map[string]Refusal {
	refused := func(errno syscall.Errno, class error) error {
		return &core.StartError{Errno: errno, Err: fmt.Errorf("exec app: %w: %w", errno, class)}
	}
	return map[string]Refusal{
		"not there":        {refused(syscall.ENOENT, errdefs.ErrNotFound), 127},
		"below a file":     {refused(syscall.ENOTDIR, errdefs.ErrNotFound), 126},
		"not executable":   {refused(syscall.EACCES, errdefs.ErrFailedPrecondition), 126},
		"of no format":     {refused(syscall.ENOEXEC, errdefs.ErrFailedPrecondition), 126},
		"too long a list":  {refused(syscall.E2BIG, errdefs.ErrInvalidArgument), 126},
		"no memory for it": {refused(syscall.ENOMEM, errdefs.ErrResourceExhausted), 126},
		// Only its text is that of a program that does not exist.
		"a hook is not there": {fmt.Errorf("hooks.startContainer[0] (/hook): exec /hook: no such file or directory: %w", errdefs.ErrNotFound), 125},
	}
}

// Refuse makes the named calls of the runtime fail with err.
func (r *Runtime) Refuse(err error, calls ...string) {
	r.Fail(func(call string) error {
		if slices.Contains(calls, call) {
			return err
		}
		return nil
	})
}
