// Package without has ports for an engine on a machine that lacks what a port
// stands for: images, or a network. Such a machine is a virtual machine's guest that
// is handed its root filesystems, and whose network its hypervisor makes.
//
// Each answers what is true: nothing is kept, so there is nothing to list, to
// discard or to tear down; whatever would need the missing part is NotImplemented and
// says what to do. Start at Images and Network.
package without

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Images is core.Images on a machine without an image store. Containers there have a
// directory or mounts as root.
type Images struct{}

var _ core.Images = Images{}

func noImages(op, ref string) error {
	if ref != "" {
		op += " " + ref
	}
	return fmt.Errorf("%s: this node has no images: give the container a directory or mounts as its root: %w", op, errdefs.ErrNotImplemented)
}

// Pull is NotImplemented.
func (Images) Pull(_ context.Context, _ core.Owner, ref string, _ core.PullOptions) (core.Image, error) {
	return core.Image{}, noImages("pull image", ref)
}

// Get is NotImplemented, and not NotFound, upon which a client would pull.
func (Images) Get(_ context.Context, _ core.Owner, ref string) (core.Image, error) {
	return core.Image{}, noImages("get image", ref)
}

// List is empty.
func (Images) List(context.Context, core.Owner) ([]core.Image, error) { return nil, nil }

// Tag is NotImplemented.
func (Images) Tag(_ context.Context, _ core.Owner, source, _ string) error {
	return noImages("tag image", source)
}

// Remove is NotImplemented.
func (Images) Remove(_ context.Context, _ core.Owner, ref string) error {
	return noImages("remove image", ref)
}

// Checkout is NotImplemented.
func (Images) Checkout(_ context.Context, req core.CheckoutRequest) (core.Checkout, error) {
	return core.Checkout{}, noImages("check out image", string(req.Image))
}

// Discard succeeds: there is no checkout.
func (Images) Discard(context.Context, core.ID) error { return nil }

// Checkouts is empty.
func (Images) Checkouts(context.Context) ([]core.ID, error) { return nil, nil }

// RootStats is NotFound: no container has a layer.
func (Images) RootStats(_ context.Context, container core.ID) (core.RootStats, error) {
	return core.RootStats{}, fmt.Errorf("size of container %s's layer: this node has no images: %w", container.Short(), errdefs.ErrNotFound)
}

// Pin is NotImplemented.
func (Images) Pin(_ context.Context, _ core.Owner, ref string, _ bool) error {
	return noImages("pin image", ref)
}

// Import is NotImplemented.
func (Images) Import(context.Context, core.Owner, io.Reader) ([]core.Image, error) {
	return nil, noImages("import images", "")
}

// Export is NotImplemented.
func (Images) Export(context.Context, core.Owner, []string, io.Writer) error {
	return noImages("export images", "")
}

// Prune frees nothing.
func (Images) Prune(context.Context, core.Owner, func(core.Image) bool) (uint64, error) {
	return 0, nil
}

// Usage is zero.
func (Images) Usage(context.Context) (core.ImageUsage, error) { return core.ImageUsage{}, nil }

// Network is core.Network on a machine whose network somebody else makes. Sandboxes
// there have the host's network, adopt a namespace, or leave it to each container.
type Network struct{}

var _ core.Network = Network{}

func noNetwork(op string) error {
	return fmt.Errorf("%s: this node makes no networks: give the sandbox the host's network, or one to adopt: %w", op, errdefs.ErrNotImplemented)
}

// Setup is NotImplemented, but for the host's network, where nothing is to be done.
func (Network) Setup(_ context.Context, req core.NetworkRequest) (core.NetworkStatus, error) {
	if req.Namespace == "" {
		return core.NetworkStatus{Mode: "host"}, nil
	}
	return core.NetworkStatus{}, noNetwork("set up network of sandbox " + req.Sandbox.Short())
}

// Check is NotImplemented, but for the host's network, which needs nothing.
func (Network) Check(_ context.Context, req core.NetworkRequest) error {
	if req.Last.Mode == "host" {
		return nil
	}
	return noNetwork("check network of sandbox " + req.Sandbox.Short())
}

// Teardown succeeds: nothing was set up.
func (Network) Teardown(context.Context, core.NetworkRequest) error { return nil }

// Info says that the network is not ready, and why.
func (Network) Info(context.Context) (core.NetworkInfo, error) {
	return core.NetworkInfo{Mode: core.NetworkNone, Reason: "this node makes no networks: sandboxes have the host's network, or one that they adopt"}, nil
}

// SetRanges is NotImplemented.
func (Network) SetRanges(context.Context, []string) error { return noNetwork("set ranges") }

// Sandboxes is empty.
func (Network) Sandboxes(context.Context) ([]core.ID, error) { return nil, nil }

// Stats are none: no sandbox has a network of its own.
func (Network) Stats(context.Context, []core.NetworkRequest) (map[core.ID][]core.NetStats, error) {
	return nil, nil //nolint:nilnil // nil is the empty map
}
