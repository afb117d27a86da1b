package nri

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/span"
)

var _ core.Policy = (*Host)(nil)

// AdmitSandbox asks the plugins about a sandbox that is made and not seen yet.
func (h *Host) AdmitSandbox(ctx context.Context, sb *core.Sandbox) error {
	if !h.active() {
		return nil
	}
	p, err := h.pod(*sb)
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.pods[sb.ID], h.asking[sb.ID] = p, true
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.asking, sb.ID)
	}()
	call, end := span.Start(ctx, "nri RunPodSandbox")
	err = h.plugins.RunPodSandbox(call, &api.RunPodSandboxRequest{Pod: p})
	if end(err); err != nil {
		return refused("RunPodSandbox", err)
	}
	return nil
}

// Asking reports whether plugins are being asked about a sandbox by RunPodSandbox. Until they have
// answered, runtimes do not list it, as critest requires.
func (h *Host) Asking(sandbox core.ID) bool {
	if h == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asking[sandbox]
}

// AdjustContainer asks the plugins how they want a container's spec.
func (h *Host) AdjustContainer(ctx context.Context, sb *core.Sandbox, c *core.Container, spec *specs.Spec) error {
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
	h.creating[c.ID] = newborn{pod: p, container: t}
	h.mu.Unlock()
	call, end := span.Start(ctx, "nri CreateContainer")
	answer, err := h.plugins.CreateContainer(call, &api.CreateContainerRequest{Pod: p, Container: t})
	if end(err); err != nil {
		return refused("CreateContainer", err)
	}
	if err := h.apply(spec, answer.GetAdjust()); err != nil {
		return err
	}
	describe(t, spec) // PostCreateContainer sends the result
	h.mu.Lock()
	h.creating[c.ID] = newborn{p, t, answer.GetUpdate()}
	h.mu.Unlock()
	return nil
}

// AdjustProcess changes nothing: NRI has no word on further processes.
func (h *Host) AdjustProcess(context.Context, *core.Sandbox, *core.Container, *specs.Process) error {
	return nil
}

// Before calls the plugins before a verb and after its end, except for verbs that they requested
// themselves.
//
// A verb that makes or changes something blocks new plugins from before the calls until the change
// is on record: see Block.
func (h *Host) Before(ctx context.Context, op *core.Operation) (after func(error), err error) {
	switch {
	case ofPlugins(ctx):
		return nil, nil
	case op.Sandbox != nil:
		return h.beforeSandbox(ctx, op), nil
	}
	return h.beforeContainer(ctx, op)
}

func (h *Host) beforeSandbox(ctx context.Context, op *core.Operation) (after func(error)) {
	detached := context.WithoutCancel(ctx) // of the end, though the caller may have left
	switch op.Verb {
	case core.VerbCreate:
		unblock := h.Block()
		return func(err error) {
			defer unblock()
			h.madePod(detached, op.Sandbox.ID, err)
		}
	case core.VerbStop:
		h.stoppingPod(ctx, *op.Sandbox)
	case core.VerbRemove:
		return func(err error) {
			if err == nil {
				h.removedPod(detached, *op.Sandbox)
			}
		}
	}
	return nil
}

func (h *Host) beforeContainer(ctx context.Context, op *core.Operation) (after func(error), err error) {
	detached := context.WithoutCancel(ctx)
	switch op.Verb {
	case core.VerbCreate:
		unblock := h.Block()
		return func(err error) {
			defer unblock()
			h.made(detached, op.Container.ID, err)
		}, nil
	case core.VerbStart:
		return h.change(func() error { return h.starting(ctx, *op.Container) }, func() { h.started(detached, *op.Container) })
	case core.VerbUpdate:
		return h.change(func() error { return h.updating(ctx, op) }, func() { h.updated(detached, *op.Container) })
	case core.VerbStop:
		return func(error) { h.reportStopped(detached, op.Container.ID) }, nil
	case core.VerbRemove:
		gone := h.removing(ctx, *op.Container)
		return func(err error) {
			if err == nil {
				h.removed(detached, gone)
			}
		}, nil
	}
	return nil, nil
}

// change asks about a change, and tells of it once it is made; new plugins are kept
// out until then.
func (h *Host) change(ask func() error, tell func()) (after func(error), err error) {
	unblock := h.Block()
	if err := ask(); err != nil {
		unblock()
		return nil, err
	}
	return func(err error) {
		defer unblock()
		if err == nil {
			tell()
		}
	}, nil
}

// madePod says how the making of a sandbox that was perhaps admitted ended.
func (h *Host) madePod(ctx context.Context, id core.ID, err error) {
	h.mu.Lock()
	p := h.pods[id]
	delete(h.pods, id)
	h.mu.Unlock()
	if p != nil && err != nil {
		h.note(ctx, "RemovePodSandbox", h.plugins.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: p}))
	}
}

// made says how the making of a container that was perhaps adjusted ended.
func (h *Host) made(ctx context.Context, id core.ID, err error) {
	h.mu.Lock()
	b, ok := h.creating[id]
	delete(h.creating, id)
	h.mu.Unlock()
	switch {
	case !ok:
	case err != nil:
		h.note(ctx, "RemoveContainer", h.plugins.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: b.pod, Container: b.container}))
	default:
		_, uerr := h.update(ctx, b.updates)
		h.note(ctx, "CreateContainer", uerr)
		h.note(ctx, "PostCreateContainer", h.plugins.PostCreateContainer(ctx, &api.PostCreateContainerRequest{Pod: b.pod, Container: b.container}))
	}
}

// starting asks the plugins before a container's program runs.
func (h *Host) starting(ctx context.Context, c core.Container) error {
	if !h.active() {
		return nil
	}
	p, t, err := h.both(ctx, c)
	if err == nil {
		call, end := span.Start(ctx, "nri StartContainer")
		err = refused("StartContainer", h.plugins.StartContainer(call, &api.StartContainerRequest{Pod: p, Container: t}))
		end(err)
	}
	return err
}

// started tells that it runs.
func (h *Host) started(ctx context.Context, c core.Container) {
	if !h.active() {
		return
	}
	p, t, err := h.both(ctx, c)
	if err == nil {
		err = h.plugins.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: p, Container: t})
	}
	h.note(ctx, "PostStartContainer", err)
}

// updating lets the plugins change the new limits of a container.
func (h *Host) updating(ctx context.Context, op *core.Operation) error {
	if !h.active() {
		return nil
	}
	p, t, err := h.both(ctx, *op.Container)
	if err != nil {
		return err
	}
	answer, err := h.plugins.UpdateContainer(ctx, &api.UpdateContainerRequest{
		Pod: p, Container: t, LinuxResources: api.FromOCILinuxResources(op.Resources, nil),
	})
	if err != nil {
		return refused("UpdateContainer", err)
	}
	var others []*api.ContainerUpdate
	for _, u := range answer.GetUpdate() {
		switch {
		case u.GetContainerId() != string(op.Container.ID):
			if u != nil {
				others = append(others, u)
			}
		case u.GetLinux().GetResources() != nil:
			op.Resources = u.GetLinux().GetResources().ToOCI()
		}
	}
	_, err = h.update(ctx, others)
	return err
}

// updated tells that the limits have been changed.
func (h *Host) updated(ctx context.Context, c core.Container) {
	if !h.active() {
		return
	}
	p, t, err := h.both(ctx, c)
	if err == nil {
		err = h.plugins.PostUpdateContainer(ctx, &api.PostUpdateContainerRequest{Pod: p, Container: t})
	}
	h.note(ctx, "PostUpdateContainer", err)
}

// reportStopped reports an end to the plugins, if it is on record.
func (h *Host) reportStopped(ctx context.Context, id core.ID) {
	if !h.active() {
		return
	}
	h.mu.Lock()
	e := h.engine
	h.mu.Unlock()
	if c, err := e.Container(ctx, id); err == nil {
		h.stopped(ctx, c)
	}
}

// stopped reports a container's end once, by itself or by a stop. A second caller waits until the
// first has reported it.
func (h *Host) stopped(ctx context.Context, c core.Container) {
	if c.State != core.ContainerExited {
		return
	}
	unlock, err := h.ends.Lock(ctx, c.ID)
	if err != nil {
		return
	}
	defer unlock()
	defer h.Block()()
	h.mu.Lock()
	reported := h.ended[c.ID]
	h.ended[c.ID] = true
	h.mu.Unlock()
	if reported || !h.active() {
		return
	}
	p, t, err := h.both(ctx, c)
	if err == nil {
		call, end := span.Start(ctx, "nri StopContainer")
		answer, serr := h.plugins.StopContainer(call, &api.StopContainerRequest{Pod: p, Container: t})
		end(serr)
		if err = serr; err == nil {
			_, err = h.update(ctx, answer.GetUpdate())
		}
	}
	h.note(ctx, "StopContainer", err)
}

// gone is a container that is about to be removed, as plugins know it.
type gone struct {
	id core.ID
	newborn
}

// removing keeps the data for the report of an ended container's removal. It reports the end first.
func (h *Host) removing(ctx context.Context, c core.Container) gone {
	h.stopped(ctx, c)
	g := gone{id: c.ID}
	if h.active() {
		var err error
		if g.pod, g.container, err = h.both(ctx, c); err != nil {
			h.note(ctx, "RemoveContainer", err)
		}
	}
	return g
}

// removed tells that it is removed.
func (h *Host) removed(ctx context.Context, g gone) {
	defer h.Block()()
	h.mu.Lock()
	delete(h.ended, g.id)
	h.mu.Unlock()
	if g.container != nil && h.active() {
		h.note(ctx, "RemoveContainer", h.plugins.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: g.pod, Container: g.container}))
	}
}

// stoppingPod tells that a sandbox is about to lose its network; its containers
// have ended.
func (h *Host) stoppingPod(ctx context.Context, sb core.Sandbox) {
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

// removedPod tells that a sandbox is removed.
func (h *Host) removedPod(ctx context.Context, sb core.Sandbox) {
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

// UpdatePod changes the record of a pod's limits, which no verb of the engine does: it calls the
// plugins before, and again when record has succeeded. On nil it is record.
func (h *Host) UpdatePod(ctx context.Context, sb core.Sandbox, overhead, resources *specs.LinuxResources, record func() (core.Sandbox, error)) error {
	if h == nil {
		_, err := record()
		return err
	}
	defer h.Block()()
	if err := h.updatingPod(ctx, sb, overhead, resources); err != nil {
		return err
	}
	sb, err := record()
	if err == nil {
		h.updatedPod(ctx, sb)
	}
	return err
}

func (h *Host) updatingPod(ctx context.Context, sb core.Sandbox, overhead, resources *specs.LinuxResources) error {
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

func (h *Host) updatedPod(ctx context.Context, sb core.Sandbox) {
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

// refused is a plugin's refusal, which ends the verb.
func refused(call string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("nri plugin: %s: %v: %w", call, err, errdefs.ErrFailedPrecondition) //nolint:errorlint // a plugin's class means nothing here
}

// note logs the error of a call with no effect on the verb.
func (h *Host) note(ctx context.Context, call string, err error) {
	if err != nil {
		h.o.Logger.WarnContext(ctx, "an nri plugin failed", "call", call, "error", err)
	}
}
