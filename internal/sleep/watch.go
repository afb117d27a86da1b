package sleep

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/sleep/doorbell"
)

// bellName is the name of a container's bell in the holder.
func bellName(id core.ID) string { return holdPrefix + string(id) + "/bell" }

// Watch implements core.Sleeper.
func (s *Sleeper) Watch(ctx context.Context, id core.ID, namespace string, knock func()) (kept bool, err error) {
	bell, err := s.keptBell(ctx, id)
	if err != nil {
		return false, err
	}
	if kept = bell != nil; !kept {
		if bell, err = s.newBell(ctx, id, namespace); err != nil {
			return false, fmt.Errorf("watch the network of container %s: %w", id, err)
		}
	}
	s.mu.Lock()
	before := s.bells[id]
	s.bells[id] = bell
	s.mu.Unlock()
	if before != nil {
		_ = before.Close()
	}
	go func() { //nolint:gosec // it outlives the request
		if bell.Wait(context.Background()) == nil {
			knock()
		}
	}()
	return kept, nil
}

// keptBell returns the bell that the holder has; nil for none.
func (s *Sleeper) keptBell(ctx context.Context, id core.ID) (*doorbell.Bell, error) {
	files, err := s.o.Holder.Held(ctx, bellName(id))
	switch {
	case errdefs.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case len(files) != 1:
		closeFiles(files)
		return nil, nil
	}
	return doorbell.Kept(files[0]), nil
}

func (s *Sleeper) newBell(ctx context.Context, id core.ID, namespace string) (*doorbell.Bell, error) {
	bell, err := doorbell.Open(namespace)
	if err != nil {
		return nil, err
	}
	if err := s.o.Holder.Hold(ctx, bellName(id), []*os.File{bell.File()}); err != nil {
		_ = bell.Close()
		return nil, err
	}
	return bell, nil
}
