package native

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/runtime/native/plan"
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

// hookKind is one of the six lifecycle points with its hooks.
type hookKind struct {
	name  string
	hooks []specs.Hook
}

func hookKinds(h *specs.Hooks) []hookKind {
	if h == nil {
		return nil
	}
	return []hookKind{
		{"prestart", h.Prestart}, //nolint:staticcheck // deprecated, and still sent
		{"createRuntime", h.CreateRuntime},
		{"createContainer", h.CreateContainer},
		{"startContainer", h.StartContainer},
		{"poststart", h.Poststart},
		{"poststop", h.Poststop},
	}
}

// hasHooks reports whether there are any hooks.
func hasHooks(h *specs.Hooks) bool {
	return slices.ContainsFunc(hookKinds(h), func(s hookKind) bool { return len(s.hooks) > 0 })
}

// stops reports whether the child waits before pivot_root, for the hooks that run once
// the mounts are made.
func (in *Input) stops() bool {
	all := hookKinds(in.Spec.Hooks)
	return in.Park && len(all) > 0 && len(all[0].hooks)+len(all[1].hooks)+len(all[2].hooks) > 0
}

// checkHooks refuses invalid hooks.
func checkHooks(h *specs.Hooks) error {
	for _, s := range hookKinds(h) {
		for i, k := range s.hooks {
			switch {
			case !path.IsAbs(k.Path):
				return fmt.Errorf("hooks.%s[%d].path: %q is not absolute: %w", s.name, i, k.Path, errdefs.ErrInvalidArgument)
			case k.Timeout != nil && *k.Timeout <= 0:
				return fmt.Errorf("hooks.%s[%d].timeout: %d is not above zero: %w", s.name, i, *k.Timeout, errdefs.ErrInvalidArgument)
			case slices.ContainsFunc(append(append([]string{k.Path}, k.Args...), k.Env...), func(s string) bool { return strings.ContainsRune(s, 0) }):
				return fmt.Errorf("hooks.%s[%d]: holds a NUL: %w", s.name, i, errdefs.ErrInvalidArgument)
			}
		}
	}
	return nil
}

// stop parks the child in the middle of its plan; Advance lets it continue.
func stop(c *compiler, why string) {
	c.plan.Add("say that we wait for "+why, unix.SYS_WRITE, c.in.ownFD(fdError), plan.P(c.plan.Words(plan.StepParked)), plan.V(8)).Result(8)
	c.plan.Add("wait for "+why, unix.SYS_READ, c.in.ownFD(fdPark), plan.P(c.plan.Words(0)), plan.V(1)).Result(1)
}

// compileCreateHook returns the plan of a createContainer hook. It runs as root in the
// container's namespaces while their root is still the host's, so its path means the
// same as for the agent.
func compileCreateHook(h specs.Hook, spec *specs.Spec, cgroup Cgroup, host Host) ([]byte, error) {
	s := *spec
	s.Process = &specs.Process{Args: hookArgs(h), Env: h.Env, Cwd: "/"}
	c := &compiler{in: Input{Spec: &s, Cgroup: cgroup, Host: host}, next: fdFirst}
	c.plan.Clone(0, cgroup.Unified)
	target := c.placeStreams(true)
	c.creation().joinCgroups(cgroup.Dirs)
	c.plan.Add("setsid", unix.SYS_SETSID)
	joinTarget(c, target, 0)
	c.plan.Add("exec "+h.Path, unix.SYS_EXECVE, plan.P(c.plan.String(h.Path)), plan.P(c.plan.Strings(s.Process.Args)), plan.P(c.plan.Strings(h.Env)))
	out, err := c.finish()
	return out.Plan, err
}

func hookArgs(h specs.Hook) []string {
	if len(h.Args) == 0 {
		return []string{h.Path}
	}
	return h.Args
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
			pid, err := innerPid(s.Pid)
			if err != nil {
				return nil, err
			}
			s.Pid = pid
		}
	}
	return json.Marshal(s)
}

// innerPid returns the pid that a process has in its own pid namespace.
func innerPid(pid int) (int, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			f := strings.Fields(rest)
			return strconv.Atoi(f[len(f)-1])
		}
	}
	return pid, nil
}

// run runs the hooks of a kind one after the other until one fails.
func (h *hookRun) run(ctx context.Context, kind string, hooks []specs.Hook) error {
	for i, k := range hooks {
		if err := h.one(ctx, kind, k); err != nil {
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
		return h.r.o.Launcher.Run(ctx, core.Command{Path: k.Path, Args: hookArgs(k), Env: k.Env, Dir: h.rec.Bundle, Stdin: state})
	}
	if inside {
		cmd := core.PlannedCommand{Stdin: state, Target: core.Ref{Container: h.id}}
		cgroup, spec := h.r.cgroup(h.rec.Cgroup), &specs.Spec{Version: h.kept.Version, Annotations: h.kept.Annotations, Linux: h.kept.Linux}
		if kind == "createContainer" {
			cmd.Plan, err = compileCreateHook(k, spec, cgroup, h.r.o.Host)
		} else {
			p := *h.kept.Process
			p.Args, p.Env, p.Terminal, p.ExecCPUAffinity = hookArgs(k), k.Env, false, nil
			var out Output
			out, err = compileExec(ExecInput{ID: string(h.id), Process: &p, Spec: spec, Cgroup: cgroup, Host: h.r.o.Host, Pid: h.kept.Pid, Bundle: h.rec.Bundle}, false, k.Path)
			cmd.Plan = out.Plan
		}
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
	for _, s := range hookKinds(all)[:3] {
		if err := h.run(ctx, s.name, s.hooks); err != nil {
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
