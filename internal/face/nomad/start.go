package nomad

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
	"github.com/longshore/longshore/internal/face/nomad/translate"
	"github.com/longshore/longshore/internal/invalid"
)

// StartTask implements the service: pull, sandbox, container, start. A failure leaves nothing.
func (s *server) StartTask(ctx context.Context, req *nomaddriver.StartTaskRequest) (*nomaddriver.StartTaskResponse, error) {
	resp, err := s.startTask(ctx, req.GetTask())
	return resp, startError(err)
}

func (s *server) startTask(ctx context.Context, t *nomaddriver.TaskConfig) (*nomaddriver.StartTaskResponse, error) {
	sess, err := plugin.Incoming(ctx)
	if err != nil {
		return nil, err
	}
	task, err := translate.Read(sess, t)
	if err != nil {
		return nil, err
	}
	if c, err := s.task(ctx, t.GetId()); err == nil {
		if !sess.Retry {
			return nil, fmt.Errorf("task with ID %q already started: %w", t.GetId(), errdefs.ErrAlreadyExists)
		}
		return s.resume(ctx, t, c)
	}
	if name := task.Sibling(); name != "" {
		if task.Join, err = s.sibling(ctx, t, name); err != nil {
			return nil, err
		}
	}
	images, release, err := s.images.For(ctx, task)
	if err != nil {
		return nil, err
	}
	defer release()
	c, err := s.create(ctx, task, images)
	if err != nil {
		return nil, err
	}
	return s.started(ctx, t, c)
}

// create makes the task and lets it run.
func (s *server) create(ctx context.Context, task translate.Task, images translate.Images) (c core.Container, err error) {
	cfg, err := task.Sandbox()
	if err != nil {
		return c, err
	}
	if err := task.MakeSources(); err != nil {
		return c, err
	}
	sb, c, err := s.engine.CreatePair(ctx, engine.Pair{Sandbox: cfg, ShortName: task.ShortName(), Container: func(sandbox core.ID) (core.ContainerConfig, error) {
		want, err := task.Container(sandbox, images)
		want.Run = true
		return want, err
	}})
	if err != nil {
		return c, err
	}
	s.events.Tell(task.Session.Name, task.Nomad, "Container started", map[string]string{"container": c.ID.Short(), "runtime": c.Runtime})
	for _, w := range task.Conf.Warnings {
		s.events.Tell(task.Session.Name, task.Nomad, "The job asks for something in vain", map[string]string{"warning": w})
	}
	for _, a := range task.Conf.Addrs {
		if !slices.Contains(sb.Network.Addrs, a) { // plugins of a CNI network choose by themselves
			s.events.Tell(task.Session.Name, task.Nomad, "The node could not give all that was asked for", map[string]string{"warning": "the network of this node gives no address that is asked for: " + a.String()})
		}
	}
	for _, w := range c.Warnings {
		s.events.Tell(task.Session.Name, task.Nomad, "The node could not give all that was asked for", map[string]string{"warning": w})
	}
	return c, nil
}

// resume answers a start that was made again because the agent died over it.
func (s *server) resume(ctx context.Context, t *nomaddriver.TaskConfig, c core.Container) (*nomaddriver.StartTaskResponse, error) {
	if c.State == core.ContainerCreated {
		if err := s.engine.StartContainer(ctx, c.ID); err != nil {
			return nil, err
		}
	}
	return s.started(ctx, t, c)
}

func (s *server) started(ctx context.Context, t *nomaddriver.TaskConfig, c core.Container) (*nomaddriver.StartTaskResponse, error) {
	sb, err := s.engine.Sandbox(ctx, c.Sandbox)
	if err != nil {
		return nil, err
	}
	h, err := newHandle(t, c)
	if err != nil {
		return nil, err
	}
	return &nomaddriver.StartTaskResponse{Handle: h, NetworkOverride: translate.Override(t, sb)}, nil
}

// sibling finds the network namespace of another task of the allocation.
func (s *server) sibling(ctx context.Context, t *nomaddriver.TaskConfig, name string) (string, error) {
	all, err := s.engine.Containers(ctx, core.Filter{Labels: map[string]string{
		translate.LabelPrefix + "alloc_id": t.GetAllocId(), translate.LabelPrefix + "task_name": name,
	}})
	if err != nil {
		return "", err
	}
	for _, c := range all {
		if !c.State.Runs() {
			continue
		}
		sb, err := s.engine.Sandbox(ctx, c.Sandbox)
		if err != nil {
			return "", err
		}
		if p := translate.NamespaceOf(sb); p != "" {
			return p, nil
		}
		return "", invalid.Errorf("config.network_mode: task %s has no network of its own", name)
	}
	return "", fmt.Errorf("config.network_mode: task %s does not run (a lifecycle block starts it first): %w", name, errdefs.ErrUnavailable)
}
