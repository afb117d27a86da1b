package control

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/disk"
)

// DiskParts measures the agent's directory.
func (n *nodeServer) DiskParts(ctx context.Context, _ *longshorev1.DiskPartsRequest) (*longshorev1.DiskPartsResponse, error) {
	if n.srv.o.Disk == nil {
		return nil, fmt.Errorf("this agent measures no disk: %w", errdefs.ErrNotImplemented)
	}
	parts, err := n.srv.o.Disk(ctx)
	if err != nil {
		return nil, err
	}
	return &longshorev1.DiskPartsResponse{Parts: diskParts(parts)}, nil
}

func diskParts(parts []*disk.Part) (list []*longshorev1.DiskPart) {
	for _, p := range parts {
		list = append(list, &longshorev1.DiskPart{Name: p.Name, Note: p.Note, Bytes: p.Bytes, Frees: p.Frees, Parts: diskParts(p.Parts)})
	}
	return list
}
