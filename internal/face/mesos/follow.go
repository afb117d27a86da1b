package mesos

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// follower gives do the events of these kinds that a view tells. lost looks at what
// is there instead, when some were trimmed before they were read.
type follower struct {
	view  View
	kinds []core.EventKind
	do    func(e core.Event)
	lost  func()
}

// from returns what follows all that happens from now on, until ctx ends.
func (f follower) from(ctx context.Context) (run func() error, err error) {
	since, err := f.view.LastSeq(ctx)
	if err != nil {
		return nil, fmt.Errorf("follow events: %w", err)
	}
	return func() error {
		for ctx.Err() == nil {
			for e, err := range f.view.Events(ctx, since, core.Filter{Kinds: f.kinds}) {
				if errdefs.IsOutOfRange(err) {
					f.lost()
					break
				}
				if err != nil {
					return fmt.Errorf("follow events: %w", err)
				}
				f.do(e)
			}
			if since, err = f.view.LastSeq(ctx); err != nil {
				return fmt.Errorf("follow events: %w", err)
			}
		}
		return nil
	}, nil
}

// counts counts what ends.
func (s *shows) counts() follower {
	return follower{s.view, []core.EventKind{core.EventContainerExited, core.EventSandboxRemoved}, s.tally.Add, func() {}}
}

// nests ends what is nested in containers that end, though nobody waits for them.
func (s *server) nests(ctx context.Context) follower {
	end := func(id core.ID) {
		s.calls.Go(func() {
			c, err := s.engine.Container(ctx, id)
			if err == nil {
				err = s.endBelow(ctx, c)
			}
			if err != nil && !errdefs.IsNotFound(err) && ctx.Err() == nil {
				s.log.WarnContext(ctx, "what is nested in an ended container was not all ended", "container", string(id), "error", err)
			}
		})
	}
	anew := func() {
		all, err := s.engine.Containers(ctx, core.Filter{})
		if err != nil {
			s.log.WarnContext(ctx, "ended containers were not looked through", "error", err)
		}
		for i := range all {
			if all[i].State == core.ContainerExited {
				end(all[i].ID)
			}
		}
	}
	return follower{s.engine, []core.EventKind{core.EventContainerExited}, func(e core.Event) { end(e.Container) }, anew}
}
