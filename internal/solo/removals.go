package solo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// removals has the anonymous volumes of containers that are being removed.
type removals struct {
	kv  core.KV // nil stores nothing
	own *engine.Client
}

// finish removes the volumes of a removed container, and forgets them. One that another container uses by its generated name stays.
func (r removals) finish(ctx context.Context, id core.ID, volumes []string) error {
	var errs []error
	for _, name := range volumes {
		if err := r.own.Volumes.Remove(ctx, name); err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		errs = append(errs, r.forget(id, volumes))
	}
	return errors.Join(errs...)
}

// store stores the volumes of a container before its removal.
func (r removals) store(id core.ID, volumes []string) error {
	if r.kv == nil || len(volumes) == 0 {
		return nil
	}
	data, err := json.Marshal(volumes)
	if err != nil {
		return err
	}
	return r.kv.Put(string(id), data)
}

// forget removes the record that store has made.
func (r removals) forget(id core.ID, volumes []string) error {
	if r.kv == nil || len(volumes) == 0 {
		return nil
	}
	return r.kv.Delete(string(id))
}

// resume finishes the removals of an agent that has died. The volumes of a container that still exists stay with it.
func (r removals) resume(ctx context.Context) error {
	if r.kv == nil {
		return nil
	}
	var errs []error
	for key, data := range maps.Collect(r.kv.All("")) {
		var volumes []string
		if err := json.Unmarshal(data, &volumes); err != nil {
			errs = append(errs, fmt.Errorf("read the volumes of container %s: %w", core.ID(key).Short(), err))
			continue
		}
		if err := r.resumeOne(ctx, core.ID(key), volumes, true); err != nil {
			errs = append(errs, fmt.Errorf("remove the volumes of container %s: %w", core.ID(key).Short(), err))
		}
	}
	return errors.Join(errs...)
}

// resumeOne continues a removal that has not ended. The volumes of a container that stays are kept. If gone is false, the volumes of one
// that was removed are left to the next agent, or to a prune.
func (r removals) resumeOne(ctx context.Context, id core.ID, volumes []string, gone bool) error {
	c, err := r.own.Container(ctx, id)
	switch {
	case errdefs.IsNotFound(err) && gone:
		return r.finish(ctx, id, volumes)
	case errdefs.IsNotFound(err), err == nil && c.Removing:
		return nil
	case err != nil:
		return err
	}
	return r.forget(id, volumes)
}
