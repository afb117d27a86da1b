package mesos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/containerd/errdefs"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/lease"
	"github.com/longshore/longshore/internal/face/errtext"
	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/face/mesos/fetch"
	"github.com/longshore/longshore/internal/face/mesos/translate"
	"github.com/longshore/longshore/internal/ocispec"
)

// undoTimeout limits the clean-up after a failed call.
const undoTimeout = 30 * time.Second

func (s *server) launchContainer(ctx context.Context, x *api.Exchange) error {
	in := x.Call.GetLaunchContainer()
	return s.launch(ctx, x, in.GetContainerId(), translate.Launch{Command: in.GetCommand(), Container: in.GetContainer(), Resources: in.GetResources(), PermitUser: s.permitUser(ctx, x)})
}

func (s *server) launchNestedContainer(ctx context.Context, x *api.Exchange) error {
	in := x.Call.GetLaunchNestedContainer()
	return s.launch(ctx, x, in.GetContainerId(), translate.Launch{Command: in.GetCommand(), Container: in.GetContainer(), PermitUser: s.permitUser(ctx, x)})
}

// launch starts a container. It answers 202 if the container runs already, 200 if it
// runs now, and 400 with the reason if it cannot be started; then nothing of it
// remains.
func (s *server) launch(ctx context.Context, x *api.Exchange, id *mesosv1.ContainerID, l translate.Launch) error {
	l.ID, l.WorkDir = api.FormatID(id), s.tree.Root()
	unlock, err := s.ids.Lock(ctx, l.ID)
	if err != nil {
		return err
	}
	defer unlock()
	runs, err := s.prepare(ctx, &l)
	if err != nil {
		return asBadRequest(err)
	}
	if runs {
		x.Empty(http.StatusAccepted)
		return nil
	}
	if err := l.Check(); err != nil {
		return asBadRequest(err)
	}
	// A directory without a container is left from a launch that was not completed.
	if err = s.tree.Remove(l.ID); err == nil {
		l.Dir, err = s.tree.Make(l.ID)
	}
	if err != nil {
		return fmt.Errorf("Failed to create sandbox: %w", err) //nolint:staticcheck // Mesos' text
	}
	if err = s.createAndStart(ctx, l); err != nil {
		return asBadRequest(errors.Join(err, s.tree.Remove(l.ID)))
	}
	return nil
}

// prepare reports whether the container runs already, and finds its parent. A
// standalone container that has ended is removed to make room for a new one with its
// id.
func (s *server) prepare(ctx context.Context, l *translate.Launch) (runs bool, err error) {
	t, err := s.find(ctx, l.ID)
	switch {
	case errdefs.IsNotFound(err):
		if err := s.removeSandbox(ctx, l.ID); err != nil {
			return false, err
		}
	case err != nil:
		return false, err
	case t.process().Autopsy == nil:
		return true, nil
	case t.isNested():
		return false, fmt.Errorf("Container %s has ended and was not removed", l.ID) //nolint:staticcheck // as Mesos begins its texts
	default:
		if err := s.remove(ctx, t, "LAUNCH_CONTAINER"); err != nil {
			return false, err
		}
	}
	return false, s.findParent(ctx, l)
}

// removeSandbox removes the engine's sandbox of a standalone container after an incomplete launch.
func (s *server) removeSandbox(ctx context.Context, id string) error {
	sb, err := s.engine.SandboxByKey(ctx, core.Key(id))
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.remove(ctx, target{sandbox: sb.ID}, "LAUNCH_CONTAINER")
}

// findParent finds the container that a nested one is launched in.
func (s *server) findParent(ctx context.Context, l *translate.Launch) error {
	name, _ := api.SplitID(l.ID)
	if name == "" {
		return nil
	}
	if _, err := s.engine.ContainerByKey(ctx, core.Key(l.Root())); errdefs.IsNotFound(err) {
		return fmt.Errorf("Root container %s not found", l.Root()) //nolint:staticcheck // Mesos' text
	} else if err != nil {
		return err
	}
	p, err := s.engine.ContainerByKey(ctx, core.Key(name))
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("Parent container %s does not exist", name) //nolint:staticcheck // Mesos' text
	}
	if err != nil {
		return err
	}
	if !p.State.Runs() {
		return fmt.Errorf("Parent container %s is in 'DESTROYING' state", name) //nolint:staticcheck // Mesos' text
	}
	l.Parent = &p
	if l.ParentRecord, err = translate.ReadRecord(p); err != nil {
		return err
	}
	return l.Inherit()
}

// findImages finds the images that a launch asks for.
func findImages(ctx context.Context, from *lease.Lease, l translate.Launch) (all translate.Images, err error) {
	if img := l.Container.GetMesos().GetImage(); img != nil {
		if all.Root, err = findImage(ctx, from, img); err != nil {
			return all, err
		}
	}
	for _, v := range l.VolumeImages() {
		img, err := findImage(ctx, from, v)
		if err != nil {
			return all, err
		}
		all.Volumes = append(all.Volumes, img)
	}
	return all, nil
}

// findImage finds an image. It is pulled if it is missing, or if the call does not
// accept a cached one.
func findImage(ctx context.Context, from *lease.Lease, of *mesosv1.Image) (img core.Image, err error) {
	name, always := of.GetDocker().GetName(), !of.GetCached()
	err = errdefs.ErrNotFound
	if !always {
		img, err = from.Image(ctx, name)
	}
	if errdefs.IsNotFound(err) {
		img, err = from.Pull(ctx, name, core.PullOptions{Always: always})
	}
	if err != nil {
		return img, fmt.Errorf("image %s: %w", name, err)
	}
	return img, nil
}

// createAndStart creates the container and starts it, or undoes both.
func (s *server) createAndStart(ctx context.Context, l translate.Launch) (err error) {
	lease := s.engine.Images.Lease()
	defer lease.Release()
	images, err := findImages(ctx, lease, l)
	if err != nil {
		return err
	}
	names, release, err := s.gpus.take(l.WantsGPUs(), func() ([]core.Container, error) { return s.engine.Containers(ctx, core.Filter{}) })
	if err != nil {
		return err
	}
	defer release()
	l.GPUs, l.AgentRoot = names, s.agentRoot
	made, err := createContainer(ctx, s.engine, l, images)
	if err != nil {
		return err
	}
	if made.container.State == core.ContainerCreated {
		err = s.fetchAndStart(ctx, l, made.container)
	}
	if err == nil && l.Parent != nil {
		// The parent may have ended before this container existed, and so not have stopped it.
		if p, perr := s.engine.Container(ctx, l.Parent.ID); perr != nil || p.State == core.ContainerExited {
			err = fmt.Errorf("Parent container %s is in 'DESTROYING' state", l.Parent.Key) //nolint:staticcheck // Mesos' text
		}
	}
	if err == nil {
		return nil
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if derr := s.remove(clean, made, "LAUNCH_CONTAINER"); derr != nil {
		err = errors.Join(err, fmt.Errorf("undo the launch of container %s: %w", l.ID, derr))
	}
	return err
}

// fetchAndStart fetches the command's URIs into the sandbox of a created container, and starts the
// container. Only the container's root determines its user, who owns the files and needs the right
// to read them.
func (s *server) fetchAndStart(ctx context.Context, l translate.Launch, c core.Container) error {
	p, err := ocispec.BundleProcess(c.Bundle)
	if err != nil {
		return err
	}
	err = s.fetcher.Fetch(ctx, l.Dir, fetch.User{UID: p.User.UID, GID: p.User.GID, Groups: p.User.AdditionalGids}, l.Command.GetUris())
	s.state.counters.Fetched(err == nil)
	if err != nil {
		return fmt.Errorf("Failed to fetch all URIs for container '%s': %w", l.ID, err) //nolint:staticcheck // Mesos' text
	}
	return s.engine.StartContainer(ctx, c.ID)
}

// createContainer creates a container, a standalone one together with its sandbox. It
// starts at once unless URIs must be fetched first. If it fails, nothing remains.
func createContainer(ctx context.Context, e *engine.Client, l translate.Launch, images translate.Images) (target, error) {
	config := func(sandbox core.ID) (core.ContainerConfig, error) {
		cfg, err := l.ContainerConfig(sandbox, images)
		cfg.Run = len(l.Command.GetUris()) == 0
		return cfg, err
	}
	if l.Parent != nil {
		cfg, err := config(l.Parent.Sandbox)
		if err != nil {
			return target{}, err
		}
		c, err := e.CreateContainer(ctx, cfg)
		return target{container: c}, err
	}
	cfg, err := l.SandboxConfig()
	if err != nil {
		return target{}, err
	}
	sb, c, err := e.CreatePair(ctx, engine.Pair{Sandbox: cfg, Container: config})
	return target{sandbox: sb.ID, container: c}, err
}

// target is the target of an id: a container, or a session, which is another process of its parent
// container.
type target struct {
	sandbox   core.ID // of a standalone container
	container core.Container
	session   core.ProcessID // "" for the container itself
}

func (t target) ref() core.Ref         { return core.Ref{Container: t.container.ID, Process: t.session} }
func (t target) process() core.Process { return *t.container.Process(t.session) }
func (t target) isNested() bool        { return t.sandbox == "" }

// find returns the target of an id in text form. NotFound.
func (s *server) find(ctx context.Context, id string) (target, error) {
	parent, value := api.SplitID(id)
	c, err := s.engine.ContainerByKey(ctx, core.Key(id))
	if err == nil && (c.State == core.ContainerCreating || c.State == core.ContainerCreated || c.Removing) {
		err = fmt.Errorf("container %s: %w", id, errdefs.ErrNotFound)
	}
	switch {
	case err == nil && parent == "":
		return target{container: c, sandbox: c.Sandbox}, nil
	case err == nil:
		return target{container: c}, nil
	case !errdefs.IsNotFound(err) || parent == "":
		return target{}, err
	}
	if c, err = s.engine.ContainerByKey(ctx, core.Key(parent)); err != nil {
		return target{}, err
	}
	if c.Process(core.ProcessID(value)) == nil {
		return target{}, fmt.Errorf("container %s: %w", id, errdefs.ErrNotFound)
	}
	return target{container: c, session: core.ProcessID(value)}, nil
}

// remove stops and removes a target with everything in it; it succeeds if there is
// nothing. Directories remain.
func (s *server) remove(ctx context.Context, t target, call string) error {
	opts := engine.RemoveOptions{Force: true, Request: stopRequest(call)}
	switch {
	case t.sandbox != "":
		return s.engine.RemoveSandbox(ctx, t.sandbox, opts)
	case t.session != "":
		return s.engine.RemoveProcess(ctx, t.ref(), opts)
	case t.container.ID != "":
		return s.engine.RemoveContainer(ctx, t.container.ID, opts)
	}
	return nil
}

// stopRequest returns the stop request of a call.
func stopRequest(call string) core.StopRequest {
	return core.StopRequest{Owner: core.OwnerMesos, Call: call, At: time.Now()}
}

// asBadRequest answers a failed launch with status 400, as Mesos does, or 501 for unimplemented
// features.
func asBadRequest(err error) error {
	if e := (*api.Error)(nil); errors.As(err, &e) {
		return err
	}
	code := http.StatusBadRequest
	if errdefs.IsNotImplemented(err) {
		code = http.StatusNotImplemented
	}
	return &api.Error{Code: code, Text: errtext.Plain(err.Error())}
}
