package mesos

import (
	"context"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// followEvents returns the functions that follow the event log until ctx ends. When it returns,
// existing containers have been handled.
func (f *Face) followEvents(ctx context.Context) (run []func() error, err error) {
	s := f.server
	counts := engine.Watch{
		Kinds: []core.EventKind{core.EventContainerExited, core.EventSandboxRemoved},
		Event: func(_ context.Context, e core.Event) error {
			s.state.counters.Count(e)
			return nil
		},
	}
	for _, one := range []struct {
		watch engine.Watch
		log   engine.EventLog
	}{{counts, s.state.reader}, {s.nestedWatch(), s.engine}} {
		since, err := one.log.LastSeq(ctx)
		if err != nil {
			return nil, err
		}
		if one.watch.List == nil || one.watch.List(ctx) == nil {
			one.watch.Since = &since
		} // else it lists again
		one.watch.Failed = func(err error) {
			s.log.WarnContext(ctx, "could not read the event log; containers nested in ended ones keep running until it can be read", "error", err)
		}
		run = append(run, func() error { return one.watch.Run(ctx, one.log) })
	}
	return run, nil
}

// nestedWatch stops containers nested in ended ones, even if no client waits for them.
func (s *server) nestedWatch() engine.Watch {
	end := func(ctx context.Context, id core.ID) {
		s.calls.Go(func() {
			c, err := s.engine.Container(ctx, id)
			if err == nil {
				err = s.stopNested(ctx, c)
			}
			if err != nil && !errdefs.IsNotFound(err) && ctx.Err() == nil {
				s.log.WarnContext(ctx, "could not stop all containers nested in an ended one; waiting for it or removing it tries again", "container", string(id), "error", err)
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
