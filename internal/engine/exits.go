package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/autopsy"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/logs"
)

// reaper records the ends of processes.
type reaper struct {
	e *Engine
	// underway has the exits that are being recorded, and the questions to keepers.
	underway sync.WaitGroup
}

// exits records ends as the keeper offers them: the keeper offers each at least once, and it is
// recorded exactly once. When the keeper has died, exits asks the next one which processes it
// still knows.
func (r *reaper) exits(ctx context.Context) error {
	defer r.underway.Wait()
	retry := time.NewTimer(retryAfter)
	defer retry.Stop()
	down := false
	for {
		// Ask the keeper before each round, also the first: it may have died since Recover.
		keeper, err := r.meet(ctx)
		if err == nil && down {
			down = false
			r.keeperIs(ctx, "back")
		}
		round, end := context.WithCancel(ctx)
		r.underway.Go(func() { r.confirm(round, keeper) })
		err = r.round(ctx)
		end()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !down {
			down = true
			r.keeperIs(ctx, "gone: "+err.Error())
		}
		retry.Reset(retryAfter)
		select {
		case <-ctx.Done():
			return nil
		case <-retry.C:
		}
	}
}

// round takes exits until the connection to the keeper is lost or ctx ends.
func (r *reaper) round(ctx context.Context) error {
	for x, err := range r.e.o.Supervisor.Exits(ctx) {
		if err != nil {
			return err
		}
		// Each exit is recorded in a goroutine of its own: one that waits until its launch is
		// recorded must not delay the others.
		r.underway.Go(func() {
			if err := r.exited(ctx, x); err != nil && ctx.Err() == nil {
				r.e.o.Logger.ErrorContext(ctx, "could not record an exit; the keeper will offer it again", "container", x.Ref.Container, "process", x.Ref.Process, "error", err)
			}
		})
	}
	return nil
}

// keeperID identifies a keeper. One that replaces itself by execve stays the same.
type keeperID struct {
	pid     int
	started time.Time
}

// meet returns the keeper's identity, and reconciles the records with the keeper's processes.
func (r *reaper) meet(ctx context.Context) (keeperID, error) {
	st, err := r.e.o.Supervisor.Status(ctx)
	if err == nil {
		err = r.reconcile(ctx)
	}
	if err != nil && ctx.Err() == nil {
		r.e.o.Logger.WarnContext(ctx, "could not ask the keeper which processes it has; will ask again", "error", err)
	}
	return keeperID{st.KeeperPid, st.Started}, err
}

// reconcile compares the records with the processes of a keeper that may be a new one.
func (r *reaper) reconcile(ctx context.Context) error {
	known, err := r.e.node().Processes(ctx)
	if err != nil {
		return err
	}
	return known.Reconcile(ctx)
}

// confirm asks for the keeper's identity again after a round has begun. Otherwise a keeper that
// died between meet and the round would be missed: the round would be the next keeper's and
// continue as if nothing had happened.
func (r *reaper) confirm(round context.Context, met keeperID) {
	timer := time.NewTimer(confirmAfter)
	defer timer.Stop()
	select {
	case <-round.Done():
		return
	case <-timer.C:
	}
	st, err := r.e.o.Supervisor.Status(round)
	if err == nil && (keeperID{st.KeeperPid, st.Started}) != met {
		_, _ = r.meet(round)
	}
}

// confirmAfter is enough time for a round to connect to its keeper.
const confirmAfter = 200 * time.Millisecond

func (r *reaper) keeperIs(ctx context.Context, how string) {
	r.e.o.Logger.WarnContext(ctx, "the keeper's state has changed", "keeper", how)
	if err := r.e.records.Tell(core.Event{Kind: core.EventAgent, Note: "the keeper is " + how}); err != nil {
		r.e.o.Logger.ErrorContext(ctx, "could not append an event to the log", "error", err)
	}
}

// retryAfter is how long to wait for a new keeper.
const retryAfter = 50 * time.Millisecond

// exited records one exit and acknowledges it.
func (r *reaper) exited(ctx context.Context, x core.ProcessExit) error {
	unlock, err := r.e.launches.Lock(ctx, x.Ref)
	if err != nil {
		return err
	}
	defer unlock()
	c, err := r.e.records.Container(x.Ref.Container)
	l := r.e.pipeline(ctx, c.Owner, "exit") // an init of a sandbox belongs to nobody here
	if err := l.Pass("begin"); err != nil {
		return err
	}
	if errdefs.IsNotFound(err) {
		unlock() // lock order: the sandbox's lock comes first
		return r.exitedOther(ctx, x)
	}
	if err != nil {
		return err
	}
	if c.Rest != nil && c.Rest.Checkpoint != nil && c.Rest.Checkpoint.Vacated == x.Pid && x.Pid != c.Main.Pid { // a restored process has its place
		return nil
	}
	p := r.e.process(&c, x.Ref.Process)
	if p == nil || c.State == core.ContainerCreating {
		// An exec that the keeper still knows never had a record: its caller had gone. When a
		// record was dropped, the keeper had forgotten the process before that.
		if p == nil && r.e.o.Supervisor.Ack(ctx, x.Ref) == nil {
			r.e.endTree(ctx, &c, &core.Process{ID: x.Ref.Process, Session: x.Pid, Autopsy: &core.Autopsy{Exit: x.Exit}})
		}
		return r.e.forget(ctx, x.Ref)
	}
	if p.Autopsy == nil {
		a := autopsy.Make(r.evidence(ctx, &c, p, x))
		if !recorded(&c, x.Ref) {
			r.e.quiet.End(x.Ref, a)
		} else if err := r.e.recordEnd(c.ID, x.Ref.Process, a); err != nil {
			return err
		}
	}
	if err := l.Pass("recorded"); err != nil {
		return err
	}
	if x.Ref.Process == core.Main {
		r.e.quiet.Kill(ctx, c.ID)
	}
	if x.Ref.Process == core.Main && len(c.Cgroup.Adopted) == 0 {
		// Processes that the main process left behind, in a container without a pid namespace of
		// its own, end with it.
		if err := r.e.o.Cgroups.Kill(ctx, c.Cgroup); err != nil && !errdefs.IsNotFound(err) {
			r.e.o.Logger.WarnContext(ctx, "could not kill the processes that an ended container left behind", "container", c.ID, "error", err)
		}
	}
	if err := r.e.o.Supervisor.Ack(ctx, x.Ref); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if r.e.quiet.Abandoned(x.Ref) && p.Autopsy == nil {
		r.e.endTree(ctx, &c, &core.Process{ID: p.ID, Session: p.Session, Autopsy: &core.Autopsy{Exit: x.Exit}})
	}
	if err := r.e.quiet.DropAbandoned(ctx, x.Ref); err != nil {
		return err
	}
	return l.Pass("acked")
}

// exitedOther handles the exit of a tiny init, or of a process without a record.
func (r *reaper) exitedOther(ctx context.Context, x core.ProcessExit) error {
	sb, err := r.e.records.Sandbox(x.Ref.Container)
	if err == nil && sb.State != core.SandboxStopped && x.Ref.Process == core.Main {
		err = r.e.endSandbox(ctx, &sb, fmt.Sprintf("its init has ended (status %d), and its pid namespace with it", x.Exit.Status()))
	}
	if err := ignoreNotFound(err); err != nil {
		return err
	}
	if err := r.e.forget(ctx, x.Ref); err != nil {
		return err
	}
	r.e.waits.Ended(x.Ref, core.Autopsy{Exit: x.Exit})
	return nil
}

// forget makes the keeper forget an ended process, which acknowledges its exit. After an Ack of its own the keeper would list the
// process for a moment, without an exit to come and without a record.
func (e *Engine) forget(ctx context.Context, ref core.Ref) error {
	return ignoreNotFound(e.o.Supervisor.Forget(ctx, ref))
}

// forgetKilled has the keeper forget a process that was killed, and waits for its end, which the
// keeper may not have seen yet. exitedOther reports that end. During recovery no exits are read
// yet, and a keeper may be replaced meanwhile; then it asks again and again.
func (e *Engine) forgetKilled(ctx context.Context, ref core.Ref) error {
	x := e.waits.Join(ref)
	defer e.waits.Leave(ref, x)
	wait, cancel := context.WithTimeout(ctx, pendingTime)
	defer cancel()
	retry := time.NewTimer(retryAfter)
	defer retry.Stop()
	for done := x.Done; ; {
		err := e.o.Supervisor.Forget(ctx, ref)
		if !errdefs.IsFailedPrecondition(err) {
			return ignoreNotFound(err)
		}
		retry.Reset(retryAfter)
		select {
		case <-done:
			done = nil // told once
		case <-retry.C:
		case <-wait.Done():
			return err
		}
	}
}

// recordEnd records the end of a process, unless one is recorded.
func (e *Engine) recordEnd(id core.ID, process core.ProcessID, a core.Autopsy) error {
	fresh, out := false, false
	err := e.records.EditContainer(id, func(c *core.Container, n *scope.Change) error {
		fresh, out = false, false
		p := c.Process(process)
		if p == nil || p.Autopsy != nil {
			return nil
		}
		fresh = true
		a.StopRequest = autopsy.Reason(p.StopRequest, a.Exit) // a stop may have been requested since the evidence was gathered
		p.Autopsy, p.Finished, p.Pid = &a, a.Exit.At, 0
		kind := core.EventProcessExited
		if process == core.Main {
			kind, out = core.EventContainerExited, c.MemoryOut()
			if err := step(c, core.VerbExit); err != nil {
				return err
			}
			if e.o.Restarts != nil {
				e.o.Restarts.Ended(c)
			}
		}
		n.Add(core.Event{Kind: kind, Process: process, Autopsy: &a})
		return nil
	})
	if err == nil && fresh {
		e.waits.Ended(core.Ref{Container: id, Process: process}, a)
	}
	if err == nil && out {
		e.All().Rests.Ended(context.Background(), id)
	}
	return err
}

// tailLines is how many log lines an autopsy keeps.
const tailLines = 10

// evidence gathers the facts about an end. It leaves out unreadable ones: an incomplete autopsy is
// better than none.
func (r *reaper) evidence(ctx context.Context, c *core.Container, p *core.Process, x core.ProcessExit) autopsy.Input {
	in := autopsy.Input{
		Exit: x.Exit, Pid: x.Pid, StopRequest: autopsy.Reason(p.StopRequest, x.Exit), Init: c.Config.Init && p.ID == core.Main,
		Kills: x.OOMKills, Local: x.OOMLocal, Peak: x.Peak, LostOutput: x.LostOut,
	}
	if x.Exit.Lost {
		in.Note = autopsy.Orphan
	}
	if sb, err := r.e.records.Sandbox(c.Sandbox); err == nil {
		in.Levels = r.levelNames(ctx, &sb, c, x)
		in.PidHolder = sb.Config.Namespaces.PID.Container
		in.PidOne = p.ID == core.Main && sb.Config.Namespaces.PID.Mode == core.PerContainer && len(c.Config.Join) == 0
	}
	if p.ID == core.Main && x.Exit.Status() != 0 {
		if s, err := r.e.o.Cgroups.Stats(ctx, c.Cgroup, core.StatsRefusals); err == nil {
			in.Refused, in.Throttled = s.Pids.Refused.N, s.Memory.Throttled.N
		}
	}
	if r.e.o.OOMLog != nil && suspicious(x) {
		since := p.Started
		if since.IsZero() {
			since = c.Created
		}
		in.Victims = r.e.o.OOMLog.Victims(ctx, since)
	}
	if p.ID == core.Main {
		for _, s := range c.Config.IO.Sinks {
			lines, err := logs.Tail(s, tailLines)
			if err != nil {
				r.e.o.Logger.DebugContext(ctx, "could not read a container's last log lines", "container", c.ID, "error", err)
			}
			in.Tail = append(in.Tail, lines...)
		}
		if n := len(in.Tail) - tailLines; n > 0 {
			in.Tail = in.Tail[n:]
		}
	}
	return in
}

// suspicious reports whether the kernel log is worth reading: a process was killed for memory, or
// by a signal.
func suspicious(x core.ProcessExit) bool {
	for _, n := range x.OOMKills {
		if n > 0 {
			return true
		}
	}
	return x.Exit.Signal == sigkill
}

// levelNames names the cgroups above a process. For an exec it reads their limits only if memory
// may have ended it, because that costs more than all else about an exit.
func (r *reaper) levelNames(ctx context.Context, sb *core.Sandbox, c *core.Container, x core.ProcessExit) []autopsy.Level {
	refs := levelsOf(sb, c)
	levels := make([]autopsy.Level, len(refs))
	for i, ref := range refs {
		levels[i] = autopsy.Level{Name: ref.Path, Path: ref.Path}
		if x.Ref.Process != core.Main && !suspicious(x) {
			continue
		}
		if limit, err := r.e.o.Cgroups.MemoryLimit(ctx, ref); err == nil {
			levels[i].Limit = limit
		}
	}
	levels[0].Name, levels[len(levels)-1].Name = "container", "sandbox"
	return levels
}
