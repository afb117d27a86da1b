package mesos

import (
	"context"
	"fmt"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/mesos/fetch"
	"github.com/longshore/longshore/internal/face/mesos/translate"
	"github.com/longshore/longshore/internal/ocispec"
)

// fetchAndStart fetches what the command wants into the sandbox of a container that
// does not run yet, and lets it run. The container comes first: only with its root
// is it known who it runs as, which says what may be read and whose the files are.
func (s *server) fetchAndStart(ctx context.Context, l translate.Launch, c core.Container) error {
	p, err := ocispec.BundleProcess(c.Bundle)
	if err != nil {
		return err
	}
	err = s.fetcher.All(ctx, l.Dir, fetch.User{UID: p.User.UID, GID: p.User.GID, Groups: p.User.AdditionalGids}, l.Command.GetUris())
	s.shows.tally.Fetched(err == nil)
	if err != nil {
		return fmt.Errorf("Failed to fetch all URIs for container '%s': %w", l.ID, err) //nolint:staticcheck // Mesos' text
	}
	return s.engine.StartContainer(ctx, c.ID)
}
