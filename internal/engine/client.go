package engine

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/attach"
	"github.com/longshore/longshore/internal/engine/changes"
	"github.com/longshore/longshore/internal/engine/reads"
)

// Client is the engine as one owner sees it: it creates objects for that owner and finds only
// that owner's objects. The unscoped view (Engine.All) finds every object and creates none; only
// the control API holds it.
//
// Its methods are the verbs on sandboxes, containers and processes.
type Client struct {
	e    *Engine
	view view

	Images  Images
	Volumes Volumes
	Network Network
	// Stats reads usage. It never waits for a verb.
	Stats reads.Stats
	// Stored reads records without copying them.
	Stored reads.Stored
	// Registries sends images to registries.
	Registries reads.Registries
	// Roots compares roots with images, and makes images of them.
	Roots reads.Roots
	// Changes changes names, and limits of later starts.
	Changes changes.Changes
	// Attachments changes which networks a sandbox is on.
	Attachments attach.Verbs
	// Overlays are the node's networks that reach over several nodes; nil where there can be none.
	Overlays core.Overlays
}

// view is a verb's caller.
type view struct {
	e     *Engine
	owner core.Owner // "" in the unscoped view
}

func newClient(e *Engine, owner core.Owner) *Client {
	v := view{e, owner}
	return &Client{
		e: e, view: v, Images: Images{v}, Volumes: Volumes{v}, Network: Network{v},
		Stats:      reads.Stats{Store: e.o.Store, Cgroups: e.o.Cgroups, Images: e.o.Images, Network: e.o.Network, Owner: owner},
		Registries: reads.Registries{Images: e.o.Images, Owner: owner}, Roots: reads.Roots{Images: e.o.Images, Owner: owner, Tell: e.records.tell},
		Overlays: e.o.Overlays, Stored: reads.Stored{Store: e.o.Store, Owner: owner}, Changes: changes.Changes{Store: e.o.Store, Owner: owner, Lock: e.sandboxes.Lock},
		Attachments: attach.Verbs{Store: e.o.Store, Network: e.o.Network, Owner: owner, Lock: e.sandboxes.Lock, Files: e.files, Begin: func(verb string) func(string) error { return e.pipeline(owner, verb).pass }},
	}
}

// RemoveOptions are the options of RemoveContainer, RemoveSandbox and RemoveProcess.
type RemoveOptions struct {
	// Force kills running processes. Without it, removing a running object returns
	// FailedPrecondition.
	Force   bool
	Request core.StopRequest
}

// StopOptions are the options of StopContainer and StopSandbox.
type StopOptions struct {
	// Signal is the first signal to send; "" is the container's own, or SIGTERM.
	Signal string
	// Grace is how long to wait before SIGKILL. nil is the container's own grace period; 0 or
	// less sends SIGKILL first.
	Grace   *time.Duration
	Request core.StopRequest
}

// sees reports whether the caller may see an object with this Meta.
func (v view) sees(m *core.Meta) bool { return v.owner == "" || m.Owner == v.owner }

// forces reports whether the caller would change another owner's object.
func (v view) forces(m *core.Meta) bool { return v.owner == "" && m.Owner != core.OwnerCLI }

// owns returns the owner of objects that the caller creates.
func (v view) owns(what string) (core.Owner, error) {
	if v.owner == "" {
		return "", fmt.Errorf("%s: the unscoped view has no owner: %w", what, errdefs.ErrInvalidArgument)
	}
	return v.owner, nil
}

// request completes a stop request with its owner, call and time.
func (v view) request(a core.StopRequest, call string) core.StopRequest {
	if a.Owner == "" {
		a.Owner = v.owner
		if a.Owner == "" {
			a.Owner = core.OwnerCLI
		}
	}
	if a.Call == "" {
		a.Call = call
	}
	if a.At.IsZero() {
		a.At = now()
	}
	return a
}

// sandbox returns a sandbox that the caller may see.
func (v view) sandbox(id core.ID) (core.Sandbox, error) {
	sb, err := v.e.records.sandbox(id)
	if err == nil && !v.sees(&sb.Meta) {
		return core.Sandbox{}, fmt.Errorf("sandbox %s: %w", id, errdefs.ErrNotFound)
	}
	return sb, err
}

// container returns a container that the caller may see.
func (v view) container(id core.ID) (core.Container, error) {
	c, err := v.e.records.container(id)
	if err == nil && !v.sees(&c.Meta) {
		return core.Container{}, fmt.Errorf("container %s: %w", id, errdefs.ErrNotFound)
	}
	return c, err
}

// process returns a process of a container that the caller may see.
func (v view) process(ref core.Ref) (core.Container, *core.Process, error) {
	c, err := v.container(ref.Container)
	if err != nil {
		return c, nil, err
	}
	p := v.e.process(&c, ref.Process)
	if p == nil {
		return c, nil, fmt.Errorf("process %s of container %s: %w", ref.Process, ref.Container, errdefs.ErrNotFound)
	}
	return c, p, nil
}
