package engine

import (
	"context"
	"errors"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/autopsy"
	"github.com/longshore/longshore/internal/core"
)

// Some runtimes look for the program when they create a container, others when they start it.
// Orchestrators expect the second: after a failed create they would have no container to report
// as failed. So when only the program is refused, the container is created without a process, and
// its start returns the runtime's error.

// refuse lets a create continue without a process when the runtime has refused only the program;
// otherwise it returns err, which may be nil.
func (b *build) refuse(ctx context.Context, err error) error {
	var refused *core.StartError
	if b.cfg.Run || !errors.As(err, &refused) {
		return err
	}
	if derr := (teardown{e: b.e}).processes(ctx, b.rt, &b.c); derr != nil {
		return errors.Join(err, derr)
	}
	// The runtime may have removed the cgroup in its own cleanup.
	var res *specs.LinuxResources
	if b.spec.Linux != nil {
		res = b.spec.Linux.Resources
	}
	if cerr := b.e.o.Cgroups.Create(ctx, b.c.Cgroup, res); cerr != nil {
		return errors.Join(err, cerr)
	}
	b.c.Refused = &core.Refusal{Errno: int(refused.Errno), Text: strings.TrimPrefix(err.Error(), "create container "+string(b.c.ID)+": ")}
	return nil
}

// launchRefused returns why a created container has no process; nil when it has one.
func launchRefused(c *core.Container) error {
	if c.Refused == nil {
		return nil
	}
	errno := syscall.Errno(c.Refused.Errno)
	var class error = errdefs.ErrFailedPrecondition
	switch errno {
	case syscall.ENOENT, syscall.ENOTDIR:
		class = errdefs.ErrNotFound
	case syscall.EACCES, syscall.EPERM:
		class = errdefs.ErrPermissionDenied
	}
	return &core.StartError{Errno: errno, Err: recalled{c.Refused.Text, class}}
}

// recalled is an error with a text from a record.
type recalled struct {
	text  string
	class error
}

func (r recalled) Error() string { return r.text }
func (r recalled) Unwrap() error { return r.class }

// refusedEnd is the end of a container without a process; the keeper reports no exit for it.
func refusedEnd(c *core.Container) core.Autopsy {
	cause := launchRefused(c)
	return autopsy.Make(autopsy.Input{Exit: core.Exit{Code: core.StartStatus(cause), At: now()}, Start: cause.Error()})
}
