package control

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/invalid"
)

// object is a container or sandbox by its names.
type object struct {
	core.Meta
	shown string // the name that people see, "" if that is the key
}

// pick returns the index of the object that name means, by the best match: a whole ID, our own
// key, another owner's key or name, a prefix of an ID. It returns -1 when there is none, and
// InvalidArgument when name is ambiguous.
func pick(name string, objects []object) (int, error) {
	if name == "" {
		return -1, invalid.Errorf("a name is needed")
	}
	ranks := []func(object) bool{
		func(o object) bool { return string(o.ID) == name },
		func(o object) bool { return o.Owner == core.OwnerCLI && string(o.Key) == name },
		func(o object) bool { return string(o.Key) == name || o.shown == name },
		func(o object) bool { return strings.HasPrefix(string(o.ID), name) },
	}
	for _, matches := range ranks {
		var found []int
		for i, o := range objects {
			if matches(o) {
				found = append(found, i)
			}
		}
		switch len(found) {
		case 0:
			continue
		case 1:
			return found[0], nil
		}
		var names []string
		for _, i := range found {
			names = append(names, fmt.Sprintf("%s (%s)", objects[i].ID.Short(), objects[i].Owner))
		}
		slices.Sort(names)
		return -1, invalid.Errorf("%q is ambiguous: it may be any of %s", name, strings.Join(names, ", "))
	}
	return -1, nil
}

// container finds a container of any owner.
func (s *Server) container(ctx context.Context, name string) (core.Container, error) {
	list, err := s.all.Containers(ctx, core.Filter{})
	if err != nil {
		return core.Container{}, err
	}
	objects := make([]object, len(list))
	for i := range list {
		objects[i] = object{list[i].Meta, list[i].Config.Shown.Name}
	}
	i, err := pick(name, objects)
	if err != nil {
		return core.Container{}, err
	}
	if i < 0 {
		return core.Container{}, fmt.Errorf("find container %q: %w", name, errdefs.ErrNotFound)
	}
	return list[i], nil
}

// sandbox finds a sandbox of any owner.
func (s *Server) sandbox(ctx context.Context, name string) (core.Sandbox, error) {
	list, err := s.all.Sandboxes(ctx, core.Filter{})
	if err != nil {
		return core.Sandbox{}, err
	}
	objects := make([]object, len(list))
	for i := range list {
		objects[i] = object{Meta: list[i].Meta}
	}
	i, err := pick(name, objects)
	if err != nil {
		return core.Sandbox{}, err
	}
	if i < 0 {
		return core.Sandbox{}, fmt.Errorf("find sandbox %q: %w", name, errdefs.ErrNotFound)
	}
	return list[i], nil
}

// changer returns the view through which an object may be changed: our own view for our own
// objects and, with force, the unscoped view for others, which records the change in the event
// log.
func (s *Server) changer(m core.Meta, force bool) (*engine.Client, error) {
	if m.Owner == core.OwnerCLI {
		return s.own, nil
	}
	if !force {
		return nil, fmt.Errorf("%s belongs to %s: use --force to change it anyway: %w", m.ID.Short(), m.Owner, errdefs.ErrPermissionDenied)
	}
	return s.all, nil
}
