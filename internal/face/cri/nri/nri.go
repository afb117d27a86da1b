// Package nri lets plugins of the Node Resource Interface see the pods and containers of the CRI
// face, and adjust containers before they are made. It is the cri owner's core.Policy, so that the
// terms of pods stay in the face.
//
// Plugins speak NRI over ttrpc on a unix socket; the protocol, the order of the plugins and the
// merge of their adjustments are github.com/containerd/nri's. This package determines the times and
// contents of the calls. Start at Host.
package nri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/keylock"
	"github.com/longshore/longshore/internal/ocispec"
)

// Options are the parameters of New.
type Options struct {
	// Socket is where plugins connect, an absolute path.
	Socket string
	// Timeout is how long a plugin may take for one answer; one that takes longer is disconnected,
	// and the verb continues without it. 0 is DefaultTimeout.
	Timeout time.Duration
	Logger  *slog.Logger
	Version string // the agent's, told to plugins
	// Pod and Container read the face's own record of an object.
	Pod       func(core.Sandbox) (*v1.RunPodSandboxRequest, error)
	Container func(core.Container) (*v1.ContainerConfig, error)
	// CDI adds devices, by their qualified names, to a spec. nil: a plugin that
	// asks for one gets an error.
	CDI func(spec *specs.Spec, names []string) error
}

// DefaultTimeout is more than the two seconds of other runtimes: a plugin that joins a node with
// many containers gets all of them in one call.
const DefaultTimeout = 10 * time.Second

// registration is how long a plugin may take to say its name.
const registration = 5 * time.Second

// Host is the place where plugins plug in. Run, UpdatePod and Asking may be called on nil,
// which has no plugins.
type Host struct {
	o       Options
	plugins *adaptation.Adaptation
	count   atomic.Int64 // plugins connected

	mu       sync.Mutex // guards engine, asking, pods, creating, ended
	engine   *engine.Client
	asking   map[core.ID]bool            // plugins are asked about them by RunPodSandbox
	pods     map[core.ID]*api.PodSandbox // admitted and not made yet
	creating map[core.ID]newborn         // adjusted and not made yet
	ended    map[core.ID]bool            // containers with a reported end

	ends keylock.Map[core.ID]
}

type newborn struct {
	pod       *api.PodSandbox
	container *api.Container
	// updates of other containers that the plugins asked for on its occasion.
	// They wait until it is made: then nobody holds its sandbox.
	updates []*api.ContainerUpdate
}

// New makes a host; nobody can plug in before Run. InvalidArgument when
// something required is missing.
func New(o Options) (*Host, error) {
	if !filepath.IsAbs(o.Socket) || o.Logger == nil || o.Pod == nil || o.Container == nil {
		return nil, fmt.Errorf("nri: socket %q, a logger and the records' readers are required: %w", o.Socket, errdefs.ErrInvalidArgument)
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	h := &Host{o: o, asking: map[core.ID]bool{}, pods: map[core.ID]*api.PodSandbox{}, creating: map[core.ID]newborn{}, ended: map[core.ID]bool{}}
	// The library has one for a whole process.
	adaptation.SetPluginRequestTimeout(o.Timeout)
	adaptation.SetPluginRegistrationTimeout(registration)
	var err error
	h.plugins, err = adaptation.New("longshore", o.Version, h.synchronize, h.update,
		adaptation.WithSocketPath(o.Socket), adaptation.WithMetrics(pluginMetrics{h}),
		// Plugins connect by themselves; the agent runs no programs for them.
		adaptation.WithPluginPath(filepath.Join(filepath.Dir(o.Socket), "no-plugins")))
	if err != nil {
		return nil, fmt.Errorf("nri: %w", err)
	}
	return h, nil
}

// Run lets plugins connect and tells them of ends that nobody asked for, until
// ctx ends.
func (h *Host) Run(ctx context.Context, e *engine.Client) error {
	if h == nil {
		<-ctx.Done()
		return nil
	}
	since, err := e.LastSeq(ctx)
	if err != nil {
		return fmt.Errorf("nri: %w", err)
	}
	h.mu.Lock()
	h.engine = e
	h.mu.Unlock()
	if err := h.plugins.Start(); err != nil {
		return fmt.Errorf("nri: %w", err)
	}
	defer h.plugins.Stop()
	if err := os.Chmod(h.o.Socket, 0o600); err != nil {
		return fmt.Errorf("nri: %w", err)
	}
	stopped := func(ctx context.Context, id core.ID) {
		if c, err := e.Container(ctx, id); err == nil {
			h.stopped(ctx, c)
		}
	}
	w := engine.Watch{
		Kinds: []core.EventKind{core.EventContainerExited}, Since: &since,
		List: func(ctx context.Context) error {
			all, err := e.Containers(ctx, core.Filter{})
			for _, c := range all {
				stopped(ctx, c.ID)
			}
			return err
		},
		Event: func(ctx context.Context, ev core.Event) error {
			stopped(ctx, ev.Container)
			return nil
		},
		Failed: func(err error) {
			h.o.Logger.WarnContext(ctx, "nri: could not read the event log; plugins do not hear of ends until it can be read", "error", err)
		},
	}
	return w.Run(ctx, e)
}

// active reports whether anybody is plugged in. It holds still while a Block
// is held.
func (h *Host) active() bool { return h.count.Load() > 0 }

// Block keeps new plugins from joining until unblock is called. A verb that makes or changes
// something holds it from before the plugins' calls until the change is on record: then a plugin
// that joins either was called, or finds the object in its list. It must not be taken twice by one
// call.
func (h *Host) Block() (unblock func()) {
	b := h.plugins.BlockPluginSync()
	return b.Unblock
}

// synchronize tells a plugin that joins of everything there is.
func (h *Host) synchronize(ctx context.Context, tell adaptation.SyncCB) error {
	h.mu.Lock()
	e := h.engine
	h.mu.Unlock()
	sandboxes, err := e.Sandboxes(ctx, core.Filter{})
	if err != nil {
		return err
	}
	var pods []*api.PodSandbox
	made := map[core.ID]bool{}
	for _, sb := range sandboxes {
		if sb.State == core.SandboxCreating {
			continue
		}
		p, err := h.pod(sb)
		if err != nil {
			return err
		}
		made[sb.ID] = true
		pods = append(pods, p)
	}
	containers, err := e.Containers(ctx, core.Filter{})
	if err != nil {
		return err
	}
	var all []*api.Container
	for _, c := range containers {
		if c.State == core.ContainerCreating || !made[c.Sandbox] {
			continue
		}
		t, err := h.container(c, readSpec(c.Bundle))
		if err != nil {
			return err
		}
		all = append(all, t)
		if c.State == core.ContainerExited {
			// Its state shows its end.
			h.mu.Lock()
			h.ended[c.ID] = true
			h.mu.Unlock()
		}
	}
	updates, err := tell(ctx, pods, all)
	if err != nil {
		return err
	}
	_, err = h.update(ctx, updates)
	return err
}

// update makes the plugins' changes of existing containers, and returns those that failed.
func (h *Host) update(ctx context.Context, updates []*api.ContainerUpdate) (failed []*api.ContainerUpdate, err error) {
	h.mu.Lock()
	e := h.engine
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, byPlugins{}, true), h.o.Timeout)
	defer cancel()
	for _, u := range updates {
		res := u.GetLinux().GetResources().ToOCI()
		if res == nil {
			continue
		}
		if _, uerr := e.UpdateContainer(ctx, core.ID(u.GetContainerId()), res); uerr != nil {
			h.o.Logger.WarnContext(ctx, "an nri plugin's update failed", "container", u.GetContainerId(), "error", uerr)
			failed = append(failed, u)
			if !u.GetIgnoreFailure() {
				err = errors.Join(err, fmt.Errorf("nri: update container %s: %w", u.GetContainerId(), uerr))
			}
		}
	}
	return failed, err
}

// byPlugins marks a context of a verb that plugins have requested. They are not called for it: the
// caller of update may hold Block or be admitting a plugin, and must not wait for that again.
type byPlugins struct{}

func ofPlugins(ctx context.Context) bool { return ctx.Value(byPlugins{}) != nil }

// readSpec is the spec as the runtime got it; nil when it cannot be read.
func readSpec(bundle string) *specs.Spec {
	s, err := ocispec.BundleSpec(bundle)
	if err != nil {
		return nil
	}
	return s
}
