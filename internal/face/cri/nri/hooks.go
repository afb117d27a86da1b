package nri

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

var (
	_ core.Adjuster = (*Host)(nil)
	_ core.Admitter = (*Host)(nil)
)

// Admit asks the plugins about a sandbox that is made and not seen yet.
func (h *Host) Admit(ctx context.Context, sb *core.Sandbox) error {
	if !h.active() {
		return nil
	}
	p, err := h.pod(*sb)
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.pods[sb.Key] = p
	h.mu.Unlock()
	if err := h.plugins.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: p}); err != nil {
		return refused("RunPodSandbox", err)
	}
	return nil
}

// MadePod says how the making of a sandbox that was perhaps admitted ended.
func (h *Host) MadePod(ctx context.Context, key core.Key, err error) {
	if h == nil || errdefs.IsAlreadyExists(err) {
		return // the first call's business
	}
	h.mu.Lock()
	p := h.pods[key]
	delete(h.pods, key)
	h.mu.Unlock()
	if p == nil || err == nil {
		return
	}
	h.note(ctx, "RemovePodSandbox", h.plugins.RemovePodSandbox(context.WithoutCancel(ctx), &api.RemovePodSandboxRequest{Pod: p}))
}

// Adjust asks the plugins how they want a container's spec.
func (h *Host) Adjust(ctx context.Context, sb *core.Sandbox, c *core.Container, spec *specs.Spec) error {
	if !h.active() {
		return nil
	}
	p, err := h.pod(*sb)
	if err != nil {
		return err
	}
	t, err := h.container(*c, spec)
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.born[c.Key] = newborn{pod: p, container: t}
	h.mu.Unlock()
	answer, err := h.plugins.CreateContainer(ctx, &api.CreateContainerRequest{Pod: p, Container: t})
	if err != nil {
		return refused("CreateContainer", err)
	}
	if err := h.apply(spec, answer.GetAdjust()); err != nil {
		return err
	}
	h.mu.Lock()
	h.born[c.Key] = newborn{p, t, answer.GetUpdate()}
	h.mu.Unlock()
	return nil
}

// Made says how the making of a container that was perhaps adjusted ended.
func (h *Host) Made(ctx context.Context, key core.Key, err error) {
	if h == nil || errdefs.IsAlreadyExists(err) {
		return
	}
	h.mu.Lock()
	b, ok := h.born[key]
	delete(h.born, key)
	h.mu.Unlock()
	switch {
	case !ok:
	case err != nil:
		h.note(ctx, "RemoveContainer", h.plugins.RemoveContainer(context.WithoutCancel(ctx), &api.RemoveContainerRequest{Pod: b.pod, Container: b.container}))
	default:
		_, uerr := h.update(ctx, b.updates)
		h.note(ctx, "CreateContainer", uerr)
		h.note(ctx, "PostCreateContainer", h.plugins.PostCreateContainer(ctx, &api.PostCreateContainerRequest{Pod: b.pod, Container: b.container}))
	}
}

// Starting asks the plugins before a container's program runs.
func (h *Host) Starting(ctx context.Context, c core.Container) error {
	if !h.active() {
		return nil
	}
	p, t, err := h.both(ctx, c)
	if err == nil {
		err = refused("StartContainer", h.plugins.StartContainer(ctx, &api.StartContainerRequest{Pod: p, Container: t}))
	}
	return err
}

// Started tells that it runs.
func (h *Host) Started(ctx context.Context, c core.Container) {
	if !h.active() {
		return
	}
	p, t, err := h.both(ctx, c)
	if err == nil {
		err = h.plugins.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: p, Container: t})
	}
	h.note(ctx, "PostStartContainer", err)
}

// Updating asks the plugins what a container's limits are to be instead of res.
func (h *Host) Updating(ctx context.Context, c core.Container, res *specs.LinuxResources) (*specs.LinuxResources, error) {
	if !h.active() {
		return res, nil
	}
	p, t, err := h.both(ctx, c)
	if err != nil {
		return nil, err
	}
	answer, err := h.plugins.UpdateContainer(ctx, &api.UpdateContainerRequest{Pod: p, Container: t, LinuxResources: api.FromOCILinuxResources(res, nil)})
	if err != nil {
		return nil, refused("UpdateContainer", err)
	}
	var others []*api.ContainerUpdate
	for _, u := range answer.GetUpdate() {
		switch {
		case u.GetContainerId() != string(c.ID):
			if u != nil {
				others = append(others, u)
			}
		case u.GetLinux().GetResources() != nil:
			res = u.GetLinux().GetResources().ToOCI()
		}
	}
	_, err = h.update(ctx, others)
	return res, err
}

// Updated tells that the limits have been changed.
func (h *Host) Updated(ctx context.Context, c core.Container) {
	if !h.active() {
		return
	}
	p, t, err := h.both(ctx, c)
	if err == nil {
		err = h.plugins.PostUpdateContainer(ctx, &api.PostUpdateContainerRequest{Pod: p, Container: t})
	}
	h.note(ctx, "PostUpdateContainer", err)
}

// Stopped tells once that a container has ended, by itself or because it was
// asked to. Whoever comes second waits until the first has told it.
func (h *Host) Stopped(ctx context.Context, c core.Container) {
	if h == nil || c.State != core.ContainerExited {
		return
	}
	unlock, err := h.ends.Lock(ctx, c.ID)
	if err != nil {
		return
	}
	defer unlock()
	defer h.Block()()
	h.mu.Lock()
	told := h.ended[c.ID]
	h.ended[c.ID] = true
	h.mu.Unlock()
	if told || !h.active() {
		return
	}
	p, t, err := h.both(ctx, c)
	if err == nil {
		answer, serr := h.plugins.StopContainer(ctx, &api.StopContainerRequest{Pod: p, Container: t})
		if err = serr; err == nil {
			_, err = h.update(ctx, answer.GetUpdate())
		}
	}
	h.note(ctx, "StopContainer", err)
}

// Gone is a container that is about to be removed, as plugins know it.
type Gone struct {
	id core.ID
	newborn
}

// Removing remembers what has to be told of a container, or of a sandbox's
// containers, once they are removed. Those that ended are told of first.
func (h *Host) Removing(ctx context.Context, containers ...core.Container) (gone []Gone) {
	if h == nil {
		return nil
	}
	for _, c := range containers {
		h.Stopped(ctx, c)
		g := Gone{id: c.ID}
		if h.active() {
			var err error
			if g.pod, g.container, err = h.both(ctx, c); err != nil {
				h.note(ctx, "RemoveContainer", err)
			}
		}
		gone = append(gone, g)
	}
	return gone
}

// Removed tells that they are removed.
func (h *Host) Removed(ctx context.Context, gone []Gone) {
	if h == nil {
		return
	}
	defer h.Block()()
	for _, g := range gone {
		h.mu.Lock()
		delete(h.ended, g.id)
		h.mu.Unlock()
		if g.container != nil && h.active() {
			h.note(ctx, "RemoveContainer", h.plugins.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: g.pod, Container: g.container}))
		}
	}
}

// Listening reports whether a plugin is there to be told of ends in the right
// order.
func (h *Host) Listening() bool { return h.active() }

// StoppingPod tells that a sandbox is about to lose its network; its containers
// have ended.
func (h *Host) StoppingPod(ctx context.Context, sb core.Sandbox) {
	if h == nil {
		return
	}
	defer h.Block()()
	if !h.active() || sb.State != core.SandboxReady {
		return
	}
	p, err := h.pod(sb)
	if err == nil {
		err = h.plugins.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: p})
	}
	h.note(ctx, "StopPodSandbox", err)
}

// RemovedPod tells that a sandbox is removed.
func (h *Host) RemovedPod(ctx context.Context, sb core.Sandbox) {
	if h == nil {
		return
	}
	defer h.Block()()
	if !h.active() {
		return
	}
	p, err := h.pod(sb)
	if err == nil {
		err = h.plugins.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: p})
	}
	h.note(ctx, "RemovePodSandbox", err)
}

// UpdatingPod asks the plugins about new limits of a pod.
func (h *Host) UpdatingPod(ctx context.Context, sb core.Sandbox, overhead, resources *specs.LinuxResources) error {
	if !h.active() {
		return nil
	}
	p, err := h.pod(sb)
	if err != nil {
		return err
	}
	_, err = h.plugins.UpdatePodSandbox(ctx, &api.UpdatePodSandboxRequest{
		Pod: p, OverheadLinuxResources: api.FromOCILinuxResources(overhead, nil), LinuxResources: api.FromOCILinuxResources(resources, nil),
	})
	return refused("UpdatePodSandbox", err)
}

// UpdatedPod tells that a pod has them.
func (h *Host) UpdatedPod(ctx context.Context, sb core.Sandbox) {
	if !h.active() {
		return
	}
	p, err := h.pod(sb)
	if err == nil {
		err = h.plugins.PostUpdatePodSandbox(ctx, &api.PostUpdatePodSandboxRequest{Pod: p})
	}
	h.note(ctx, "PostUpdatePodSandbox", err)
}

// both are a container and its pod as plugins know them.
func (h *Host) both(ctx context.Context, c core.Container) (*api.PodSandbox, *api.Container, error) {
	h.mu.Lock()
	e := h.engine
	h.mu.Unlock()
	sb, err := e.Sandbox(ctx, c.Sandbox)
	if err != nil {
		return nil, nil, err
	}
	p, err := h.pod(sb)
	if err != nil {
		return nil, nil, err
	}
	t, err := h.container(c, readSpec(c.Bundle))
	return p, t, err
}

// refused is a plugin's no, which ends what it was asked about.
func refused(call string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("nri plugin: %s: %v: %w", call, err, errdefs.ErrFailedPrecondition) //nolint:errorlint // a plugin's class means nothing here
}

// note is an error of a call whose answer changes nothing.
func (h *Host) note(ctx context.Context, call string, err error) {
	if err != nil {
		h.o.Logger.WarnContext(ctx, "an nri plugin failed", "call", call, "error", err)
	}
}
