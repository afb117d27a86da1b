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
	"github.com/longshore/longshore/internal/face/mesos/translate"
)

// cleanTimeout bounds what is taken back after a call has failed.
const cleanTimeout = 30 * time.Second

func (s *server) launchContainer(ctx context.Context, x *api.Exchange) error {
	in := x.Call.GetLaunchContainer()
	return s.launch(ctx, x, in.GetContainerId(), translate.Launch{Command: in.GetCommand(), Container: in.GetContainer(), Resources: in.GetResources(), Permit: s.permit(ctx, x)})
}

func (s *server) launchNestedContainer(ctx context.Context, x *api.Exchange) error {
	in := x.Call.GetLaunchNestedContainer()
	return s.launch(ctx, x, in.GetContainerId(), translate.Launch{Command: in.GetCommand(), Container: in.GetContainer(), Permit: s.permit(ctx, x)})
}

// launch starts a container: 202 when it runs already, 200 when it does now, and
// 400 with the reason when it cannot be started; then nothing of it is left.
func (s *server) launch(ctx context.Context, x *api.Exchange, id *mesosv1.ContainerID, l translate.Launch) error {
	l.ID, l.Work = api.FormatID(id), s.tree.Root()
	unlock, err := s.names.Lock(ctx, l.ID)
	if err != nil {
		return err
	}
	defer unlock()
	runs, err := s.before(ctx, &l)
	if err != nil {
		return asBad(err)
	}
	if runs {
		x.Empty(http.StatusAccepted)
		return nil
	}
	if err := l.Check(); err != nil {
		return asBad(err)
	}
	// A directory without a container is what a launch has left that did not
	// come to an end.
	if err = s.tree.Remove(l.ID); err == nil {
		l.Dir, err = s.tree.Make(l.ID)
	}
	if err != nil {
		return fmt.Errorf("Failed to create sandbox: %w", err) //nolint:staticcheck // Mesos' text
	}
	if err = s.create(ctx, l); err != nil {
		return asBad(errors.Join(err, s.tree.Remove(l.ID)))
	}
	return nil
}

// before finds out whether the container runs already, and the one that it is to
// be in. One that has ended makes room for a standalone container of its name.
func (s *server) before(ctx context.Context, l *translate.Launch) (runs bool, err error) {
	t, err := s.find(ctx, l.ID)
	switch {
	case errdefs.IsNotFound(err):
		if err := s.dropUnfinished(ctx, l.ID); err != nil {
			return false, err
		}
	case err != nil:
		return false, err
	case t.process().Autopsy == nil:
		return true, nil
	case t.nested():
		return false, fmt.Errorf("Container %s has ended and was not removed", l.ID) //nolint:staticcheck // as Mesos begins its texts
	default:
		if err := s.drop(ctx, t, "LAUNCH_CONTAINER"); err != nil {
			return false, err
		}
	}
	return false, s.parent(ctx, l)
}

// dropUnfinished takes away the surroundings of a standalone container that a
// launch has left which did not come to an end.
func (s *server) dropUnfinished(ctx context.Context, id string) error {
	sb, err := s.engine.SandboxByKey(ctx, core.Key(id))
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.drop(ctx, target{sandbox: sb.ID}, "LAUNCH_CONTAINER")
}

// parent finds the container that a nested one is to be in.
func (s *server) parent(ctx context.Context, l *translate.Launch) error {
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
	if p.State != core.ContainerRunning {
		return fmt.Errorf("Parent container %s is in 'DESTROYING' state", name) //nolint:staticcheck // Mesos' text
	}
	l.Parent = &p
	if l.Of, err = translate.ReadRecord(p); err != nil {
		return err
	}
	return l.Inherit()
}

// found are the images that the launch asks for.
func found(ctx context.Context, from *lease.Lease, l translate.Launch) (all translate.Images, err error) {
	if img := l.Container.GetMesos().GetImage(); img != nil {
		if all.Root, err = image(ctx, from, img); err != nil {
			return all, err
		}
	}
	for _, v := range l.VolumeImages() {
		img, err := image(ctx, from, v)
		if err != nil {
			return all, err
		}
		all.Volumes = append(all.Volumes, img)
	}
	return all, nil
}

// image finds an image, which is pulled when it is not there or not to be from here.
func image(ctx context.Context, from *lease.Lease, of *mesosv1.Image) (img core.Image, err error) {
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

// create makes the container and lets it run.
func (s *server) create(ctx context.Context, l translate.Launch) (err error) {
	lease := s.engine.Images.Lease()
	defer lease.Release()
	images, err := found(ctx, lease, l)
	if err != nil {
		return err
	}
	names, give, err := s.gpus.take(l.WantsGPUs(), func() ([]core.Container, error) { return s.engine.Containers(ctx, core.Filter{}) })
	if err != nil {
		return err
	}
	defer give()
	l.GPUs, l.Closed = names, s.closed
	made, err := makeContainer(ctx, s.engine, l, images)
	if err != nil {
		return err
	}
	if made.container.State == core.ContainerCreated {
		err = s.fetchAndStart(ctx, l, made.container)
	}
	if err == nil && l.Parent != nil {
		// Its parent may have ended meanwhile, when this one was not there yet.
		if p, perr := s.engine.Container(ctx, l.Parent.ID); perr != nil || p.State == core.ContainerExited {
			err = fmt.Errorf("Parent container %s is in 'DESTROYING' state", l.Parent.Key) //nolint:staticcheck // Mesos' text
		}
	}
	if err == nil {
		return nil
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	if derr := s.drop(clean, made, "LAUNCH_CONTAINER"); derr != nil {
		err = errors.Join(err, fmt.Errorf("take back container %s: %w", l.ID, derr))
	}
	return err
}

// makeContainer makes a container, a standalone one with surroundings of its own. It
// runs at once unless something is to be fetched first. What fails leaves nothing.
func makeContainer(ctx context.Context, e *engine.Client, l translate.Launch, images translate.Images) (target, error) {
	config := func(sandbox core.ID) (core.ContainerConfig, error) {
		cfg, err := l.ContainerOf(sandbox, images)
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
	cfg, err := l.Sandbox()
	if err != nil {
		return target{}, err
	}
	sb, c, err := e.CreatePair(ctx, engine.Pair{Sandbox: cfg, Container: config})
	return target{sandbox: sb.ID, container: c}, err
}

// target is what a name of Mesos' stands for: a container, or a session, which is
// a further process of the container that it is in.
type target struct {
	sandbox   core.ID // of a standalone container
	container core.Container
	session   core.ProcessID // "" for the container itself
}

func (t target) ref() core.Ref         { return core.Ref{Container: t.container.ID, Process: t.session} }
func (t target) process() core.Process { return *t.container.Process(t.session) }
func (t target) nested() bool          { return t.sandbox == "" }

// find finds what a name as text stands for. NotFound.
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

// drop ends what t is and takes it away with all that is in it; success when
// there is nothing. Directories stay.
func (s *server) drop(ctx context.Context, t target, call string) error {
	opts := engine.RemoveOptions{Force: true, Asked: asked(call)}
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

func asked(call string) core.Asked {
	return core.Asked{Owner: core.OwnerMesos, Call: call, At: time.Now()}
}

// asBad is err as what is wrong with the request, as Mesos has it for launches;
// what is not built says so.
func asBad(err error) error {
	if e := (*api.Error)(nil); errors.As(err, &e) {
		return err
	}
	code := http.StatusBadRequest
	if errdefs.IsNotImplemented(err) {
		code = http.StatusNotImplemented
	}
	return &api.Error{Code: code, Text: errtext.Plain(err.Error())}
}
