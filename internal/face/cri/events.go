package cri

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/cri/convert"
)

// GetContainerEvents sends the present state as events, then new events. If the stream is too slow
// for the log, it sends the present state again.
func (s *server) GetContainerEvents(_ *v1.GetEventsRequest, out v1.RuntimeService_GetContainerEventsServer) error {
	ctx := out.Context()
	t := &eventStream{s: s, out: out, pods: map[core.ID]*v1.PodSandboxStatus{}}
	w := engine.Watch{
		Kinds: []core.EventKind{
			core.EventSandboxReady, core.EventSandboxStopped, core.EventSandboxRemoved,
			core.EventContainerCreated, core.EventContainerStarted, core.EventContainerExited, core.EventContainerRemoved,
		},
		List:  t.present,
		Event: func(_ context.Context, e core.Event) error { return t.event(e) },
	}
	if err := w.Run(ctx, s.engine); err != nil {
		return fmt.Errorf("container events: %w", err)
	}
	return context.Cause(ctx)
}

// eventStream is one stream of events. It remembers pods, because the events of removed containers must
// still name their pod.
type eventStream struct {
	s    *server
	out  v1.RuntimeService_GetContainerEventsServer
	pods map[core.ID]*v1.PodSandboxStatus
}

// present tells each object's last step once.
func (t *eventStream) present(ctx context.Context) error {
	sandboxes, err := t.s.engine.Sandboxes(ctx, core.Filter{})
	if err != nil {
		return err
	}
	for _, sb := range sandboxes {
		if sb.State == core.SandboxCreating { // its event comes when it is ready
			continue
		}
		kind := v1.ContainerEventType_CONTAINER_STARTED_EVENT
		if sb.State == core.SandboxStopped {
			kind = v1.ContainerEventType_CONTAINER_STOPPED_EVENT
		}
		if err := t.sendEvent(sb.ID, string(sb.ID), kind, sb.Created); err != nil {
			return err
		}
		containers, err := t.s.engine.Containers(ctx, core.Filter{Sandbox: sb.ID})
		if err != nil {
			return err
		}
		for _, c := range containers {
			if !shownContainer(&c) {
				continue
			}
			kind, at := lastStep(c)
			if err := t.sendEvent(sb.ID, string(c.ID), kind, at); err != nil {
				return err
			}
		}
	}
	return nil
}

func lastStep(c core.Container) (v1.ContainerEventType, time.Time) {
	switch c.State {
	case core.ContainerRunning, core.ContainerPaused, core.ContainerAsleep:
		return v1.ContainerEventType_CONTAINER_STARTED_EVENT, c.Main.Started
	case core.ContainerExited:
		return v1.ContainerEventType_CONTAINER_STOPPED_EVENT, c.Main.Finished
	case core.ContainerCreating, core.ContainerCreated:
	}
	return v1.ContainerEventType_CONTAINER_CREATED_EVENT, c.Created
}

// event sends one entry of the log. A sandbox appears as a container of its own, with its ID.
func (t *eventStream) event(e core.Event) error {
	tell := func(id core.ID, kind v1.ContainerEventType) error {
		return t.sendEvent(e.Sandbox, string(id), kind, e.At)
	}
	switch e.Kind {
	case core.EventSandboxReady:
		if err := tell(e.Sandbox, v1.ContainerEventType_CONTAINER_CREATED_EVENT); err != nil {
			return err
		}
		return tell(e.Sandbox, v1.ContainerEventType_CONTAINER_STARTED_EVENT)
	case core.EventSandboxStopped:
		return tell(e.Sandbox, v1.ContainerEventType_CONTAINER_STOPPED_EVENT)
	case core.EventSandboxRemoved:
		if t.pods[e.Sandbox] == nil {
			if m := convert.SandboxMetadata(e.Key); m != nil {
				t.pods[e.Sandbox] = &v1.PodSandboxStatus{Id: string(e.Sandbox), Metadata: m, State: v1.PodSandboxState_SANDBOX_NOTREADY}
			}
		}
		defer delete(t.pods, e.Sandbox)
		return tell(e.Sandbox, v1.ContainerEventType_CONTAINER_DELETED_EVENT)
	case core.EventContainerCreated:
		return tell(e.Container, v1.ContainerEventType_CONTAINER_CREATED_EVENT)
	case core.EventContainerStarted:
		return tell(e.Container, v1.ContainerEventType_CONTAINER_STARTED_EVENT)
	case core.EventContainerExited:
		return tell(e.Container, v1.ContainerEventType_CONTAINER_STOPPED_EVENT)
	case core.EventContainerRemoved:
		return tell(e.Container, v1.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
	return nil
}

// sendEvent sends an event of a container or, with its own id, a sandbox.
func (t *eventStream) sendEvent(sandbox core.ID, id string, kind v1.ContainerEventType, at time.Time) error {
	ev := &v1.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: nanos(at)}
	sb, err := t.s.engine.Stored.Sandbox(sandbox)
	switch {
	case err == nil:
		if ev.PodSandboxStatus, err = podStatusOf(sb); err != nil {
			return err
		}
		t.pods[sandbox] = ev.PodSandboxStatus
		if ev.ContainersStatuses, err = statuses(t.s.engine, sandbox); err != nil {
			return err
		}
	case errdefs.IsNotFound(err):
		ev.PodSandboxStatus = t.pods[sandbox]
	default:
		return err
	}
	return t.out.Send(ev)
}
