package swarm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/swarm/csi"
	"github.com/longshore/longshore/internal/face/swarm/overlays"
	"github.com/longshore/longshore/internal/face/swarm/restart"
	"github.com/longshore/longshore/internal/face/swarm/stepper"
	"github.com/longshore/longshore/internal/face/swarm/translate"
	"github.com/longshore/longshore/internal/health"
	"github.com/longshore/longshore/internal/invalid"
)

// maxTries bounds the tries of an action that fails for a temporary reason. Then the task fails, so
// that its managers can put it on another node. Ends are tried for ever.
const maxTries = 5

// result is the result of an action.
type result struct {
	outcome stepper.Outcome
	err     error          // of Retry and Failed; nil after a program that ended badly
	c       core.Container // zero when there is none
	message string         // the message beside the state; "" is the state's usual one

	reason  string        // of Wait, for the managers; "" keeps the last message
	after   time.Duration // of Wait: the next step begins then at the latest; 0 is never
	endless bool          // Retry without a bound: it is an end that failed, or waits for another task that is ending
}

// retry is the result of a temporary failure.
func retry(err error) result { return result{outcome: stepper.Retry, err: err} }

// run steps a task until nothing is to be done for now.
func (w *worker) run(id string, t *task) {
	wait, tries := firstPause, 0
	for {
		w.mu.Lock()
		base := w.base
		if t.removed {
			w.mu.Unlock()
			w.remove(base, id)
			return
		}
		s := t.swarm
		actual := s.GetStatus().GetState()
		a := stepper.Next(s.GetDesiredState(), actual)
		t.again = false
		if a == stepper.Rest || base.Err() != nil {
			t.stepping = false
			w.mu.Unlock()
			return
		}
		ctx, cancel := context.WithCancel(base)
		t.interrupt = cancel
		w.mu.Unlock()

		var r result
		switch a {
		case stepper.Prepare:
			r = w.prepare(ctx, s)
		case stepper.Start:
			r = w.start(ctx, s)
		case stepper.Watch:
			r = w.watch(ctx, s)
		case stepper.Stop:
			r = w.stop(ctx, s)
		case stepper.Rest, stepper.Advance:
		}
		interrupted := ctx.Err() != nil
		cancel()
		if tries++; interrupted && r.outcome == stepper.Failed {
			r.outcome = stepper.Retry // it failed because it was interrupted
		} else if r.outcome == stepper.Retry && tries >= maxTries && !r.endless && (a == stepper.Prepare || a == stepper.Start) {
			r.outcome = stepper.Failed
		}
		next := stepper.After(actual, a, r.outcome)
		if next != actual {
			w.setState(base, id, t, next, a, r)
			wait, tries = firstPause, 0
			continue
		}
		w.mu.Lock()
		w.setMessage(t, r.reason)
		if r.outcome == stepper.Wait && !t.again && !t.removed {
			t.stepping = false
			w.later(id, r.after)
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		if r.outcome == stepper.Retry && !interrupted {
			w.log.WarnContext(ctx, "a task's step failed; will retry", "task", id, "step", a.String(), "error", r.err)
			if !pause(base, wait) {
				continue
			}
			if wait = min(2*wait, longestPause); r.endless {
				wait = min(wait, time.Second)
			}
		}
	}
}

// setState stores a task's next state, and queues its report to the managers.
func (w *worker) setState(ctx context.Context, id string, t *task, next swarmv1.TaskState, a stepper.Action, r result) {
	var ports []core.Port
	if next == swarmv1.TaskState_STARTING || next == swarmv1.TaskState_RUNNING {
		// Without a sandbox there are none to report, and the next step says why.
		sb, _ := w.engine.SandboxByKey(ctx, core.Key(id))
		ports = sb.Network.Ports
	}
	w.mu.Lock()
	s := proto.CloneOf(t.swarm)
	s.Status = status(t.swarm, next, a, r, ports)
	t.swarm = s
	w.mu.Unlock()
	// The states between are found again: a step that was done is done in no time.
	if next == swarmv1.TaskState_ACCEPTED || next >= swarmv1.TaskState_RUNNING {
		if err := w.records.putTask(s); err != nil {
			w.log.ErrorContext(ctx, "could not store a task's state; it is reported all the same", "task", s.GetId(), "error", err)
		}
	}
	if next == swarmv1.TaskState_RUNNING && len(s.GetNetworks()) > 0 {
		w.announce(s, r.c)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !t.removed {
		w.reports.Put(s.GetId(), s.GetStatus())
	}
}

// setMessage reports the reason why a task waits. Preconditions: mu is held.
func (w *worker) setMessage(t *task, reason string) {
	if reason == "" || reason == t.swarm.GetStatus().GetMessage() || t.removed {
		return
	}
	s := proto.CloneOf(t.swarm)
	s.Status.Message, s.Status.Timestamp = reason, timestamppb.Now()
	t.swarm = s
	w.reports.Put(s.GetId(), s.GetStatus())
}

// failure classifies an error: it waits for more of the managers, is temporary, or final.
func failure(err error) result {
	switch {
	case errors.Is(err, errWaits):
		return result{outcome: stepper.Wait}
	case errors.Is(err, csi.ErrWaits), errors.Is(err, overlays.ErrWaits):
		return result{outcome: stepper.Wait, reason: err.Error()}
	}
	r := result{outcome: stepper.Failed, err: err}
	for _, passes := range []func(error) bool{errdefs.IsUnavailable, errdefs.IsResourceExhausted, errdefs.IsCanceled, errdefs.IsDeadlineExceeded, errdefs.IsAborted} {
		if passes(err) {
			r.outcome = stepper.Retry
		}
	}
	return r
}

// errWaits is the error of a task that needs something that the managers have not sent yet.
var errWaits = errors.New("waiting for the managers") //nolint:gochecknoglobals // an error value

// prepare makes a task's container, unless it has one. With an error it releases the task's volumes and networks.
func (w *worker) prepare(ctx context.Context, s *swarmv1.Task) result {
	id := s.GetId()
	if c, err := w.engine.ContainerByKey(ctx, core.Key(id)); err == nil {
		return result{c: c}
	}
	ending := w.ending(id)
	fail := func(err error) result {
		w.releaseVolumes(ctx, s)
		w.nets.Release(id)
		r := failure(err)
		if r.outcome != stepper.Wait && errdefs.IsFailedPrecondition(err) && ending {
			// A port or a device that the task before still has, or had a moment ago.
			r.outcome, r.endless = stepper.Retry, true
		}
		return r
	}
	t, err := translate.Read(s, w.node)
	if err != nil {
		return fail(err)
	}
	content, err := w.contents(t)
	if err != nil {
		return fail(err)
	}
	if !w.known() {
		return fail(errWaits) // the credentials for its image were not kept
	}
	dirs, err := w.useVolumes(id, t.ClusterVolumes())
	if err != nil {
		return fail(err)
	}
	lease := w.engine.Images.Lease()
	defer lease.Release()
	img, err := w.images.get(ctx, lease, t)
	if err != nil {
		return fail(err)
	}
	if s.GetDesiredState() < swarmv1.TaskState_RUNNING && t.Exclusive() {
		// It needs resources of the task that it replaces: its container is made when it must start.
		w.releaseVolumes(ctx, s)
		w.nets.Release(id)
		return result{}
	}
	c, err := w.createPair(ctx, t, img, content, dirs)
	if err != nil {
		return fail(err)
	}
	return result{c: c}
}

// createPair makes a task's sandbox and container.
func (w *worker) createPair(ctx context.Context, t translate.Task, img core.Image, content [][]byte, volumes map[string]string) (c core.Container, err error) {
	id := t.Swarm.GetId()
	cfg, err := t.Sandbox()
	if err != nil {
		return c, err
	}
	if err := translate.WithoutDocker(t); err != nil {
		return c, err
	}
	if err := w.openNetworks(ctx, t); err != nil {
		return c, err
	}
	if err := w.claim(ctx, id, t.Devices()); err != nil {
		return c, err
	}
	if err := os.MkdirAll(w.face.logs(), 0o700); err != nil {
		return c, fmt.Errorf("make the directory of logs: %w", err)
	}
	for _, dir := range t.MissingSources() {
		if _, err := os.Lstat(dir); err == nil {
			continue // a file or a socket, perhaps
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return c, invalid.Errorf("make the source of a bind mount: %w", err)
		}
	}
	var wrote core.ID
	_, c, err = w.engine.CreatePair(ctx, engine.Pair{Sandbox: cfg, ShortName: translate.ShortName(t), Container: func(sandbox core.ID) (core.ContainerConfig, error) {
		wrote = sandbox
		paths, err := w.face.files().write(sandbox, t.Files(), content)
		if err != nil {
			return core.ContainerConfig{}, err
		}
		return t.Container(img, translate.Place{Log: w.face.logFile(sandbox), Files: paths, Volumes: volumes})
	}})
	if errdefs.IsAlreadyExists(err) {
		c, err = w.engine.ContainerByKey(ctx, core.Key(id))
	}
	if wrote != c.Sandbox {
		err = errors.Join(err, w.face.files().remove(wrote))
	}
	for _, warning := range c.Warnings {
		w.log.WarnContext(ctx, "could not apply all settings of a task", "task", id, "warning", warning)
	}
	if err == nil {
		w.nets.Attached(id)
	}
	return c, err
}

// contents returns the contents of a task's secrets and configs, expanded.
func (w *worker) contents(t translate.Task) ([][]byte, error) {
	var all []translate.Content
	for _, f := range t.Files() {
		c, found, known := w.content(t.Swarm.GetId(), f)
		switch {
		case found:
		case !known:
			return nil, errWaits
		default:
			return nil, invalid.Errorf("%s was not assigned to the node", f)
		}
		all = append(all, c)
	}
	return t.Expand(all)
}

// start runs a task's program.
func (w *worker) start(ctx context.Context, s *swarmv1.Task) result {
	c, err := w.engine.ContainerByKey(ctx, core.Key(s.GetId()))
	if errdefs.IsNotFound(err) {
		r := w.prepare(ctx, s)
		if r.outcome != stepper.Done {
			return r
		}
		c, err = r.c, nil
	}
	if err == nil && c.State == core.ContainerCreated {
		err = w.engine.StartContainer(ctx, c.ID)
		if now, e := w.engine.Container(context.WithoutCancel(ctx), c.ID); e == nil {
			c = now
		}
	}
	if err != nil {
		r := failure(err)
		r.c = c
		return r
	}
	if check, err := translate.Check(c); err != nil || check == nil {
		return result{c: c}
	}
	return w.awaitHealthy(ctx, s, c)
}

// watch finds the end of a task's program, and releases the task's network then: the next task of the service may
// want the same port.
func (w *worker) watch(ctx context.Context, s *swarmv1.Task) result {
	c, err := w.engine.ContainerByKey(ctx, core.Key(s.GetId()))
	if err != nil && !errdefs.IsNotFound(err) {
		return retry(err)
	}
	id := s.GetId()
	if err == nil && c.State != core.ContainerExited && c.State != core.ContainerCreated {
		if w.checks.health(id, c).Status != health.Unhealthy {
			return w.reportRestart(ctx, s, c)
		}
		if c, err = w.stopUnhealthy(ctx, c); err != nil {
			return result{outcome: stepper.Retry, endless: true, err: err}
		}
	}
	w.nets.Ended(id)
	last := w.last(ctx, s, c)
	verdict, wait := w.restarts.judge(s, c, last)
	switch verdict {
	case restart.Wait:
		return result{outcome: stepper.Wait, after: wait}
	case restart.Again:
		return w.restart(ctx, s, c, last)
	case restart.Final, restart.Tell:
	}
	if err := w.stopSandbox(ctx, s, "the task has ended"); err != nil {
		return retry(err)
	}
	w.volumes.Release(id)
	r := result{c: last}
	switch a := last.Main.Autopsy; {
	case a == nil:
		r.outcome, r.err = stepper.Failed, errLost
	case wasUnhealthy(last): // with any exit code
		r.outcome, r.err = stepper.Failed, w.checks.failure(id, last)
	case a.Exit.Status() != 0:
		r.outcome = stepper.Failed
	}
	if why := w.records.restarts(id).Failed; why != "" {
		r.outcome, r.err = stepper.Failed, fmt.Errorf("it ended while no manager could be reached, and could not be started again: %s", why)
	}
	if verdict == restart.Tell && !w.endReceived(s, r) {
		return result{outcome: stepper.Wait, after: wait}
	}
	w.checks.stop(id)
	return r
}

// errLost is the error of a task without a container and without a recorded end.
var errLost = errors.New("its container is gone: the node was restarted, or the container was removed") //nolint:gochecknoglobals // an error value

// last returns a task's container at its end: c, or the event log's record of a removed one.
func (w *worker) last(ctx context.Context, s *swarmv1.Task, c core.Container) core.Container {
	if c.ID != "" {
		return c
	}
	e, err := w.engine.LastExit(ctx, s.GetId())
	if err != nil {
		return c
	}
	return core.Container{Meta: core.Meta{ID: e.Container}, Main: core.Process{Autopsy: e.Autopsy}}
}

// stopSandbox ends the processes in a task's sandbox, and releases its network. It succeeds if
// there is none.
func (w *worker) stopSandbox(ctx context.Context, s *swarmv1.Task, why string) error {
	sb, err := w.engine.SandboxByKey(ctx, core.Key(s.GetId()))
	if err == nil {
		err = w.engine.StopSandbox(ctx, sb.ID, engine.StopOptions{Request: request(why)})
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	w.nets.Release(s.GetId())
	return nil
}

// stop ends a task's program, if there is one, and releases its resources. It stores the intention
// before, so that a later agent does not take the end for a failure.
func (w *worker) stop(ctx context.Context, s *swarmv1.Task) result {
	w.checks.stop(s.GetId())
	if s.GetStatus().GetState() >= swarmv1.TaskState_ACCEPTED { // before that it has nothing
		if err := w.records.putTask(s); err != nil {
			w.log.ErrorContext(ctx, "could not store that a task is to stop; it is stopped all the same", "task", s.GetId(), "error", err)
		}
	}
	if err := w.drain(ctx, s.GetId()); err != nil {
		return retry(err)
	}
	if err := w.stopSandbox(ctx, s, "the swarm wants it to end"); err != nil {
		return retry(err)
	}
	c, err := w.engine.ContainerByKey(ctx, core.Key(s.GetId()))
	if err != nil && !errdefs.IsNotFound(err) {
		return retry(err)
	}
	w.volumes.Release(s.GetId())
	return result{c: c}
}

func request(call string) core.StopRequest {
	return core.StopRequest{Owner: core.OwnerSwarm, Call: call, At: time.Now(), Stop: true}
}

// remove removes all of a task, however long it takes; its record first, so that a later agent
// finds objects without a task, and continues.
func (w *worker) remove(ctx context.Context, id string) {
	w.checks.stop(id)
	w.nets.Ending(id)
	c, _ := w.engine.ContainerByKey(ctx, core.Key(id)) // none when it has none
	for wait := firstPause; ; wait = min(2*wait, longestPause) {
		err := w.records.dropTask(id)
		if err == nil {
			err = w.face.removeTask(ctx, id)
		}
		if err == nil {
			w.volumes.Release(id)
			w.nets.Release(id)
		}
		if err == nil || ctx.Err() != nil {
			break
		}
		w.log.WarnContext(ctx, "could not remove a task; will retry", "task", id, "error", err)
		if !pause(ctx, wait) {
			break
		}
	}
	image := ""
	w.mu.Lock()
	if t := w.tasks[id]; t != nil {
		image = t.swarm.GetSpec().GetContainer().GetImage()
	}
	delete(w.tasks, id)
	w.mu.Unlock()
	w.due.Drop(id)
	w.restarts.forget(id)
	w.images.released(ctx, c, image)
}

// removeTask removes a task's sandbox, its own volumes, secrets and logs. It succeeds
// when there is nothing.
func (f *Face) removeTask(ctx context.Context, id string) error {
	why := request("the swarm has removed the task")
	sb, err := f.o.Engine.SandboxByKey(ctx, core.Key(id))
	if errdefs.IsNotFound(err) {
		return f.removeVolumes(ctx, id)
	}
	c, gone := f.o.Engine.ContainerByKey(ctx, core.Key(id))
	mayOwn := gone != nil || slices.ContainsFunc(c.Config.Volumes, func(v core.VolumeMount) bool { return translate.OwnVolumeOf(id, v.Name) })
	if err == nil {
		err = f.empty(ctx, sb, why)
	}
	if err == nil && mayOwn {
		err = f.removeVolumes(ctx, id)
	}
	if err == nil {
		err = f.drop(ctx, sb, why)
	}
	return err
}

// empty removes the container of a task's sandbox.
func (f *Face) empty(ctx context.Context, sb core.Sandbox, why core.StopRequest) error {
	if err := f.o.Engine.StopSandbox(ctx, sb.ID, engine.StopOptions{Request: why}); err != nil {
		return err
	}
	containers, err := f.o.Engine.Containers(ctx, core.Filter{Sandbox: sb.ID})
	if err != nil {
		return err
	}
	for _, c := range containers {
		if err := f.o.Engine.RemoveContainer(ctx, c.ID, engine.RemoveOptions{Force: true, Request: why}); err != nil {
			return err
		}
	}
	return nil
}

// removeVolumes removes the volumes that go with a task.
func (f *Face) removeVolumes(ctx context.Context, id string) error {
	all, err := f.o.Engine.Volumes.List(ctx)
	if err != nil {
		return err
	}
	for _, v := range all {
		if !translate.OwnVolumeOf(id, v.Name) {
			continue
		}
		if err := f.o.Engine.Volumes.Remove(ctx, v.Name); err != nil {
			return err
		}
	}
	return nil
}

// drop removes a task's sandbox, the last of it to go: by it the rest is found again.
func (f *Face) drop(ctx context.Context, sb core.Sandbox, why core.StopRequest) error {
	if err := errors.Join(f.files().remove(sb.ID), f.removeLogs(sb.ID)); err != nil {
		return err
	}
	return f.o.Engine.RemoveSandbox(ctx, sb.ID, engine.RemoveOptions{Force: true, Request: why})
}

func (f *Face) logFile(sandbox core.ID) string {
	return filepath.Join(f.logs(), string(sandbox)+".log")
}

// removeLogs removes a sandbox's output, with rotated files.
func (f *Face) removeLogs(sandbox core.ID) error {
	all, err := filepath.Glob(f.logFile(sandbox) + "*")
	for _, name := range all {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// sweep removes the files of sandboxes not in has, and the anonymous volumes of other tasks,
// because an agent may have died during the removal of a task. After a boot no task has a sandbox,
// and tasks that come back use their old volumes.
func (f *Face) sweep(ctx context.Context, has map[core.ID]bool, tasks []string) error {
	errs := []error{f.files().others(has)}
	logs, err := filepath.Glob(filepath.Join(f.logs(), "*.log*"))
	errs = append(errs, err)
	for _, name := range logs {
		id, _, _ := strings.Cut(filepath.Base(name), ".")
		if !has[core.ID(id)] {
			errs = append(errs, os.Remove(name))
		}
	}
	volumes, err := f.o.Engine.Volumes.List(ctx)
	errs = append(errs, err)
	for _, v := range volumes {
		if !translate.OwnVolume(v.Name) || slices.ContainsFunc(tasks, func(id string) bool { return translate.OwnVolumeOf(id, v.Name) }) {
			continue
		}
		if err := f.o.Engine.Volumes.Remove(ctx, v.Name); !errdefs.IsFailedPrecondition(err) { // one that is used stays
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
