package docker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/docker/translate"
	"github.com/longshore/longshore/internal/face/docker/view"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/solo"
)

// OwnerLabel is a label in the documents of other owners' containers, with the owner's name.
const OwnerLabel = "longshore.owner"

// showable are the owners with containers that the configuration can show.
func showable() []string {
	return []string{string(core.OwnerCLI), string(core.OwnerCRI), string(core.OwnerSwarm), string(core.OwnerNomad), string(core.OwnerMesos), string(core.OwnerKata)}
}

// others are the containers of other owners that the configuration shows.
type others struct{ f *Face }

// reads returns the engine for requests that only read containers: with other owners' containers if the configuration shows them.
func (o others) reads() *engine.Client {
	if o.f.o.All != nil {
		return o.f.o.All
	}
	return o.f.own
}

// shows reports whether the configuration shows a container of another owner.
func (o others) shows(c *core.Container) bool {
	return o.f.o.All != nil && slices.Contains(o.f.o.Config.Show, string(c.Owner)) && c.State != core.ContainerCreating
}

// findAny finds a container of the API, or another owner's that the configuration shows.
func (f *Face) findAny(ctx context.Context, ref string) (core.Container, error) {
	c, err := f.findOwn(ctx, ref)
	if !errdefs.IsNotFound(err) {
		return c, err
	}
	if c, ok, oerr := (others{f}).find(ctx, ref); ok || oerr != nil {
		return c, oerr
	}
	return c, err
}

// find finds a container; ok is false if there is none.
func (o others) find(ctx context.Context, ref string) (core.Container, bool, error) {
	if o.f.o.All == nil {
		return core.Container{}, false, nil
	}
	list, err := o.f.o.All.Containers(ctx, core.Filter{})
	if err != nil {
		return core.Container{}, false, err
	}
	name := strings.TrimPrefix(ref, "/")
	var found, named []core.Container
	for _, c := range list {
		switch {
		case !o.shows(&c):
		case string(c.ID) == name:
			return c, true, nil
		case otherName(&c) == name:
			named = append(named, c)
		case strings.HasPrefix(string(c.ID), name):
			found = append(found, c)
		}
	}
	if len(named) > 1 { // of two owners, or names that differ in letters that Docker's do not have
		return core.Container{}, false, invalid.Errorf("%d containers have the name %s: use an ID", len(named), name)
	}
	if len(named) == 1 {
		return named[0], true, nil
	}
	switch len(found) {
	case 0:
		return core.Container{}, false, nil
	case 1:
		return found[0], true, nil
	}
	return core.Container{}, false, invalid.Errorf("multiple IDs found with provided prefix: %s", ref)
}

// readOnly is the error of a request that would change another owner's container.
func (o others) readOnly(c *core.Container) error {
	text := fmt.Sprintf("container %s belongs to %s: this API shows it and does not change it", c.ID.Short(), c.Owner)
	if o.manages(c.Owner) {
		text = fmt.Sprintf("container %s belongs to %s: this API stops, kills and restarts it and runs programs in it, and changes nothing else", c.ID.Short(), c.Owner)
	}
	return errdefs.ErrPermissionDenied.WithMessage(text)
}

// manages reports whether the configuration lets clients stop and restart an owner's containers, and run programs in them.
func (o others) manages(owner core.Owner) bool {
	return o.f.o.All != nil && slices.Contains(o.f.o.Config.Manage, string(owner))
}

// managed finds a container that clients may stop, restart and run programs in, and the engine for that.
func (o others) managed(ctx context.Context, ref string) (core.Container, *engine.Client, error) {
	c, err := o.f.findAny(ctx, ref)
	if err == nil && c.Owner != core.OwnerDocker && !o.manages(c.Owner) {
		err = o.readOnly(&c)
	}
	return c, o.engine(&c), err
}

// engine returns the engine of a container's owner.
func (o others) engine(c *core.Container) *engine.Client {
	if c.Owner == core.OwnerDocker || o.f.o.All == nil {
		return o.f.own
	}
	return o.f.o.All
}

// restart restarts another owner's container. Those of the command line start again as they are. For others the restart is a stop: their
// orchestrators make new containers by their own rules.
func (o others) restart(ctx context.Context, c core.Container, opts engine.StopOptions) error {
	if c.Owner == core.OwnerCLI && o.f.o.Restart != nil {
		return o.f.o.Restart(ctx, c, opts)
	}
	return o.f.o.All.StopContainer(ctx, c.ID, opts)
}

// shownOwners returns the owners of further containers.
func (o others) shownOwners() (list []core.Owner) {
	for _, owner := range o.f.o.Config.Show {
		list = append(list, core.Owner(owner))
	}
	return list
}

// describe returns the attributes of the events of another owner's container.
func (o others) describe(c *core.Container) (name, image string, labels map[string]string) {
	if image = c.Config.Shown.Image; image == "" {
		if img, err := o.f.o.All.Images.Get(context.Background(), string(c.Image)); err == nil && len(img.Names) > 0 {
			image = withTag(img.Names[0])
		}
	}
	labels = map[string]string{}
	maps.Copy(labels, c.Labels)
	labels[OwnerLabel] = string(c.Owner)
	return otherName(c), cmp.Or(image, string(c.Image)), labels
}

// otherName returns the name of another owner's container, in the letters that Docker's names have.
func otherName(c *core.Container) string {
	name := strings.Map(func(r rune) rune {
		if r == '_' || r == '.' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, c.Name())
	if name = strings.TrimLeft(name, "_.-"); len(name) < 2 {
		return c.ID.Short()
	}
	return name
}

// object returns a container for its documents: its request is made from its record. Its environment is left out.
func (o others) object(ctx context.Context, c core.Container, images map[string]string) (*view.Object, error) {
	sb, err := o.f.o.All.Sandbox(ctx, c.Sandbox)
	if err != nil {
		return nil, err
	}
	req := &translate.Create{Config: &dockertypes.Config{
		Image: c.Config.Shown.Image, Cmd: c.Main.Args, Labels: map[string]string{}, Tty: c.Config.IO.TTY, Env: []string{},
		OpenStdin: c.Config.IO.Stdin != core.StdinClosed, StopSignal: c.Config.Stop.Signal,
	}, HostConfig: &dockertypes.HostConfig{}}
	for k, v := range c.Labels {
		req.Labels[k] = v
	}
	req.Labels[OwnerLabel] = string(c.Owner)
	if req.Image == "" {
		req.Image = images[string(c.Image)]
	}
	if req.Image == "" {
		req.Image = string(c.Image)
	}
	if spec, err := ocispec.BundleSpec(c.Bundle); err == nil && spec.Process != nil && len(req.Cmd) == 0 {
		req.Cmd = spec.Process.Args
	}
	if list := networksOf(&sb); len(list) > 0 {
		req.HostConfig.NetworkMode = list[0]
	}
	c.Key, c.Labels = core.Key(otherName(&c)), req.Labels
	return &view.Object{Container: c, Sandbox: sb, Asked: req, Record: &solo.Record{}, NetworkID: o.f.networkID, VolumePath: func(string) string { return "" }, Unified: o.f.o.Unified != nil && o.f.o.Unified()}, nil
}

// imageNames returns a name of each image that an owner has, by its id.
func (o others) imageNames(ctx context.Context) (map[string]string, error) {
	names := map[string]string{}
	list, err := o.f.o.All.Images.List(ctx)
	for _, img := range list {
		if len(img.Names) > 0 {
			names[string(img.ID)] = withTag(img.Names[0])
		}
	}
	return names, err
}

// list returns the containers.
func (o others) list(ctx context.Context) (list []*view.Object, err error) {
	if o.f.o.All == nil {
		return nil, nil
	}
	all, err := o.f.o.All.Containers(ctx, core.Filter{})
	if err != nil {
		return nil, err
	}
	names, err := o.imageNames(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		if !o.shows(&c) {
			continue
		}
		if one, err := o.object(ctx, c, names); err == nil { // otherwise it is being removed
			list = append(list, one)
		}
	}
	return list, nil
}
