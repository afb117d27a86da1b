package engine

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/longshore/longshore/internal/autopsy"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/engine/survey"
	"github.com/longshore/longshore/internal/proctree"
)

// node returns the parts of the node that are compared with the records.
func (e *Engine) node() *survey.Node {
	return &survey.Node{
		Records: e.records.Records, Runtimes: e.o.Runtimes, Supervisor: e.o.Supervisor, Images: e.o.Images, Network: e.o.Network,
		Pinner: e.o.Pinner, Cgroups: e.o.Cgroups, Roots: e.o.Roots, Volumes: &e.volumes, Sleeper: e.o.Sleeper, State: e.o.State,
		Bundles: filepath.Dir(e.bundle("x")), Sandboxes: filepath.Dir(e.sandboxDir("x")), Repairs: repairs{e},
	}
}

// repairs implements survey.Repairs.
type repairs struct{ e *Engine }

// Quiet implements survey.Repairs.
func (r repairs) Quiet() map[core.Ref]core.Process { return r.e.quiet.All() }

// Stray implements survey.Repairs.
func (r repairs) Stray(ref core.Ref) bool {
	if r.e.quiet.Abandoned(ref) && r.e.quiet.Get(ref) != nil {
		return true
	}
	if r.e.launches.Held(ref) { // read before the records: its holder has recorded the process by now
		return false
	}
	ct, err := r.e.records.Container(ref.Container)
	return err == nil && r.e.process(&ct, ref.Process) == nil
}

// EndStray implements survey.Repairs. The exit of a process that runs is then yielded, and the
// process is forgotten.
func (r repairs) EndStray(ctx context.Context, ref core.Ref, p core.Supervised, c *core.Container) error {
	e := r.e
	if !p.Running {
		switch q := e.quiet.Get(ref); {
		case q == nil:
			return e.forget(ctx, ref)
		case q.Autopsy == nil:
			return nil // its exit is yielded next
		}
		return e.quiet.DropAbandoned(ctx, ref)
	}
	if c == nil || ref.Process == core.Main {
		return ignoreNotFound(e.o.Supervisor.Signal(ctx, ref, sigkill))
	}
	return e.killExec(ctx, c, &core.Process{ID: ref.Process, Pid: p.Pid, Session: proctree.Session(p.Pid)})
}

// lostTime bounds the wait for the end of a lost process's remnants after SIGKILL.
const lostTime = 10 * time.Second

// Lose records the end of a process that nobody watched, and kills its remnants. If there were any,
// the record says that it was killed. agentLived is set if this agent lived when keeper and nest died.
func (r repairs) Lose(ctx context.Context, c *core.Container, process core.ProcessID, agentLived bool) error {
	notes := [2]string{autopsy.AllGone, autopsy.AllGoneKilled}
	if agentLived {
		notes = [2]string{autopsy.PairGone, autopsy.PairGoneKilled}
	}
	note := notes[0]
	if process == core.Main {
		if s, err := r.e.o.Cgroups.Stats(ctx, c.Cgroup, core.StatsProcessCount); err == nil && s.Pids.Processes.N > 0 {
			note = notes[1]
		}
		// A process that the kernel holds must not keep the agent from serving the others.
		kill, cancel := context.WithTimeout(ctx, lostTime)
		defer cancel()
		if err := r.e.kill(kill, c); err != nil {
			return err
		}
	}
	return r.e.recordEnd(c.ID, process, autopsy.Make(autopsy.Input{Exit: core.Exit{Lost: true, At: now()}, Note: note}))
}

// LoseQuiet implements survey.Repairs.
func (r repairs) LoseQuiet(ctx context.Context, ref core.Ref) error {
	r.e.quiet.End(ref, autopsy.Make(autopsy.Input{Exit: core.Exit{Lost: true, At: now()}, Note: autopsy.PairGone}))
	return r.e.quiet.DropAbandoned(ctx, ref)
}

// Complete implements survey.Repairs.
func (r repairs) Complete(ctx context.Context, c *core.Container, pid int) error {
	if rt, err := r.e.runtime(c.Runtime); err == nil {
		_ = rt.Start(ctx, c.ID) // a runtime that creates and starts in two steps may have done only the first
	}
	return r.e.records.EditContainer(c.ID, func(c *core.Container, n *scope.Change) error { c.Main.Pid = pid; return created(c, n) })
}

// Kill implements survey.Repairs.
func (r repairs) Kill(ctx context.Context, c *core.Container) error { return r.e.kill(ctx, c) }

// RemoveContainer implements survey.Repairs.
func (r repairs) RemoveContainer(ctx context.Context, c *core.Container) error {
	return teardown{e: r.e}.container(ctx, c)
}

// Unrenew implements survey.Repairs.
func (r repairs) Unrenew(ctx context.Context, c *core.Container) error {
	rt, err := r.e.runtime(c.Runtime)
	if err != nil {
		return err
	}
	return errors.Join(r.e.kill(ctx, c), renewal{e: r.e, rt: rt, c: *c}.unmake(ctx))
}

// RemoveBundle implements survey.Repairs.
func (r repairs) RemoveBundle(ctx context.Context, id core.ID) error {
	bundle := r.e.bundle(id)
	return errors.Join(r.e.o.Roots.Unmount(ctx, filepath.Join(bundle, "rootfs")), r.e.imageVolumes().Clear(ctx, bundle), removeBundle(bundle))
}

// EndSandbox implements survey.Repairs.
func (r repairs) EndSandbox(ctx context.Context, sb *core.Sandbox, why string) error {
	return r.e.endSandbox(ctx, sb, why)
}

// ReleaseSandbox implements survey.Repairs.
func (r repairs) ReleaseSandbox(ctx context.Context, sb *core.Sandbox) error {
	return teardown{e: r.e}.release(ctx, sb)
}

// RemoveSandbox implements survey.Repairs.
func (r repairs) RemoveSandbox(ctx context.Context, sb *core.Sandbox) error {
	return teardown{e: r.e}.sandbox(ctx, sb)
}

// RemoveSandboxDir implements survey.Repairs.
func (r repairs) RemoveSandboxDir(ctx context.Context, id core.ID) error {
	return teardown{e: r.e}.sandboxDir(ctx, r.e.sandboxDir(id))
}
