package solo

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/solo/translate"
)

// joinContainers replaces the names in container:NAME of a request by IDs, so that a later container
// with such a name is not joined.
func (s *Service) joinContainers(ctx context.Context, req *longshorev1.CreateRequest) error {
	for _, field := range []*string{&req.Network, &req.Pid, &req.Ipc} {
		name, ok := translate.JoinedContainer(*field)
		if !ok {
			continue
		}
		c, err := s.o.Find(ctx, name)
		if err != nil {
			return err
		}
		if c.Owner != s.o.Owner {
			return fmt.Errorf("join the namespaces of %s: it belongs to %s, whose containers cannot be joined: %w", name, c.Owner, errdefs.ErrPermissionDenied)
		}
		if c.State == core.ContainerExited && !s.o.Rest { // a container that rests joins when it starts
			return fmt.Errorf("join the namespaces of container %s, which is %s; start it first: %w", c.Name(), c.State, errdefs.ErrFailedPrecondition)
		}
		*field = translate.JoinedPrefix + string(c.ID)
	}
	return nil
}

// links puts the links of a request, NAME[:ALIAS], into the configuration of its sandbox.
func (s *Service) links(ctx context.Context, req *longshorev1.CreateRequest, cfg *core.SandboxConfig) error {
	for _, text := range req.GetLinks() {
		name, alias, ok := strings.Cut(strings.TrimPrefix(text, "/"), ":")
		if !ok {
			alias = name
		}
		c, err := s.o.Find(ctx, name)
		if err != nil {
			return fmt.Errorf("could not get container for %s: %w", name, err) // docker's words
		}
		if c.Owner != s.o.Owner {
			return fmt.Errorf("link to %s: it belongs to %s, whose containers have no links: %w", name, c.Owner, errdefs.ErrPermissionDenied)
		}
		sb, err := s.own.Sandbox(ctx, c.Sandbox)
		if err != nil {
			return err
		}
		shared := func(a core.Attachment) bool {
			return sb.Config.Namespaces.Net.Mode == core.Shared && sb.Config.Network.On(cmp.Or(a.Network, core.NetworkDefault)) >= 0
		}
		if !slices.ContainsFunc(cfg.Network.Attached(), shared) {
			return fmt.Errorf("link to %s: it is on none of the container's networks: %w", name, errdefs.ErrInvalidArgument)
		}
		names := []string{alias, sb.Config.Hostname, string(c.Key)}
		names = slices.DeleteFunc(names, func(n string) bool { return n == "" })
		slices.Sort(names[1:])
		cfg.Network.Links = append(cfg.Network.Links, core.Link{Container: c.ID, Names: slices.Compact(names)})
	}
	return nil
}

// startable returns FailedPrecondition if a container of ours needs another one that does not run: the holder
// of its joined namespaces, or the target of a link. As with docker, that one must be started first. It is not
// Unavailable, which clients take for an agent that does not answer.
func (s *Service) startable(ctx context.Context, c core.Container) error {
	if c.Owner != s.o.Owner {
		return nil
	}
	sb, err := s.own.Sandbox(ctx, c.Sandbox)
	if err != nil {
		return err
	}
	holders, onDefault := sb.Config.Namespaces.Holders(), sb.Config.Network.On(core.NetworkDefault) >= 0
	for _, id := range sb.Config.Needs() {
		if s.o.Rest && !onDefault && !slices.Contains(holders, id) {
			continue // on networks that users define, a link has its address when the other container gets one
		}
		c, err := s.own.Container(ctx, id)
		switch {
		case errdefs.IsNotFound(err) && !slices.Contains(holders, id):
			continue // a link to nothing, as in docker
		case errdefs.IsNotFound(err):
			return fmt.Errorf("container %s, whose namespaces it shares, was removed: %w", id.Short(), errdefs.ErrFailedPrecondition)
		case err != nil:
			return err
		}
		if !c.State.Live() {
			return fmt.Errorf("it needs container %s, which is %s; start that one first: %w", c.Name(), c.State, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// settleHolders settles the holders of a sandbox's joined namespaces: they may have ended before it.
func (s *Service) settleHolders(ctx context.Context, sb *core.Sandbox) {
	for _, id := range sb.Config.Namespaces.Holders() {
		s.settle(ctx, id)
	}
}
