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

// Some runtimes look for the program when they make a container, others when they
// start it. Orchestrators expect the second: with the first there would be no
// container that has failed. So one whose program alone is refused is created, and
// its start answers what its create was told. Nothing of it ever runs.

// refuse has a create go on without a process where the runtime has refused the
// program, and nothing else; otherwise it returns err.
func (b *build) refuse(ctx context.Context, err error) error {
	var refused *core.StartError
	if b.cfg.Run || !errors.As(err, &refused) {
		return err
	}
	if derr := b.e.removeProcesses(ctx, b.rt, &b.c); derr != nil {
		return errors.Join(err, derr)
	}
	// The runtime may have taken the cgroup away with what it had made.
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

// launchRefused is why a created container has no process; nil when it has one.
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

// recalled is an error of which the text is on record.
type recalled struct {
	text  string
	class error
}

func (r recalled) Error() string { return r.text }
func (r recalled) Unwrap() error { return r.class }

// refusedEnd is the end of a container without a process: no exit comes.
func refusedEnd(c *core.Container) core.Autopsy {
	cause := launchRefused(c)
	return autopsy.Make(autopsy.Input{Exit: core.Exit{Code: core.StartStatus(cause), At: now()}, Start: cause.Error()})
}
