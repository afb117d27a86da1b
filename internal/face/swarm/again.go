package swarm

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/lease"
	"github.com/longshore/longshore/internal/face/swarm/csi"
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

// restarter starts a worker's tasks again.
type restarter struct{ w *worker }

// judge returns the verdict on the end of a task's program, and the pause before it. c is the
// task's container, zero if it is gone, and last the same at its end.
func (x restarter) judge(s *swarmv1.Task, c, last core.Container) (restart.Verdict, time.Duration) {
	if !x.w.face.o.Config.LocalRestarts {
		return restart.Final, 0
	}
	now := time.Now()
	e, _ := end(last, x.seen(s.GetId(), now))
	answers, cutOff := x.w.contact()
	v, wait := restart.Decide(restart.Of(s), x.history(s.GetId(), c), e, restart.Contact{Answers: answers, CutOff: cutOff}, now)
	if v == restart.Tell {
		wait = max(cutOff.Sub(now), firstPause) // unless it is reported before
	}
	return v, wait
}

// history returns the restarts of a task. c is its container.
func (x restarter) history(id string, c core.Container) restart.History {
	h := x.w.records.restarts(id)
	switch {
	case c.State == core.ContainerCreated: // an agent has died before it could start the program
		h.Pending = true
	case c.State == core.ContainerExited && string(c.ID) != h.Of: // the restart's own, which has ended too
		return h.Done()
	}
	return h
}

// again restarts a task's program, or continues a restart.
func (x restarter) again(ctx context.Context, s *swarmv1.Task, c, last core.Container) result {
	id := s.GetId()
	x.withdraw(id)
	h := x.history(id, c)
	if !h.Pending {
		_, why := end(last, time.Time{})
		x.w.log.InfoContext(ctx, "a task is started again, as no manager can be reached", "task", id, "ended", why, "before", h.Count)
		h = h.Begin(restart.Of(s), time.Now(), string(c.ID), why)
		if err := x.w.records.putRestarts(id, h); err != nil {
			return retry(err)
		}
	}
	r := x.restart(ctx, s, c)
	if r.outcome == stepper.Failed && ctx.Err() == nil {
		x.w.log.WarnContext(ctx, "a task cannot be started again", "task", id, "error", r.err)
		if err := x.w.records.putRestarts(id, h.Fail(r.err.Error())); err != nil {
			return retry(err)
		}
		r = result{outcome: stepper.Done}
	}
	if r.outcome != stepper.Done {
		return r
	}
	x.found(id) // the next step finds the new container, or the recorded failure
	return result{outcome: stepper.Wait}
}

// heard reports whether the managers have received a task's end. If not, it reports the end.
func (x restarter) heard(s *swarmv1.Task, r result) bool {
	id := s.GetId()
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	t := x.w.tasks[id]
	switch {
	case t == nil || t.removed: // they do not care
		return true
	case !t.telling:
		t.telling = true
		x.w.reports.Put(id, status(s, stepper.After(s.GetStatus().GetState(), stepper.Watch, r.outcome), stepper.Watch, r))
		return false
	}
	t.telling = x.w.reports.Waits(id)
	return !t.telling
}

// withdraw removes the pending report of a task's end.
func (x restarter) withdraw(id string) {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	if t := x.w.tasks[id]; t != nil && t.telling {
		t.telling = false
		x.w.reports.Drop(id)
	}
}

// told steps a task after the managers have received its end.
func (x restarter) told(id string) {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	if t := x.w.tasks[id]; t != nil && t.telling {
		x.w.kick(id)
	}
}

// end is how a container ended, and why. seen is when that was found.
func end(c core.Container, seen time.Time) (e restart.End, why string) {
	a := c.Main.Autopsy
	if a == nil {
		return restart.End{At: seen, Seen: seen}, errLost.Error()
	}
	return restart.End{Well: a.Exit.Status() == 0 && !wasUnhealthy(c), At: a.Exit.At, Seen: seen}, a.Verdict
}

// seen is when the end of a task's program was found.
func (x restarter) seen(id string, now time.Time) time.Time {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	t := x.w.tasks[id]
	if t == nil {
		return now
	}
	if t.seen.IsZero() {
		t.seen = now
	}
	return t.seen
}

// found schedules a step of a task after its end was handled.
func (x restarter) found(id string) {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	if t := x.w.tasks[id]; t != nil {
		t.seen, t.again = time.Time{}, true
	}
}

// runs handles a task with a running program. After a restart it reports the new container once
// that is healthy.
func (x restarter) runs(ctx context.Context, s *swarmv1.Task, c core.Container) result {
	id := s.GetId()
	t := x.w.task(id)
	if checks(x).health(id, c).Status != health.Healthy { // its check steps the task when that changes
		return result{outcome: stepper.Wait}
	}
	if t == nil || s.GetStatus().GetContainer().GetContainerId() == string(c.ID) {
		return result{outcome: stepper.Wait}
	}
	h := x.w.records.restarts(id).Done()
	if err := x.w.records.putRestarts(id, h); err != nil {
		return retry(err)
	}
	x.w.moved(ctx, t, swarmv1.TaskState_RUNNING, stepper.Start, result{c: c, message: h.String(), ports: x.w.ports(ctx, id)})
	return result{outcome: stepper.Wait}
}

// restart makes a container for a task again, in the sandbox that the task has, and runs
// its program.
func (x restarter) restart(ctx context.Context, s *swarmv1.Task, c core.Container) result {
	if c.State != core.ContainerCreated {
		var err error
		if c, err = x.recreate(ctx, s, c); errors.Is(err, errWaits) {
			return result{outcome: stepper.Wait}
		} else if errors.Is(err, csi.ErrWaits) {
			return result{outcome: stepper.Wait, reason: err.Error()}
		} else if err != nil {
			return failure(err)
		}
	}
	if err := x.w.engine.StartContainer(ctx, c.ID); err != nil {
		return failure(err)
	}
	return result{}
}

// recreate makes a container for a task after the last one has ended or is gone.
func (x restarter) recreate(ctx context.Context, s *swarmv1.Task, old core.Container) (c core.Container, err error) {
	t, err := translate.Read(s, x.w.node)
	if err != nil {
		return c, err
	}
	if err := x.hasVolumes(ctx, t); err != nil {
		return c, err
	}
	dirs, err := x.w.uses(s.GetId(), t.ClusterVolumes())
	if err != nil {
		return c, err
	}
	if err := x.w.claim(ctx, s.GetId(), t.Devices()); err != nil {
		return c, err
	}
	images := x.w.engine.Images.Lease()
	defer images.Release()
	img, err := x.imageAgain(ctx, images, t, old)
	if err != nil {
		return c, err
	}
	sb, err := x.w.engine.SandboxByKey(ctx, core.Key(s.GetId()))
	if err == nil && sb.State != core.SandboxReady { // which has no network any more
		why := request("the task is started again")
		if err := errors.Join(x.w.face.empty(ctx, sb, why), x.w.face.drop(ctx, sb, why)); err != nil {
			return c, err
		}
		err = errdefs.ErrNotFound
	}
	if errdefs.IsNotFound(err) {
		content, err := x.w.contents(t)
		if err != nil {
			return c, err
		}
		return x.w.createPair(ctx, t, img, content, dirs)
	}
	if err != nil {
		return c, err
	}
	place := translate.Place{Log: x.w.face.logFile(sb.ID), Volumes: dirs}
	if place.Files, err = x.filesOf(sb, t); err != nil {
		return c, err
	}
	cfg, err := t.Container(img, place)
	if err != nil {
		return c, err
	}
	cfg.Sandbox = sb.ID
	return x.replace(ctx, old, cfg)
}

// hasVolumes reports whether a task's volumes exist, or can be made as requested. The record of a
// task lacks their options: before the managers have sent the task, a missing volume that may have
// options waits for them, because without options it would be another volume.
func (x restarter) hasVolumes(ctx context.Context, t translate.Task) error {
	names := t.DriverVolumes()
	if len(names) == 0 || x.w.known() {
		return nil
	}
	there, err := x.w.engine.Volumes.List(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !slices.ContainsFunc(there, func(v core.Volume) bool { return v.Name == name }) {
			return errWaits
		}
	}
	return nil
}

// imageAgain returns the image of a task's last container, or, if that is gone, the stored one of
// the task's name. A missing one is pulled when the assignments have brought its registry's
// credentials.
func (x restarter) imageAgain(ctx context.Context, images *lease.Lease, t translate.Task, old core.Container) (core.Image, error) {
	if old.Image != "" {
		if img, err := images.Image(ctx, string(old.Image)); err == nil {
			return img, nil
		}
	}
	name, opts, err := t.Image()
	if err != nil {
		return core.Image{}, err
	}
	img, err := images.Image(ctx, name)
	if !errdefs.IsNotFound(err) {
		return img, err
	}
	if !x.w.known() {
		return img, errWaits
	}
	return images.Pull(ctx, name, opts)
}

// filesOf are the paths of a task's secrets and configs, which are still there when its
// sandbox is.
func (x restarter) filesOf(sb core.Sandbox, t translate.Task) ([]string, error) {
	paths, err := x.w.face.files().of(sb.ID, t.Files())
	if !errdefs.IsNotFound(err) {
		return paths, err
	}
	content, err := x.w.contents(t)
	if err != nil {
		return nil, err
	}
	return x.w.face.files().write(sb.ID, t.Files(), content)
}

// replace makes a container in place of the one that a sandbox had.
func (x restarter) replace(ctx context.Context, old core.Container, cfg core.ContainerConfig) (core.Container, error) {
	if old.ID != "" {
		if err := x.w.engine.RemoveContainer(ctx, old.ID, engine.RemoveOptions{Request: request("the task is started again")}); err != nil {
			return core.Container{}, err
		}
	}
	c, err := x.w.engine.CreateContainer(ctx, cfg)
	if errdefs.IsAlreadyExists(err) {
		err = nil
	}
	return c, err
}
