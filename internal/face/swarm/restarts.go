package swarm

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/swarm/restart"
	"github.com/longshore/longshore/internal/face/swarm/stepper"
	"github.com/longshore/longshore/internal/face/swarm/translate"
	"github.com/longshore/longshore/internal/health"
)

// A task that the node restarts stays RUNNING for the managers: its states never go down, and a
// FAILED one would be replaced by another task beside it. When the managers are back, they get its
// new container, with the number and the reasons of the restarts. So an end that the policy would
// restart becomes FAILED only when a manager has received it: until a session is known to be lost,
// a manager may receive it.

// restarts decides whether the node restarts a task.
type restarts struct {
	enabled bool
	records records
	// contact reports whether a manager answers, or since when none does.
	contact func() (answers bool, cutOff time.Time)

	mu   sync.Mutex           // guards seen
	seen map[string]time.Time // by task: when the end of its program was found
}

// judge returns the verdict on the end of a task's program, and the pause before it. c is the
// task's container, zero if it is gone, and last the same at its end.
func (x *restarts) judge(s *swarmv1.Task, c, last core.Container) (restart.Verdict, time.Duration) {
	if !x.enabled {
		return restart.Final, 0
	}
	now := time.Now()
	e, _ := end(last, x.found(s.GetId(), now))
	answers, cutOff := x.contact()
	v, wait := restart.Decide(restart.Of(s), x.history(s.GetId(), c), e, restart.Contact{Answers: answers, CutOff: cutOff}, now)
	if v == restart.Tell {
		wait = max(cutOff.Sub(now), firstPause) // unless it is reported before
	}
	return v, wait
}

// history returns the restarts of a task. c is its container.
func (x *restarts) history(id string, c core.Container) restart.History {
	h := x.records.restarts(id)
	switch {
	case c.State == core.ContainerCreated: // an agent has died before it could start the program
		h.Pending = true
	case c.State == core.ContainerExited && string(c.ID) != h.Of: // the restart's own, which has ended too
		return h.Done()
	}
	return h
}

// found returns when the end of a task's program was found: now, at the first call.
func (x *restarts) found(id string, now time.Time) time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.seen[id].IsZero() {
		x.seen[id] = now
	}
	return x.seen[id]
}

// forget drops the time of a task's end, after a restart or with the task.
func (x *restarts) forget(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.seen, id)
}

// end is how a container ended, and why. seen is when that was found.
func end(c core.Container, seen time.Time) (e restart.End, why string) {
	a := c.Main.Autopsy
	if a == nil {
		return restart.End{At: seen, Seen: seen}, errLost.Error()
	}
	return restart.End{Well: a.Exit.Status() == 0 && !wasUnhealthy(c), At: a.Exit.At, Seen: seen}, a.Verdict
}

// endReceived reports whether the managers have received a task's end. If not, it reports the end.
func (w *worker) endReceived(s *swarmv1.Task, r result) bool {
	id := s.GetId()
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tasks[id]
	switch {
	case t == nil || t.removed: // they do not care
		return true
	case !t.endReported:
		t.endReported = true
		w.reports.Put(id, status(s, stepper.After(s.GetStatus().GetState(), stepper.Watch, r.outcome), stepper.Watch, r, nil))
		return false
	}
	t.endReported = w.reports.Waits(id)
	return !t.endReported
}

// withdrawEnd removes the pending report of a task's end.
func (w *worker) withdrawEnd(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.tasks[id]; t != nil && t.endReported {
		t.endReported = false
		w.reports.Drop(id)
	}
}

// reportSent steps a task after the managers have received its end.
func (w *worker) reportSent(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.tasks[id]; t != nil && t.endReported {
		w.kick(id)
	}
}

// reportRestart handles a task with a running program: after a restart it reports the new container once
// that is healthy.
func (w *worker) reportRestart(ctx context.Context, s *swarmv1.Task, c core.Container) result {
	id := s.GetId()
	t := w.task(id)
	if w.checks.health(id, c).Status != health.Healthy { // its check steps the task when that changes
		return result{outcome: stepper.Wait}
	}
	if t == nil || s.GetStatus().GetContainer().GetContainerId() == string(c.ID) {
		return result{outcome: stepper.Wait}
	}
	h := w.records.restarts(id).Done()
	if err := w.records.putRestarts(id, h); err != nil {
		return retry(err)
	}
	w.setState(ctx, id, t, swarmv1.TaskState_RUNNING, stepper.Start, result{c: c, message: h.String()})
	return result{outcome: stepper.Wait}
}

// restart runs a task's program again, or continues a restart: in a new container, in the sandbox that the task has.
func (w *worker) restart(ctx context.Context, s *swarmv1.Task, c, last core.Container) result {
	id := s.GetId()
	w.withdrawEnd(id)
	h := w.restarts.history(id, c)
	if !h.Pending {
		_, why := end(last, time.Time{})
		w.log.InfoContext(ctx, "restarting a task: no manager can be reached", "task", id, "ended", why, "before", h.Count)
		h = h.Begin(restart.Of(s), time.Now(), string(c.ID), why)
		if err := w.records.putRestarts(id, h); err != nil {
			return retry(err)
		}
	}
	var err error
	if c.State != core.ContainerCreated {
		c, err = w.recreate(ctx, s, c)
	}
	if err == nil {
		err = w.engine.StartContainer(ctx, c.ID)
	}
	if err != nil {
		r := failure(err)
		if r.outcome != stepper.Failed || ctx.Err() != nil {
			return r
		}
		w.log.WarnContext(ctx, "could not restart a task", "task", id, "error", err)
		if err := w.records.putRestarts(id, h.Fail(err.Error())); err != nil {
			return retry(err)
		}
	}
	w.restarts.forget(id)
	w.step(id) // it finds the new container, or the recorded failure
	return result{outcome: stepper.Wait}
}

// recreate makes a container for a task after the last one has ended or is gone.
func (w *worker) recreate(ctx context.Context, s *swarmv1.Task, old core.Container) (c core.Container, err error) {
	t, err := translate.Read(s, w.node)
	if err != nil {
		return c, err
	}
	if err := w.checkVolumes(ctx, t); err != nil {
		return c, err
	}
	dirs, err := w.useVolumes(s.GetId(), t.ClusterVolumes())
	if err != nil {
		return c, err
	}
	if err := w.claim(ctx, s.GetId(), t.Devices()); err != nil {
		return c, err
	}
	lease := w.engine.Images.Lease()
	defer lease.Release()
	img, err := w.images.again(ctx, lease, t, old, w.known())
	if err != nil {
		return c, err
	}
	why := request("the task is started again")
	sb, err := w.engine.SandboxByKey(ctx, core.Key(s.GetId()))
	if err == nil && sb.State != core.SandboxReady { // which has no network any more
		if err := errors.Join(w.face.empty(ctx, sb, why), w.face.drop(ctx, sb, why)); err != nil {
			return c, err
		}
		err = errdefs.ErrNotFound
	}
	if errdefs.IsNotFound(err) {
		content, err := w.contents(t)
		if err != nil {
			return c, err
		}
		return w.createPair(ctx, t, img, content, dirs)
	}
	if err != nil {
		return c, err
	}
	place := translate.Place{Log: w.face.logFile(sb.ID), Volumes: dirs}
	if place.Files, err = w.filesOf(sb, t); err != nil {
		return c, err
	}
	cfg, err := t.Container(img, place)
	if err != nil {
		return c, err
	}
	cfg.Sandbox = sb.ID
	if old.ID != "" {
		if err := w.engine.RemoveContainer(ctx, old.ID, engine.RemoveOptions{Request: why}); err != nil {
			return c, err
		}
	}
	c, err = w.engine.CreateContainer(ctx, cfg)
	if errdefs.IsAlreadyExists(err) {
		err = nil
	}
	return c, err
}

// checkVolumes returns errWaits unless a task's volumes exist, or can be made as requested. The record of a
// task lacks their options: before the managers have sent the task, a missing volume that may have
// options waits for them, because without options it would be another volume.
func (w *worker) checkVolumes(ctx context.Context, t translate.Task) error {
	names := t.DriverVolumes()
	if len(names) == 0 || w.known() {
		return nil
	}
	existing, err := w.engine.Volumes.List(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !slices.ContainsFunc(existing, func(v core.Volume) bool { return v.Name == name }) {
			return errWaits
		}
	}
	return nil
}

// filesOf returns the paths of a task's secrets and configs. They exist while the sandbox does, unless the node was
// restarted.
func (w *worker) filesOf(sb core.Sandbox, t translate.Task) ([]string, error) {
	paths, err := w.face.files().of(sb.ID, t.Files())
	if !errdefs.IsNotFound(err) {
		return paths, err
	}
	content, err := w.contents(t)
	if err != nil {
		return nil, err
	}
	return w.face.files().write(sb.ID, t.Files(), content)
}
