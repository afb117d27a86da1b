package volumes

import (
	"context"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/scope"
)

// Verbs are the verbs on the named volumes of a scope's owner.
type Verbs struct {
	Scope scope.Scope
	Table *Table
}

// Create creates a volume; AlreadyExists when the name is in use, FailedPrecondition when the
// volume of that name has other options.
func (v Verbs) Create(ctx context.Context, cfg core.VolumeConfig) (core.Volume, error) {
	owner, err := v.Scope.Creates("create volume")
	if err != nil {
		return core.Volume{}, err
	}
	vol, err := v.Table.Volumes.Create(ctx, owner, cfg)
	return v.Table.Shown(vol), err
}

// List returns the owner's volumes.
func (v Verbs) List(ctx context.Context) ([]core.Volume, error) {
	list, err := v.Table.Volumes.List(ctx, v.Scope.Owner)
	for i := range list {
		list[i] = v.Table.Shown(list[i])
	}
	return list, err
}

// Remove removes a volume that no container uses. It succeeds when the volume is gone.
func (v Verbs) Remove(ctx context.Context, name string) error {
	owner, err := v.Scope.Creates("remove volume")
	if err != nil {
		return err
	}
	return v.Table.Remove(ctx, Name{Owner: owner, Name: name})
}

// Unused returns the anonymous volumes that no container has.
func (v Verbs) Unused(ctx context.Context) ([]core.Volume, error) {
	return v.Table.Unused(ctx, v.Scope.Owner)
}

// Prune removes the volumes that no container uses, of those that fit, and returns them.
func (v Verbs) Prune(ctx context.Context, fits func(core.Volume) bool) ([]core.Volume, error) {
	owner, err := v.Scope.Creates("prune volumes")
	if err != nil {
		return nil, err
	}
	all, err := v.Table.Volumes.List(ctx, owner)
	if err != nil {
		return nil, err
	}
	used, err := v.Table.Users(owner)
	if err != nil {
		return nil, err
	}
	var gone []core.Volume
	for _, vol := range all {
		if used[vol.Name] || vol.Damaged != "" || !fits(vol) { // a damaged one may still be brought back
			continue
		}
		err := v.Table.Remove(ctx, Name{Owner: owner, Name: vol.Name})
		switch {
		case err == nil:
			gone = append(gone, v.Table.Shown(vol))
		case !errdefs.IsFailedPrecondition(err): // a container has come to use it
			return gone, err
		}
	}
	return gone, nil
}
