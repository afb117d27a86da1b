package kata

import (
	"context"
	"sync"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/guest/kills"
)

// maxOOMs bounds the kills that wait for the shim, which asks for one after the other. Further ones
// would say nothing new.
const maxOOMs = 1000

// oomWatch collects the containers with out-of-memory kills: at once, from the counter of the
// container's cgroup, and from the ends of processes, for kills that the counter had no time to
// report.
type oomWatch struct {
	deps    face.Deps
	counter func(core.CgroupRef) string
	watcher kills.Watcher

	mu   sync.Mutex // guards ids, live
	ids  []string
	live map[core.ID]*kills.Watch
	more chan struct{} // has a value if ids may not be empty
}

func newOOMWatch(o Options) *oomWatch {
	return &oomWatch{deps: o.Deps, counter: o.OOMCounter, more: make(chan struct{}, 1), live: map[core.ID]*kills.Watch{}}
}

// watch tells of kills in a container from now on.
func (o *oomWatch) watch(ctx context.Context, ct *core.Container) {
	file := ""
	if o.counter != nil {
		file = o.counter(ct.Cgroup)
	}
	if file == "" { // there is no memory controller
		return
	}
	id := string(ct.Config.Key)
	w, err := o.watcher.Watch(file, func(uint64) { o.add(id) })
	if err != nil {
		o.deps.Logger.WarnContext(ctx, "could not watch a container's out-of-memory kills; they are reported when a process ends", "container", id, "error", err)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.live[ct.ID] = w
}

func (o *oomWatch) run(ctx context.Context) error {
	defer o.watcher.Close()
	since, err := o.deps.Engine.LastSeq(ctx)
	if err != nil {
		return err
	}
	return engine.Watch{
		Kinds: []core.EventKind{core.EventContainerExited, core.EventProcessExited, core.EventContainerRemoved},
		Since: &since,
		Event: func(_ context.Context, e core.Event) error {
			o.ended(e)
			return nil
		},
		Failed: func(err error) {
			o.deps.Logger.WarnContext(ctx, "could not read the event log: out-of-memory kills are not reported", "error", err)
		},
	}.Run(ctx, o.deps.Engine)
}

// ended reports an out-of-memory kill at a process's end, unless it was reported before.
func (o *oomWatch) ended(e core.Event) {
	o.mu.Lock()
	w := o.live[e.Container]
	if e.Kind != core.EventProcessExited {
		delete(o.live, e.Container)
	}
	o.mu.Unlock()
	reported, live := uint64(0), w != nil
	if live && e.Kind != core.EventProcessExited {
		reported = w.Stop()
	}
	switch {
	case e.Autopsy == nil || e.Autopsy.OOM == nil:
	case live && (e.Kind == core.EventProcessExited || e.Autopsy.OOM.Kills <= reported):
	default:
		o.add(string(e.Key))
	}
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
