package control

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/translate"
	"github.com/longshore/longshore/internal/core"
)

// joinContainers replaces the names in container:NAME of a request by IDs, so that a later container
// with such a name is not joined.
func (s *containerServer) joinContainers(ctx context.Context, req *longshorev1.CreateRequest) error {
	for _, field := range []*string{&req.Network, &req.Pid, &req.Ipc} {
		name, ok := translate.JoinedContainer(*field)
		if !ok {
			continue
		}
		c, err := s.srv.container(ctx, name)
		if err != nil {
			return err
		}
		if c.Owner != core.OwnerCLI {
			return fmt.Errorf("join the namespaces of %s: it belongs to %s, whose containers cannot be joined: %w", name, c.Owner, errdefs.ErrPermissionDenied)
		}
		*field = translate.JoinedPrefix + string(c.ID)
	}
	return nil
}

// startable returns Unavailable if a container of ours has joined the namespaces of one that does not
// run: as with docker, it must be started first.
func (s *containerServer) startable(ctx context.Context, sandbox core.ID) error {
	sb, err := s.srv.own.Sandbox(ctx, sandbox)
	if err != nil {
		return err
	}
	for _, id := range sb.Config.Namespaces.Holders() {
		c, err := s.srv.own.Container(ctx, id)
		if err != nil {
			return err
		}
		if c.State != core.ContainerRunning && c.State != core.ContainerPaused {
			return fmt.Errorf("it shares namespaces of container %s, which is %s; start that one first: %w", c.Name(), c.State, errdefs.ErrUnavailable)
		}
	}
	return nil
}

// settleHolders settles the holders of a sandbox's joined namespaces: they may have ended before it.
func settleHolders(ctx context.Context, s *Server, sb *core.Sandbox) {
	for _, id := range sb.Config.Namespaces.Holders() {
		s.settle(ctx, id)
	}
}
