package engine

import (
	"context"
	"io"
	"iter"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// Client is the engine as one owner sees it: what it makes is that owner's, and
// what it finds too. The unscoped view (Engine.All) sees everything and is held
// by the control API alone.
type Client struct {
	e     *Engine
	owner core.Owner // "" in the unscoped view
}

// RemoveOptions goes with RemoveContainer and RemoveSandbox.
type RemoveOptions struct {
	// Force kills what still runs; without it a running object is
	// FailedPrecondition.
	Force bool
	Asked core.Asked
}

// StopOptions goes with StopContainer.
type StopOptions struct {
	// Signal is the first one sent; "" is the container's own, else SIGTERM.
	Signal string
	// Grace is how long to wait before SIGKILL. nil is the container's own.
	Grace *time.Duration
	Asked core.Asked
}

// Sandboxes.
//
// CreateSandbox makes a sandbox and returns it ready. With a Key that is in use
// it returns the first object and AlreadyExists.
func (c *Client) CreateSandbox(ctx context.Context, cfg core.SandboxConfig) (core.Sandbox, error) {
	return *new(core.Sandbox), errdefs.ErrNotImplemented
}
func (c *Client) Sandbox(ctx context.Context, id core.ID) (core.Sandbox, error) {
	return *new(core.Sandbox), errdefs.ErrNotImplemented
}
func (c *Client) SandboxByKey(ctx context.Context, key core.Key) (core.Sandbox, error) {
	return *new(core.Sandbox), errdefs.ErrNotImplemented
}
func (c *Client) Sandboxes(ctx context.Context, f core.Filter) ([]core.Sandbox, error) {
	return *new([]core.Sandbox), errdefs.ErrNotImplemented
}
func (c *Client) SetSandboxData(ctx context.Context, id core.ID, data []byte) error {
	return errdefs.ErrNotImplemented
}
func (c *Client) UpdateSandbox(ctx context.Context, id core.ID, res *specs.LinuxResources) error {
	return errdefs.ErrNotImplemented
}

// StopSandbox stops every container and gives namespaces and network back. It succeeds on what is stopped or gone.
func (c *Client) StopSandbox(ctx context.Context, id core.ID, opts StopOptions) error {
	return errdefs.ErrNotImplemented
}

// RemoveSandbox removes its containers and the sandbox; success when it is gone.
func (c *Client) RemoveSandbox(ctx context.Context, id core.ID, opts RemoveOptions) error {
	return errdefs.ErrNotImplemented
}

// Containers.
func (c *Client) CreateContainer(ctx context.Context, cfg core.ContainerConfig) (core.Container, error) {
	return *new(core.Container), errdefs.ErrNotImplemented
}
func (c *Client) Container(ctx context.Context, id core.ID) (core.Container, error) {
	return *new(core.Container), errdefs.ErrNotImplemented
}
func (c *Client) ContainerByKey(ctx context.Context, key core.Key) (core.Container, error) {
	return *new(core.Container), errdefs.ErrNotImplemented
}
func (c *Client) Containers(ctx context.Context, f core.Filter) ([]core.Container, error) {
	return *new([]core.Container), errdefs.ErrNotImplemented
}
func (c *Client) SetContainerData(ctx context.Context, id core.ID, data []byte) error {
	return errdefs.ErrNotImplemented
}
func (c *Client) StartContainer(ctx context.Context, id core.ID) error {
	return errdefs.ErrNotImplemented
}
func (c *Client) StopContainer(ctx context.Context, id core.ID, opts StopOptions) error {
	return errdefs.ErrNotImplemented
}
func (c *Client) RemoveContainer(ctx context.Context, id core.ID, opts RemoveOptions) error {
	return errdefs.ErrNotImplemented
}
func (c *Client) PauseContainer(ctx context.Context, id core.ID) error {
	return errdefs.ErrNotImplemented
}
func (c *Client) ResumeContainer(ctx context.Context, id core.ID) error {
	return errdefs.ErrNotImplemented
}

// UpdateContainer changes limits and returns what the kernel then enforces.
func (c *Client) UpdateContainer(ctx context.Context, id core.ID, res *specs.LinuxResources) (*specs.LinuxResources, error) {
	return *new(*specs.LinuxResources), errdefs.ErrNotImplemented
}

// Processes.
//
// Exec starts a further process; with cfg.Attach the stream is returned as well.
func (c *Client) Exec(ctx context.Context, id core.ID, cfg core.ProcessConfig) (core.Process, *core.Streams, error) {
	return *new(core.Process), *new(*core.Streams), errdefs.ErrNotImplemented
}
func (c *Client) Signal(ctx context.Context, ref core.Ref, signal int, asked core.Asked) error {
	return errdefs.ErrNotImplemented
}

// Wait returns once the process has ended and its output is in its sinks.
func (c *Client) Wait(ctx context.Context, ref core.Ref) (core.Autopsy, error) {
	return *new(core.Autopsy), errdefs.ErrNotImplemented
}

// RemoveProcess forgets an exec that has ended (killing it first with Force).
func (c *Client) RemoveProcess(ctx context.Context, ref core.Ref, opts RemoveOptions) error {
	return errdefs.ErrNotImplemented
}
func (c *Client) Streams(ctx context.Context, ref core.Ref, opts core.StreamOptions) (*core.Streams, error) {
	return *new(*core.Streams), errdefs.ErrNotImplemented
}
func (c *Client) Resize(ctx context.Context, ref core.Ref, size core.Size) error {
	return errdefs.ErrNotImplemented
}
func (c *Client) CloseStdin(ctx context.Context, ref core.Ref) error {
	return errdefs.ErrNotImplemented
}
func (c *Client) ReopenSinks(ctx context.Context, ref core.Ref) error {
	return errdefs.ErrNotImplemented
}

// Figures and events.
func (c *Client) Stats(ctx context.Context, container core.ID, processes bool) (core.Stats, error) {
	return *new(core.Stats), errdefs.ErrNotImplemented
}
func (c *Client) SandboxStats(ctx context.Context, sandbox core.ID) (core.Stats, error) {
	return *new(core.Stats), errdefs.ErrNotImplemented
}

// Events yields events newer than since that match f, then new ones as they happen, until ctx ends.
func (c *Client) Events(ctx context.Context, since uint64, f core.Filter) iter.Seq2[core.Event, error] {
	return func(func(core.Event, error) bool) {}
}
func (c *Client) LastSeq(ctx context.Context) (uint64, error) {
	return *new(uint64), errdefs.ErrNotImplemented
}

// Images, each under the Client's owner.
func (c *Client) PullImage(ctx context.Context, ref string, opts core.PullOptions) (core.Image, error) {
	return *new(core.Image), errdefs.ErrNotImplemented
}
func (c *Client) Image(ctx context.Context, ref string) (core.Image, error) {
	return *new(core.Image), errdefs.ErrNotImplemented
}
func (c *Client) Images(ctx context.Context) ([]core.Image, error) {
	return *new([]core.Image), errdefs.ErrNotImplemented
}
func (c *Client) TagImage(ctx context.Context, source, target string) error {
	return errdefs.ErrNotImplemented
}
func (c *Client) RemoveImage(ctx context.Context, ref string) error { return errdefs.ErrNotImplemented }
func (c *Client) ImportImages(ctx context.Context, archive io.Reader) ([]core.Image, error) {
	return *new([]core.Image), errdefs.ErrNotImplemented
}
func (c *Client) ExportImages(ctx context.Context, refs []string, w io.Writer) error {
	return errdefs.ErrNotImplemented
}
func (c *Client) PruneImages(ctx context.Context, keep func(core.Image) bool) (uint64, error) {
	return *new(uint64), errdefs.ErrNotImplemented
}
func (c *Client) ImageUsage(ctx context.Context) (core.ImageUsage, error) {
	return *new(core.ImageUsage), errdefs.ErrNotImplemented
}

// Volumes, each under the Client's owner.
func (c *Client) CreateVolume(ctx context.Context, name string, labels map[string]string) (core.Volume, error) {
	return *new(core.Volume), errdefs.ErrNotImplemented
}
func (c *Client) Volumes(ctx context.Context) ([]core.Volume, error) {
	return *new([]core.Volume), errdefs.ErrNotImplemented
}
func (c *Client) RemoveVolume(ctx context.Context, name string) error {
	return errdefs.ErrNotImplemented
}
func (c *Client) PruneVolumes(ctx context.Context) ([]core.Volume, error) {
	return *new([]core.Volume), errdefs.ErrNotImplemented
}

// The node.
func (c *Client) NetworkInfo(ctx context.Context) (core.NetworkInfo, error) {
	return *new(core.NetworkInfo), errdefs.ErrNotImplemented
}
func (c *Client) SetNetworkRanges(ctx context.Context, cidrs []string) error {
	return errdefs.ErrNotImplemented
}
func (c *Client) Runtimes(ctx context.Context) ([]RuntimeInfo, error) {
	return *new([]RuntimeInfo), errdefs.ErrNotImplemented
}

// RuntimeInfo is one configured runtime.
type RuntimeInfo struct {
	Name     string
	Default  bool
	Features core.RuntimeFeatures
	Problem  string // why it cannot be used; "" when it can
}
