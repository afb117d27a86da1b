package mesos

import (
	"context"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// follow begins what runs beside the calls on the event log, and has looked at what
// there is when it returns; the rest runs until ctx ends.
func (f *Face) follow(ctx context.Context) (run []func() error, err error) {
	s := f.server
	counts := engine.Watch{
		Kinds: []core.EventKind{core.EventContainerExited, core.EventSandboxRemoved},
		Event: func(_ context.Context, e core.Event) error {
			s.shows.tally.Count(e)
			return nil
		},
	}
	for _, one := range []struct {
		watch engine.Watch
		log   engine.EventLog
	}{{counts, s.shows.view}, {s.nests(), s.engine}} {
		since, err := one.log.LastSeq(ctx)
		if err != nil {
			return nil, err
		}
		if one.watch.List == nil || one.watch.List(ctx) == nil {
			one.watch.Since = &since
		} // else it looks again
		one.watch.Failed = func(err error) {
			s.log.WarnContext(ctx, "ends of containers are not noticed until the event log can be read", "error", err)
		}
		run = append(run, func() error { return one.watch.Run(ctx, one.log) })
	}
	return run, nil
}

// nests ends what is nested in containers that end, though nobody waits for them.
func (s *server) nests() engine.Watch {
	end := func(ctx context.Context, id core.ID) {
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
	return engine.Watch{
		Kinds: []core.EventKind{core.EventContainerExited},
		List: func(ctx context.Context) error {
			all, err := s.engine.Containers(ctx, core.Filter{})
			for i := range all {
				if all[i].State == core.ContainerExited {
					end(ctx, all[i].ID)
				}
			}
			return err
		},
		Event: func(ctx context.Context, e core.Event) error {
			end(ctx, e.Container)
			return nil
		},
	}
}
