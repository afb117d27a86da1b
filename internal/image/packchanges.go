package image

import (
	"context"
	"fmt"
	"io"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/layer"
)

// PackChanges writes a container's own layer as an uncompressed tar, with marker files for deletions.
func PackChanges(ctx context.Context, s *Store, container core.ID, use core.RootUse, w io.Writer) error {
	u, _, err := upperOf(s, container, use)
	if err == nil {
		err = u.Pack(ctx, w, layer.PackOptions{})
	}
	if err != nil {
		return fmt.Errorf("pack the changes of %s: %w", container.Short(), err)
	}
	return nil
}
