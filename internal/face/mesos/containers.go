package mesos

import (
	"context"
	"fmt"
	"net/http"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/face/mesos/translate"
	"github.com/longshore/longshore/internal/face/mesos/view"
)

// waitContainer answers when the container and everything nested in it have ended. A standalone
// container exists until it is removed.
func (s *server) waitContainer(ctx context.Context, x *api.Exchange) error {
	id := api.FormatID(api.ContainerIDOf(x.Call))
	unknown := &api.Error{Code: http.StatusNotFound, Text: "Container " + id + " cannot be found"}
	a, err := s.waitEnd(ctx, id)
	if errdefs.IsNotFound(err) {
		var ref core.Ref
		if ref, err = s.pastSession(ctx, id); err == nil {
			a, err = s.engine.KeptExit(ctx, ref)
		}
	}
	if errdefs.IsNotFound(err) {
		return unknown
	}
	if err != nil {
		return err
	}
	if a.OOM != nil && a.Limit == 0 {
		a.Limit = s.memoryLimit(ctx, api.RootOf(id))
	}
	var disk uint64
	if _, exceeded := view.DiskLimitMessage(&a); exceeded {
		disk = s.diskLimit(ctx, id)
	}
	end := view.WaitResult(a, disk)
	if x.Call.GetType() == mesosagent.Call_WAIT_NESTED_CONTAINER {
		return x.Answer(&mesosagent.Response{Type: mesosagent.Response_WAIT_NESTED_CONTAINER.Enum(), WaitNestedContainer: &mesosagent.Response_WaitNestedContainer{
			ExitStatus: end.ExitStatus, State: end.State, Reason: end.Reason, Limitation: end.Limitation, Message: end.Message,
		}})
	}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_WAIT_CONTAINER.Enum(), WaitContainer: end})
}

// pastSession returns the process of a session with only its exit kept. NotFound if its container
// is gone.
func (s *server) pastSession(ctx context.Context, id string) (core.Ref, error) {
	parent, value := api.SplitID(id)
	c, err := s.engine.ContainerByKey(ctx, core.Key(parent))
	return core.Ref{Container: c.ID, Process: core.ProcessID(value)}, err
}

// memoryLimit is the memory limit of a standalone container and everything nested in
// it, in bytes; 0 if it is not limited, or not known any more.
func (s *server) memoryLimit(ctx context.Context, root string) uint64 {
	sb, err := s.engine.SandboxByKey(ctx, core.Key(root))
	if err != nil || sb.Config.Resources == nil || sb.Config.Resources.Memory == nil || sb.Config.Resources.Memory.Limit == nil {
		return 0
	}
	return uint64(max(*sb.Config.Resources.Memory.Limit, 0))
}

// diskLimit is how much disk space a standalone container may use, in bytes; 0 if it
// is not limited, or not known any more.
func (s *server) diskLimit(ctx context.Context, id string) uint64 {
	c, err := s.engine.ContainerByKey(ctx, core.Key(id))
	if err != nil {
		return 0
	}
	rec, err := translate.ReadRecord(c)
	if err != nil {
		return 0
	}
	return rec.Disk
}

// waitEnd returns when the container or session has ended. NotFound.
func (s *server) waitEnd(ctx context.Context, id string) (core.Autopsy, error) {
	t, err := s.find(ctx, id)
	if err != nil {
		return core.Autopsy{}, err
	}
	a, err := s.engine.Wait(ctx, t.ref())
	if err == nil && t.session == "" {
		err = s.stopNested(ctx, t.container)
	}
	return a, err
}

// killContainer sends a signal to the container's main process.
func (s *server) killContainer(ctx context.Context, x *api.Exchange) error {
	id, sig := api.FormatID(api.ContainerIDOf(x.Call)), int(unix.SIGKILL)
	if in := x.Call.GetKillContainer(); in.GetSignal() != 0 {
		sig = int(in.GetSignal())
	} else if in := x.Call.GetKillNestedContainer(); in.GetSignal() != 0 {
		sig = int(in.GetSignal())
	}
	t, err := s.find(ctx, id)
	if err == nil {
		if sig < 1 || sig > maxSignal {
			return fmt.Errorf("Unable to send signal to container: Invalid argument") //nolint:staticcheck,perfsprint // Mesos' text
		}
		err = s.engine.Signal(ctx, t.ref(), sig, stopRequest(x.Call.GetType().String()))
	}
	if errdefs.IsNotFound(err) {
		return &api.Error{Code: http.StatusNotFound, Text: "Container '" + id + "' cannot be found (or is already killed)"}
	}
	return err
}

// maxSignal is the highest signal number of the kernel.
const maxSignal = 64

// removeContainer removes an ended container's record and sandbox.
func (s *server) removeContainer(ctx context.Context, x *api.Exchange) error {
	id := api.FormatID(api.ContainerIDOf(x.Call))
	unlock, err := s.ids.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	t, err := s.find(ctx, id)
	if errdefs.IsNotFound(err) {
		if parent, _ := api.SplitID(id); parent == "" {
			return fmt.Errorf("Unknown root container %s", id) //nolint:staticcheck // Mesos' text
		}
		// A nested container is removed together with its parent.
		ref, err := s.pastSession(ctx, id)
		if err == nil {
			err = s.engine.ForgetExit(ctx, ref)
		}
		return ignoreNotFound(err)
	}
	if err != nil {
		return err
	}
	if t.process().Autopsy == nil {
		if t.isNested() {
			return fmt.Errorf("Nested container has not terminated yet") //nolint:staticcheck,perfsprint // Mesos' text
		}
		return fmt.Errorf("Container %s has not terminated yet", id) //nolint:staticcheck // as Mesos has it for nested ones
	}
	if err := s.remove(ctx, t, x.Call.GetType().String()); err != nil {
		return err
	}
	if t.session != "" {
		s.sessions.End(id)
		return s.engine.ForgetExit(ctx, t.ref())
	}
	return s.tree.Remove(id)
}

// stopNested stops the containers nested in an ended one, and returns when they have ended.
func (s *server) stopNested(ctx context.Context, c core.Container) error {
	all, err := s.engine.Containers(ctx, core.Filter{Sandbox: c.Sandbox})
	if err != nil {
		return err
	}
	for _, n := range all {
		if n.Parent != c.ID {
			continue
		}
		ref := core.Ref{Container: n.ID}
		err := s.engine.Signal(ctx, ref, int(unix.SIGKILL), stopRequest("the end of "+string(c.Key)))
		if err == nil || errdefs.IsNotFound(err) { // NotFound: it has ended, but the end may not be recorded yet
			_, err = s.engine.Wait(ctx, ref)
		}
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		if err := s.stopNested(ctx, n); err != nil {
			return err
		}
	}
	return nil
}
