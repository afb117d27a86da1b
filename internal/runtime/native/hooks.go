package native

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/runtime/native/compile"
	"github.com/longshore/longshore/internal/span"
)

// hooked is the record of a container with hooks, for the verbs after its creation. Later changes
// of its config.json have no effect.
type hooked struct {
	ID          string            `json:"id,omitempty"` // as hooks read it; "" is the engine's
	Pid         int               `json:"pid"`
	Version     string            `json:"ociVersion"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Hooks       *specs.Hooks      `json:"hooks"`
	Process     *specs.Process    `json:"process,omitempty"` // for startContainer hooks
	Linux       *specs.Linux      `json:"linux,omitempty"`   // the part for execs
	// Ran is the last kind of the start's hooks that have run. When a start is repeated, because
	// the agent died during the first, they do not run again.
	Ran string `json:"ran,omitempty"`
}

// hookedOf returns nil for a container without hooks, which then stores nothing. The hooks read id as the
// container's.
func hookedOf(s *specs.Spec, id string) *hooked {
	if !hasHooks(s.Hooks) {
		return nil
	}
	h := &hooked{ID: id, Version: s.Version, Annotations: s.Annotations, Hooks: s.Hooks, Linux: execSpec(s).Linux}
	if len(s.Hooks.StartContainer) > 0 {
		h.Process = s.Process
	}
	return h
}

// hasHooks reports whether there are any hooks.
func hasHooks(h *specs.Hooks) bool {
	return slices.ContainsFunc(compile.HookKinds(h), func(k compile.HookKind) bool { return len(k.Hooks) > 0 })
}

// hookRun has the context for running the hooks of one container.
type hookRun struct {
	r      *Runtime
	id     core.ID
	rec    record
	kept   *hooked
	status specs.ContainerState
}

func (r *Runtime) hooks(id core.ID, rec record, status specs.ContainerState) *hookRun {
	return &hookRun{r: r, id: id, rec: rec, kept: rec.Hooked, status: status}
}

// state returns the container's state as hooks read it. Inside the container's
// namespaces, its process has another pid.
func (h *hookRun) state(inside bool) ([]byte, error) {
	s := specs.State{Version: h.kept.Version, ID: cmp.Or(h.kept.ID, string(h.id)), Status: h.status, Bundle: h.rec.Bundle, Annotations: h.kept.Annotations}
	if h.status != specs.StateStopped {
		s.Pid = h.kept.Pid
		if inside {
			pid, err := compile.InnerPid(s.Pid)
			if err != nil {
				return nil, err
			}
			s.Pid = pid
		}
	}
	return json.Marshal(s)
}

// run runs the hooks of a kind one after the other until one fails.
func (h *hookRun) run(ctx context.Context, kind string, hooks []specs.Hook) error {
	for i, k := range hooks {
		hook, end := span.Start(ctx, "hook "+kind, span.Attr{Key: "path", Value: k.Path})
		err := h.one(hook, kind, k)
		if end(err); err != nil {
			return fmt.Errorf("hooks.%s[%d] (%s): %w", kind, i, k.Path, err)
		}
	}
	return nil
}

// each runs all hooks of a kind, and logs failures.
func (h *hookRun) each(ctx context.Context, kind string, hooks []specs.Hook) {
	for i := range hooks {
		if err := h.run(ctx, kind, hooks[i:i+1]); err != nil {
			h.r.log.WarnContext(ctx, "a poststop hook failed; the container is deleted nevertheless", "container", h.id, "hook", i, "error", err)
		}
	}
}

func (h *hookRun) one(ctx context.Context, kind string, k specs.Hook) error {
	inside := kind == "createContainer" || kind == "startContainer"
	state, err := h.state(inside)
	if err != nil {
		return err
	}
	run := func(ctx context.Context) (core.CommandResult, error) {
		return h.r.o.Launcher.Run(ctx, core.Command{Path: k.Path, Args: compile.HookArgs(k), Env: k.Env, Dir: h.rec.Bundle, Stdin: state})
	}
	if inside {
		cmd := core.PlannedCommand{Stdin: state, Target: core.Ref{Container: h.id}}
		cmd.Plan, err = compile.Hook(kind, k, compile.ExecInput{
			ID: string(h.id), Process: h.kept.Process, Spec: &specs.Spec{Version: h.kept.Version, Annotations: h.kept.Annotations, Linux: h.kept.Linux},
			Cgroup: h.r.cgroup(h.rec.Cgroup), Host: h.r.o.Host, Pid: h.kept.Pid, Bundle: h.rec.Bundle,
		})
		if err != nil {
			return err
		}
		run = func(ctx context.Context) (core.CommandResult, error) { return h.r.o.Launcher.RunPlan(ctx, cmd) }
	}
	if k.Timeout != nil {
		var cancel context.CancelFunc
		timeout := time.Duration(*k.Timeout) * time.Second
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it took more than %s: %w", timeout, context.DeadlineExceeded))
		defer cancel()
	}
	res, err := run(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	case res.Status != 0:
		return fmt.Errorf("status %d: %s: %w", res.Status, strings.TrimSpace(res.Stderr), errdefs.ErrFailedPrecondition)
	}
	return nil
}

// createHooks runs the hooks of the creation while the container's process waits before pivot_root,
// and then lets it continue.
func (r *Runtime) createHooks(ctx context.Context, id core.ID, rec record) error {
	h := r.hooks(id, rec, specs.StateCreating)
	all := h.kept.Hooks
	for _, k := range compile.HookKinds(all)[:3] {
		if err := h.run(ctx, k.Name, k.Hooks); err != nil {
			return err
		}
	}
	return r.o.Launcher.Advance(ctx, core.Ref{Container: id})
}

// startHooked is Start for a container with hooks.
func (r *Runtime) startHooked(ctx context.Context, id core.ID) error {
	rec, err := r.load("start", id)
	if err != nil {
		return err
	}
	ref := core.Ref{Container: id}
	if rec.Hooked == nil {
		return r.o.Launcher.Release(ctx, ref)
	}
	if rec.Hooked.Ran == "" {
		hooks := rec.Hooked.Hooks.StartContainer
		err := r.hooks(id, rec, specs.StateCreated).run(ctx, "startContainer", hooks)
		if err == nil && len(hooks) > 0 {
			err = r.storeRan(id, rec, "startContainer")
		}
		if err != nil {
			return errors.Join(err, r.endFailed(ctx, id, rec))
		}
	}
	if err := r.o.Launcher.Release(ctx, ref); err != nil || rec.Hooked.Ran == "poststart" {
		return err
	}
	hooks := rec.Hooked.Hooks.Poststart
	err = r.hooks(id, rec, specs.StateRunning).run(ctx, "poststart", hooks)
	if err == nil && len(hooks) > 0 {
		err = r.storeRan(id, rec, "poststart")
	}
	if err != nil {
		return errors.Join(err, r.endFailed(ctx, id, rec))
	}
	return nil
}

// storeRan stores that the hooks of a kind have run.
func (r *Runtime) storeRan(id core.ID, rec record, kind string) error {
	rec.Hooked.Ran = kind
	return writeJSON(r.path(id), rec)
}

// endFailed kills a container after a failed hook. Delete removes the rest later, as for any other
// container.
func (r *Runtime) endFailed(ctx context.Context, id core.ID, rec record) error {
	ctx = context.WithoutCancel(ctx)
	err := r.o.Supervisor.Signal(ctx, core.Ref{Container: id}, int(unix.SIGKILL))
	if errdefs.IsNotFound(err) {
		err = nil
	}
	return errors.Join(err, r.o.Cgroups.Kill(ctx, rec.Cgroup))
}
