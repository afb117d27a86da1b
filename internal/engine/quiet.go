package engine

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// validQuiet refuses a quiet exec that could not be one.
func validQuiet(by view, cfg core.ProcessConfig) error {
	switch {
	case !cfg.Quiet:
		return nil
	case len(cfg.IO.Sinks) > 0 || cfg.KeepExit || cfg.Data != nil:
		return fmt.Errorf("a quiet process has no sinks, no data and no exit that is kept: %w", errdefs.ErrInvalidArgument)
	}
	_, err := by.Creates("a quiet process") // operations of the unscoped view on others' objects are recorded
	return err
}

// process returns a process of a container, recorded or quiet, or nil.
func (e *Engine) process(ct *core.Container, id core.ProcessID) *core.Process {
	if p := ct.Process(id); p != nil {
		return p
	}
	return e.quiet.Get(core.Ref{Container: ct.ID, Process: id})
}

// recorded reports whether a process stands in its container's record.
func recorded(ct *core.Container, ref core.Ref) bool { return ct.Process(ref.Process) != nil }

// killExec kills an exec with all that it has started. It succeeds when the exec has ended.
func (e *Engine) killExec(ctx context.Context, ct *core.Container, p *core.Process) error {
	ref := core.Ref{Container: ct.ID, Process: p.ID}
	if e.o.Supervisor.Signal(ctx, ref, sigstop) == nil { // it is alive, so its pid has not been reused
		e.endTree(ctx, ct, p)
	}
	return ignoreNotFound(e.o.Supervisor.Signal(ctx, ref, sigkill))
}
