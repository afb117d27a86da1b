package engine

import (
	"context"

	"github.com/longshore/longshore/internal/core"
)

// Network is the network of the node.
type Network struct{ by view }

// Info returns the state of the node's network.
func (n Network) Info(ctx context.Context) (core.NetworkInfo, error) {
	return n.by.e.o.Network.Info(ctx)
}

// SetRanges changes the address ranges for sandboxes that are created later.
func (n Network) SetRanges(ctx context.Context, cidrs []string) error {
	return n.by.e.o.Network.SetRanges(ctx, cidrs)
}

// Runtimes describes every configured runtime.
func (c *Client) Runtimes(ctx context.Context) ([]RuntimeInfo, error) {
	var list []RuntimeInfo
	for _, rt := range c.e.o.Runtimes {
		info := RuntimeInfo{Name: rt.Name(), Default: rt.Name() == c.e.o.Default}
		f, err := c.e.featuresOf(ctx, rt)
		if err != nil {
			info.Problem = err.Error()
		}
		info.Features = f
		list = append(list, info)
	}
	return list, nil
}

// RuntimeInfo is one configured runtime.
type RuntimeInfo struct {
	Name     string
	Default  bool
	Features core.RuntimeFeatures
	Problem  string // why it cannot be used; "" when it can be
}
