package nomad

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/timestamppb"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
	"github.com/longshore/longshore/internal/face/nomad/translate"
	"github.com/longshore/longshore/internal/ocispec"
)

// RecoverTask implements the service: a task that has ended meanwhile is recovered too, and
// WaitTask returns its end.
func (s *server) RecoverTask(ctx context.Context, req *nomaddriver.RecoverTaskRequest) (*nomaddriver.RecoverTaskResponse, error) {
	id, st, err := readHandle(req.GetHandle())
	if err != nil {
		return nil, err
	}
	c, err := s.task(ctx, id)
	if err != nil {
		return nil, err
	}
	if c.ID != st.Container {
		return nil, fmt.Errorf("recover task %s: container %s is not the one it had: %w", id, c.ID.Short(), errdefs.ErrFailedPrecondition)
	}
	return &nomaddriver.RecoverTaskResponse{}, nil
}

// WaitTask implements the service.
func (s *server) WaitTask(ctx context.Context, req *nomaddriver.WaitTaskRequest) (*nomaddriver.WaitTaskResponse, error) {
	c, err := s.task(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	a, err := s.engine.Wait(ctx, core.Ref{Container: c.ID})
	if errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("%w: %s", errUnknownTask, req.GetTaskId())
	}
	if err != nil {
		return nil, err
	}
	return &nomaddriver.WaitTaskResponse{Result: exitResult(a), Err: exitError(a)}, nil
}

// exitResult is how a process ended. A killed one has both, as Nomad's own
// drivers say it.
func exitResult(a core.Autopsy) *nomaddriver.ExitResult {
	return &nomaddriver.ExitResult{ExitCode: int32(a.Exit.Status()), Signal: int32(a.Exit.Signal), OomKilled: oomKilled(a)}
}

// oomKilled: an out-of-memory kill that the program has survived is not its end.
func oomKilled(a core.Autopsy) bool { return a.OOM != nil && a.Exit.Status() != 0 }

// exitError is the part of an end that the exit status cannot express.
func exitError(a core.Autopsy) string {
	if a.Exit.Lost || a.Start != "" || oomKilled(a) {
		return a.Verdict
	}
	return ""
}

// StopTask implements the service. It succeeds on an ended or removed task: Nomad would try again
// for minutes otherwise.
func (s *server) StopTask(ctx context.Context, req *nomaddriver.StopTaskRequest) (*nomaddriver.StopTaskResponse, error) {
	if sig := req.GetSignal(); sig != "" {
		if _, err := ocispec.Signal(sig); err != nil {
			return nil, err
		}
	}
	c, err := s.engine.ContainerByKey(ctx, core.Key(req.GetTaskId()))
	if errdefs.IsNotFound(err) {
		return &nomaddriver.StopTaskResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	grace := max(req.GetTimeout().AsDuration(), 0)
	err = s.engine.StopContainer(ctx, c.ID, engine.StopOptions{Signal: req.GetSignal(), Grace: &grace, Request: asked("StopTask")})
	return &nomaddriver.StopTaskResponse{}, err
}

// DestroyTask implements the service: it removes all of the task, with running processes.
func (s *server) DestroyTask(ctx context.Context, req *nomaddriver.DestroyTaskRequest) (*nomaddriver.DestroyTaskResponse, error) {
	sess, err := plugin.Incoming(ctx)
	if err != nil {
		return nil, err
	}
	sb, err := s.engine.SandboxByKey(ctx, core.Key(req.GetTaskId()))
	if errdefs.IsNotFound(err) {
		if sess.Retry { // the call that the agent died over has come to its end, or the agent's recovery has
			return &nomaddriver.DestroyTaskResponse{}, nil
		}
		return nil, fmt.Errorf("%w: %s", errUnknownTask, req.GetTaskId())
	}
	if err != nil {
		return nil, err
	}
	c, err := s.engine.ContainerByKey(ctx, core.Key(req.GetTaskId()))
	if err == nil && !req.GetForce() && c.State != core.ContainerExited {
		return nil, fmt.Errorf("cannot destroy running task %s: %w", req.GetTaskId(), errdefs.ErrFailedPrecondition)
	}
	if err := s.engine.RemoveSandbox(ctx, sb.ID, engine.RemoveOptions{Force: true, Request: asked("DestroyTask")}); err != nil {
		return nil, err
	}
	if err := s.forgetVolumes(ctx, c); err != nil {
		return nil, err
	}
	s.usage.Forget(c.ID)
	s.images.Released(c, sess)
	return &nomaddriver.DestroyTaskResponse{}, nil
}

// InspectTask implements the service. Nomad requires every field of the status, in all states of
// the task.
func (s *server) InspectTask(ctx context.Context, req *nomaddriver.InspectTaskRequest) (*nomaddriver.InspectTaskResponse, error) {
	c, err := s.task(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	sb, err := s.engine.Sandbox(ctx, c.Sandbox)
	if err != nil {
		return nil, err
	}
	st := &nomaddriver.TaskStatus{
		Id: req.GetTaskId(), Name: taskName(req.GetTaskId()), State: nomaddriver.TaskState_RUNNING, Result: &nomaddriver.ExitResult{},
		StartedAt: timestamppb.New(c.Main.Started), CompletedAt: timestamppb.New(time.Time{}),
	}
	switch c.State {
	case core.ContainerExited:
		st.State, st.CompletedAt = nomaddriver.TaskState_EXITED, timestamppb.New(c.Main.Finished)
		if c.Main.Autopsy != nil {
			st.Result = exitResult(*c.Main.Autopsy)
		}
	case core.ContainerCreated, core.ContainerCreating:
		st.State = nomaddriver.TaskState_UNKNOWN
	case core.ContainerRunning, core.ContainerPaused, core.ContainerAsleep:
	}
	attributes := map[string]string{"container_id": string(c.ID), "runtime": c.Runtime, "image": string(c.Image)}
	return &nomaddriver.InspectTaskResponse{
		Task: st, Driver: &nomaddriver.TaskDriverStatus{Attributes: attributes}, NetworkOverride: translate.Override(nil, sb),
	}, nil
}

// SignalTask implements the service.
func (s *server) SignalTask(ctx context.Context, req *nomaddriver.SignalTaskRequest) (*nomaddriver.SignalTaskResponse, error) {
	sig, err := ocispec.Signal(req.GetSignal())
	if err != nil {
		return nil, err
	}
	c, err := s.task(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	return &nomaddriver.SignalTaskResponse{}, s.engine.Signal(ctx, core.Ref{Container: c.ID}, sig, asked("SignalTask"))
}
