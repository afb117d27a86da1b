// Package without has ports for an engine on a machine that has no images, volumes or network, such
// as a virtual machine's guest, which gets root filesystems and network from the hypervisor.
//
// The ports tell the truth: nothing is stored, so there is nothing to list, to discard or to tear
// down. Calls that need the missing part return NotImplemented with a hint. Start at Images and
// Network.
package without

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Images implements core.Images and core.ImageTransfers on a machine without an image store. Containers there use a
// directory or mounts as root.
type Images struct{}

var (
	_ core.Images         = Images{}
	_ core.ImageTransfers = Images{}
)

func noImages(op, ref string) error {
	if ref != "" {
		op += " " + ref
	}
	return fmt.Errorf("%s: this node has no images: give the container a directory or mounts as its root: %w", op, errdefs.ErrNotImplemented)
}

// Pull returns NotImplemented.
func (Images) Pull(_ context.Context, _ core.Owner, ref string, _ core.PullOptions) (core.Image, error) {
	return core.Image{}, noImages("pull image", ref)
}

// Get returns NotImplemented; after NotFound a client would pull.
func (Images) Get(_ context.Context, _ core.Owner, ref string) (core.Image, error) {
	return core.Image{}, noImages("get image", ref)
}

// List returns none.
func (Images) List(context.Context, core.Owner) ([]core.Image, error) { return nil, nil }

// Tag returns NotImplemented.
func (Images) Tag(_ context.Context, _ core.Owner, source, _ string) error {
	return noImages("tag image", source)
}

// Remove returns NotImplemented.
func (Images) Remove(_ context.Context, _ core.Owner, ref string) error {
	return noImages("remove image", ref)
}

// Checkout returns NotImplemented.
func (Images) Checkout(_ context.Context, req core.CheckoutRequest) (core.Checkout, error) {
	return core.Checkout{}, noImages("check out image", string(req.Image))
}

// Discard succeeds: there is no checkout.
func (Images) Discard(context.Context, core.ID) error { return nil }

// Checkouts returns none.
func (Images) Checkouts(context.Context) ([]core.ID, error) { return nil, nil }

// RootStats returns NotFound: no container has a layer.
func (Images) RootStats(_ context.Context, container core.ID) (core.RootStats, error) {
	return core.RootStats{}, fmt.Errorf("size of container %s's layer: this node has no images: %w", container.Short(), errdefs.ErrNotFound)
}

// Changes implements core.ImageTransfers.
func (Images) Changes(context.Context, core.ID, core.RootUse, func(core.FileChange) error) error {
	return noImages("compare a root with its image", "")
}

// Commit implements core.ImageTransfers.
func (Images) Commit(_ context.Context, _ core.Owner, req core.CommitRequest) (core.Image, error) {
	return core.Image{}, noImages("make an image", req.Name)
}

// Import returns NotImplemented.
func (Images) Import(context.Context, core.Owner, io.Reader, core.ImportOptions) ([]core.Image, error) {
	return nil, noImages("import images", "")
}

// ImportRoot returns NotImplemented.
func (Images) ImportRoot(context.Context, core.Owner, io.Reader, core.RootImport) (core.Image, error) {
	return core.Image{}, noImages("import a root file system", "")
}

// Resolve returns NotImplemented.
func (Images) Resolve(_ context.Context, ref string, _ core.PullOptions) (core.RemoteImage, error) {
	return core.RemoteImage{}, noImages("ask for image", ref)
}

// Tags returns NotImplemented.
func (Images) Tags(_ context.Context, repo string, _ core.PullOptions) ([]string, error) {
	return nil, noImages("ask for the tags of", repo)
}

// Export returns NotImplemented.
func (Images) Export(context.Context, core.Owner, []string, io.Writer) error {
	return noImages("export images", "")
}

// Push returns NotImplemented.
func (Images) Push(_ context.Context, _ core.Owner, ref string, _ core.PushOptions) error {
	return noImages("push image", ref)
}

// Login returns NotImplemented.
func (Images) Login(context.Context, string, core.PushOptions) error {
	return noImages("log in to a registry", "")
}

// Prune frees nothing.
func (Images) Prune(context.Context, core.Owner, func(core.Image) bool) (uint64, error) {
	return 0, nil
}

// Usage returns zero.
func (Images) Usage(context.Context) (core.ImageUsage, error) { return core.ImageUsage{}, nil }

// Network implements core.Network on a machine with a network that others make. Sandboxes there use
// the host's network, adopt a namespace, or leave it to each container.
type Network struct{}

var _ core.Network = Network{}

func noNetwork(op string) error {
	return fmt.Errorf("%s: this node makes no networks: give the sandbox the host's network, or one to adopt: %w", op, errdefs.ErrNotImplemented)
}

// Setup returns NotImplemented, except for the host's network, which needs no setup.
func (Network) Setup(_ context.Context, req core.NetworkRequest) (core.NetworkStatus, error) {
	if req.Namespace == "" {
		return core.NetworkStatus{Mode: "host"}, nil
	}
	return core.NetworkStatus{}, noNetwork("set up network of sandbox " + req.Sandbox.Short())
}

// Check returns NotImplemented, except for the host's network.
func (Network) Check(_ context.Context, req core.NetworkRequest) error {
	if req.Last.Mode == "host" {
		return nil
	}
	return noNetwork("check network of sandbox " + req.Sandbox.Short())
}

// Attach returns NotImplemented.
func (Network) Attach(_ context.Context, req core.NetworkRequest, _ core.Attachment) (core.NetworkStatus, error) {
	return core.NetworkStatus{}, noNetwork("attach sandbox " + req.Sandbox.Short())
}

// Detach succeeds: nothing was attached.
func (Network) Detach(_ context.Context, req core.NetworkRequest, _ string) (core.NetworkStatus, error) {
	return req.Last, nil
}

// Restrict fails: there are no rules.
func (Network) Restrict(_ context.Context, req core.NetworkRequest) (core.NetworkStatus, error) {
	return req.Last, errdefs.ErrNotImplemented
}

// Publish changes nothing: no ports are published.
func (Network) Publish(_ context.Context, req core.NetworkRequest, _ []core.Port) (core.NetworkStatus, error) {
	return req.Last, nil
}

// Teardown succeeds: nothing was set up.
func (Network) Teardown(context.Context, core.NetworkRequest) error { return nil }

// Info returns that the network is not ready, and why.
func (Network) Info(context.Context) (core.NetworkInfo, error) {
	return core.NetworkInfo{Mode: core.NetworkNone, Reason: "this node makes no networks: sandboxes have the host's network, or one that they adopt"}, nil
}

// SetRanges returns NotImplemented.
func (Network) SetRanges(context.Context, []string) error { return noNetwork("set ranges") }

// Sandboxes returns none.
func (Network) Sandboxes(context.Context) ([]core.ID, error) { return nil, nil }

// Stats returns none: no sandbox has a network of its own.
func (Network) Stats(context.Context, []core.NetworkRequest) (map[core.ID][]core.NetStats, error) {
	return nil, nil //nolint:nilnil // nil is the empty map
}
