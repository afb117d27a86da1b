package enginetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Checkpointer is a fake core.Checkpointer. It outlives an engine as the real one's files do. A Crash of the node has a stage at each of
// its steps.
type Checkpointer struct {
	fault
	node *Node
	lock sync.Mutex // guards kept
	kept map[core.ID]storedProcesses
}

// storedProcesses is a checkpoint. A partial one was not completed.
type storedProcesses struct {
	meta    core.CheckpointMeta
	partial bool
}

var _ core.Checkpointer = (*Checkpointer)(nil)

// at is a step.
func (c *Checkpointer) at(ctx context.Context, step string) error {
	if err := c.check(ctx, step); err != nil {
		return err
	}
	if c.node.crash == nil {
		return nil
	}
	return c.node.crash.point("checkpointer." + step)
}

func (c *Checkpointer) put(id core.ID, s storedProcesses) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.kept[id] = s
}

// Able returns an error of Fail only.
func (c *Checkpointer) Able(ctx context.Context) error { return c.check(ctx, "Able") }

// Dump stores a container.
func (c *Checkpointer) Dump(ctx context.Context, req core.DumpRequest) (core.Dumped, error) {
	id := req.Container.ID
	if !c.node.Cgroups.Frozen(req.Container.Cgroup) {
		return core.Dumped{}, fmt.Errorf("dump %s: it is not frozen: %w", id, errdefs.ErrInternal)
	}
	s := storedProcesses{meta: core.CheckpointMeta{Container: string(id), Owner: req.Container.Owner, At: time.Now().Round(0).UTC(), TCP: req.TCP}, partial: true}
	c.put(id, s)
	if err := c.at(ctx, "Dump"); err != nil {
		if c.node.crash == nil || !c.node.crash.Dead() {
			err = errors.Join(err, c.Remove(context.WithoutCancel(ctx), id))
		}
		return core.Dumped{}, err
	}
	s.partial = false
	c.put(id, s)
	return core.Dumped{Bytes: 1 << 20, Frozen: time.Millisecond}, c.at(ctx, "Dumped")
}

// Settle returns at once.
func (c *Checkpointer) Settle(ctx context.Context, _ *core.Container) error {
	return c.check(ctx, "Settle")
}

// Restore starts a process in place of the container's.
func (c *Checkpointer) Restore(ctx context.Context, req core.RestoreRequest) (int, error) {
	if err := c.Fits(ctx, req); err != nil {
		return 0, err
	}
	if err := c.at(ctx, "Restore"); err != nil {
		return 0, err
	}
	if err := req.Vacate(ctx); err != nil {
		return 0, err
	}
	if err := c.at(ctx, "Vacated"); err != nil {
		return 0, err
	}
	p, err := c.node.Supervisor.launch(req.Launch.Ref, c.node.Runtime.Spec(req.Container.ID).Process, req.Launch.IO, req.Container.Cgroup.Path)
	if err != nil {
		return 0, err
	}
	c.node.Supervisor.run(p)
	return p.Pid, c.at(ctx, "Restored")
}

// Fits returns an error for a container without a checkpoint.
func (c *Checkpointer) Fits(ctx context.Context, req core.RestoreRequest) error {
	_, err := c.Describe(ctx, req.Container.ID)
	return err
}

// Export writes the description.
func (c *Checkpointer) Export(ctx context.Context, id core.ID, w io.Writer) error {
	m, err := c.Describe(ctx, id)
	if err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(m)
}

// Import reads the description.
func (c *Checkpointer) Import(ctx context.Context, r io.Reader) (core.Imported, error) {
	in := &importedProcesses{c: c}
	if err := c.at(ctx, "Import"); err != nil {
		return nil, err
	}
	if err := json.NewDecoder(r).Decode(&in.meta); err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	return in, nil
}

type importedProcesses struct {
	c    *Checkpointer
	meta core.CheckpointMeta
}

func (i *importedProcesses) Meta() core.CheckpointMeta { return i.meta }
func (i *importedProcesses) Close() error              { return nil }

func (i *importedProcesses) Give(ctx context.Context, id core.ID) error {
	if err := i.c.at(ctx, "Give"); err != nil {
		return err
	}
	i.c.put(id, storedProcesses{meta: i.meta})
	return i.c.at(ctx, "Given")
}

// Describe returns the description of a complete checkpoint.
func (c *Checkpointer) Describe(ctx context.Context, id core.ID) (core.CheckpointMeta, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	s, ok := c.kept[id]
	if !ok || s.partial {
		return core.CheckpointMeta{}, fmt.Errorf("checkpoint of %s: %w", id, errdefs.ErrNotFound)
	}
	return s.meta, ctx.Err()
}

// Remove removes a checkpoint.
func (c *Checkpointer) Remove(ctx context.Context, id core.ID) error {
	if err := c.check(ctx, "Remove"); err != nil {
		return err
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	delete(c.kept, id)
	return nil
}

// Stored returns the containers with a checkpoint or a part of one, sorted.
func (c *Checkpointer) Stored(context.Context) ([]core.ID, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	return slices.Sorted(maps.Keys(c.kept)), nil
}
