package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/docker/events"
	"github.com/longshore/longshore/internal/face/docker/translate"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/solo"
)

// idLength is the length of an id.
const idLength = 64

// find finds a container of the API by its id, its name, or the beginning of its id. For another owner's container that is shown the
// error says that it cannot be changed.
func (f *Face) find(ctx context.Context, ref string) (core.Container, error) {
	c, err := f.findOwn(ctx, ref)
	if errdefs.IsNotFound(err) {
		if other, ok, oerr := (others{f}).find(ctx, ref); ok && oerr == nil {
			return c, others{f}.readOnly(&other)
		}
	}
	return c, err
}

// findOwn finds a container of the API.
func (f *Face) findOwn(ctx context.Context, ref string) (core.Container, error) {
	name := strings.TrimPrefix(ref, "/")
	if name == "" {
		return core.Container{}, invalid.Errorf("invalid container name or ID: value is empty")
	}
	if len(name) == idLength {
		if c, err := f.own.Container(ctx, core.ID(name)); err == nil {
			return f.shown(c)
		}
	}
	if c, err := f.own.ContainerByKey(ctx, core.Key(name)); err == nil {
		return f.shown(c)
	}
	list, err := f.own.Containers(ctx, core.Filter{})
	if err != nil {
		return core.Container{}, err
	}
	var found []core.Container
	for _, c := range list {
		if strings.HasPrefix(string(c.ID), name) {
			found = append(found, c)
		}
	}
	switch len(found) {
	case 1:
		return f.shown(found[0])
	case 0:
		return core.Container{}, noSuchContainer(ref)
	}
	return core.Container{}, invalid.Errorf("multiple IDs found with provided prefix: %s", ref)
}

// shown returns a container that exists for clients: a create that has not finished does not.
func (f *Face) shown(c core.Container) (core.Container, error) {
	if c.State == core.ContainerCreating {
		return core.Container{}, noSuchContainer(c.ID.Short())
	}
	return c, nil
}

func noSuchContainer(ref string) error {
	return errdefs.ErrNotFound.WithMessage("No such container: " + ref)
}

// asked returns the completed create request of a container.
func asked(c core.Container) (*translate.Create, error) {
	r, _, err := recorded(c)
	return r, err
}

// recorded returns the completed create request of a container, and its record.
func recorded(c core.Container) (*translate.Create, *solo.Record, error) {
	rec := solo.RecordOf(c)
	r, err := translate.Read(rec.Face)
	if err == nil && (r.Config == nil || r.HostConfig == nil) {
		err = fmt.Errorf("its create request is missing: %w", errdefs.ErrDataLoss)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the record of container %s: %w", c.ID.Short(), err)
	}
	return r, &rec, nil
}

// requests has the decoded records of the containers of the last list, because decoding takes most of a list's time.
type requests struct {
	mu  sync.Mutex // guards all
	all map[core.ID]decoded
}

// decoded is a decoded record. It is only read.
type decoded struct {
	data []byte // the record
	req  *translate.Create
	rec  *solo.Record
}

// reader returns a function that decodes the records of a list. They are kept for the next list.
func (r *requests) reader() func(core.Container) (*translate.Create, *solo.Record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, next := r.all, map[core.ID]decoded{}
	r.all = next
	return func(c core.Container) (*translate.Create, *solo.Record, error) {
		r.mu.Lock()
		d, ok := last[c.ID] // another list may still write it
		r.mu.Unlock()
		if !ok || !bytes.Equal(d.data, c.Data) {
			var err error
			if d.req, d.rec, err = recorded(c); err != nil {
				return nil, nil, err
			}
			d.data = c.Data
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		next[c.ID] = d
		return d.req, d.rec, nil
	}
}

// change stores a changed create request of a container.
func (f *Face) change(ctx context.Context, id core.ID, fn func(*translate.Create)) error {
	f.changing.Lock()
	defer f.changing.Unlock()
	c, err := f.own.Container(ctx, id)
	if err != nil {
		return err
	}
	r, err := asked(c)
	if err != nil {
		return err
	}
	fn(r)
	rec := solo.RecordOf(c)
	if rec.Face, err = json.Marshal(r); err != nil {
		return err
	}
	data, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	return f.own.SetContainerData(ctx, id, data)
}

// describe returns the attributes of a container's events.
func (f *Face) describe(id core.ID) (name, image string, labels map[string]string) {
	c, err := others{f}.reads().Container(context.Background(), id)
	if err != nil {
		return "", "", nil
	}
	if c.Owner != core.OwnerDocker {
		return others{f}.describe(&c)
	}
	if r, err := asked(c); err == nil {
		image = r.Image
	}
	return string(c.Key), image, c.Labels
}

// endpoints returns the networks of a container, for events.
func (f *Face) endpoints(id core.ID) (list []events.Endpoint) {
	ctx := context.Background()
	c, err := f.own.Container(ctx, id)
	if err != nil {
		return nil
	}
	sb, err := f.own.Sandbox(ctx, c.Sandbox)
	if err != nil {
		return nil
	}
	for _, name := range networksOf(&sb) {
		list = append(list, events.Endpoint{ID: f.networkID(name), Name: name, Driver: driverOf(name)})
	}
	return list
}

// The networks that every node has.
const (
	bridgeNetwork = "bridge"
	hostNetwork   = "host"
	noneNetwork   = "none"
)

// networksOf returns the names of a sandbox's networks as clients know them.
func networksOf(sb *core.Sandbox) (list []string) {
	switch sb.Config.Namespaces.Net.Mode {
	case core.Host:
		return []string{hostNetwork}
	case core.Joined:
		return nil
	case core.PerContainer, core.Shared, core.Adopted:
	}
	if sb.Config.Network.Name == core.NetworkNone {
		return []string{noneNetwork}
	}
	for _, a := range sb.Config.Network.Attached() {
		list = append(list, shownNetwork(a.Network))
	}
	return list
}

// shownNetwork returns the name of a network as clients know it.
func shownNetwork(name string) string {
	if name == "" || name == core.NetworkDefault {
		return bridgeNetwork
	}
	return name
}

func driverOf(name string) string {
	switch name {
	case hostNetwork:
		return "host"
	case noneNetwork:
		return "null"
	}
	return "bridge"
}

func (f *Face) killed(c core.Container, signal int) {
	f.publish(c, "kill", map[string]string{"signal": strconv.Itoa(signal)})
}

// publish adds an event of a container.
func (f *Face) publish(c core.Container, action string, attributes map[string]string) {
	f.events.Publish(events.Container, action, string(c.ID), attributes)
}
