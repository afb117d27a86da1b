package mesos

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/mesos/api"
)

// pruneImages drops this face's names of the images that no container of its is
// made of, but for those that the call names. The other owners' names stay, and what
// they hold.
func (s *server) pruneImages(ctx context.Context, x *api.Exchange) error {
	if s.engine.Images.Leased() {
		return errors.New("Cannot prune and pull at the same time") //nolint:staticcheck // Mesos' text
	}
	keep := map[digest.Digest]bool{}
	for _, named := range x.Call.GetPruneImages().GetExcludedImages() {
		img, err := s.engine.Images.Get(ctx, named.GetDocker().GetName())
		if err == nil {
			keep[img.ID] = true
		} else if !errdefs.IsNotFound(err) {
			return err
		}
	}
	_, err := s.engine.Images.Prune(ctx, func(img core.Image) bool { return keep[img.ID] })
	return err
}
