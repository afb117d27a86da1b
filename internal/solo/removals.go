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
		finish := r.finish
		if _, err := r.own.Container(ctx, core.ID(key)); !errdefs.IsNotFound(err) {
			finish = func(_ context.Context, id core.ID, volumes []string) error { return r.forget(id, volumes) }
		}
		if err := finish(ctx, core.ID(key), volumes); err != nil {
			errs = append(errs, fmt.Errorf("remove the volumes of container %s: %w", core.ID(key).Short(), err))
		}
	}
	return errors.Join(errs...)
}
