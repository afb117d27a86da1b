package mesos

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/mesos/api"
)

// pruneImages removes this face's names of images that no container of Mesos uses,
// except those that the call excludes. Names of other owners remain, and so does the
// content that they refer to.
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
