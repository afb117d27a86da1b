package kata

import (
	"context"
	"sync"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face"
)

// maxOOMs is how many kills wait for the shim. It asks for one after the other; what it
// has not asked for beyond that says nothing new.
const maxOOMs = 1000

// oomWatch collects the containers in which the kernel has killed for want of memory, as
// the ends of their processes tell it.
type oomWatch struct {
	deps face.Deps

	mu   sync.Mutex // guards ids
	ids  []string
	more chan struct{} // has one value when ids may not be empty
}

func newOOMWatch(deps face.Deps) *oomWatch {
	return &oomWatch{deps: deps, more: make(chan struct{}, 1)}
}

func (o *oomWatch) run(ctx context.Context) error {
	since, err := o.deps.Engine.LastSeq(ctx)
	if err != nil {
		return err
	}
	return engine.Watch{
		Kinds: []core.EventKind{core.EventContainerExited, core.EventProcessExited},
		Since: &since,
		Event: func(_ context.Context, e core.Event) error {
			if e.Autopsy != nil && e.Autopsy.OOM != nil {
				o.add(string(e.Key))
			}
			return nil
		},
		Failed: func(err error) {
			o.deps.Logger.WarnContext(ctx, "kills for want of memory are not seen", "error", err)
		},
	}.Run(ctx, o.deps.Engine)
}

func (o *oomWatch) add(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.ids) < maxOOMs {
		o.ids = append(o.ids, id)
	}
	select {
	case o.more <- struct{}{}:
	default:
	}
}

// next waits for the next container. It fails when the sandbox was destroyed.
func (o *oomWatch) next(ctx context.Context, destroyed <-chan struct{}) (string, error) {
	for {
		select {
		case <-o.more:
		case <-destroyed:
			return "", errEnding
		case <-ctx.Done():
			return "", ctx.Err()
		}
		if id, ok := o.pop(); ok {
			return id, nil
		}
	}
}

func (o *oomWatch) pop() (string, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.ids) == 0 {
		return "", false
	}
	id := o.ids[0]
	if o.ids = o.ids[1:]; len(o.ids) > 0 {
		select {
		case o.more <- struct{}{}:
		default:
		}
	}
	return id, true
}
