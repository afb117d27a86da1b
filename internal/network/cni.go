package network

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/ipam"
)

type cni struct{ cfg CNIConfig }

func newCNI(cfg CNIConfig, _ string, _ core.KV, _ *slog.Logger) *cni { return &cni{cfg} }
func (c *cni) setRanges([]ipam.Range)                                {}
func (c *cni) notReady() string                                      { return "cni: not built yet" }
func (c *cni) add(context.Context, core.NetworkRequest) (core.NetworkStatus, error) {
	return core.NetworkStatus{}, fmt.Errorf("cni: %w", errdefs.ErrNotImplemented)
}
func (c *cni) check(context.Context, core.NetworkRequest) error { return nil }
func (c *cni) del(context.Context, core.NetworkRequest) error   { return nil }
func (c *cni) sandboxes() ([]core.ID, error)                    { return nil, nil }
func (c *cni) recover(context.Context, map[core.ID]bool) error  { return nil }
