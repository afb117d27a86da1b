package mesos

import (
	"context"
	"errors"

	"github.com/longshore/longshore/internal/core"
)

// removeUnfinished removes what the death of the previous agent left: containers whose
// launch was not answered, and sessions, whose connections are lost. It must run before
// anything is served.
func (s *server) removeUnfinished(ctx context.Context) error {
	all, err := s.engine.Containers(ctx, core.Filter{})
	if err != nil {
		return err
	}
	used := map[core.ID]bool{}
	var errs []error
	for i := range all {
		c := &all[i]
		used[c.Sandbox] = true
		for _, p := range c.Execs {
			errs = append(errs, ignoreNotFound(s.remove(ctx, target{container: *c, session: p.ID}, "LAUNCH_NESTED_CONTAINER_SESSION")))
		}
		if c.State != core.ContainerCreated {
			continue
		}
		t := target{container: *c}
		if c.Parent == "" {
			t.sandbox = c.Sandbox
		}
		errs = append(errs, s.remove(ctx, t, "LAUNCH_CONTAINER"), s.tree.Remove(string(c.Key)))
	}
	sandboxes, err := s.engine.Sandboxes(ctx, core.Filter{})
	if err != nil {
		return err
	}
	for i := range sandboxes {
		if sb := &sandboxes[i]; !used[sb.ID] {
			errs = append(errs, s.remove(ctx, target{sandbox: sb.ID}, "LAUNCH_CONTAINER"), s.tree.Remove(string(sb.Key)))
		}
	}
	return errors.Join(errs...)
}
