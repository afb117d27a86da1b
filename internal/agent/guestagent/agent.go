// Package guestagent assembles the agent of a virtual machine's guest: the engine over the
// native runtime, with its records in memory, and the face of Kata.
//
// cmd/longshore-guest uses it as cmd/longshore uses internal/agent. It links no gRPC server and no
// database, because in a guest files are memory; a test of internal/arch keeps it so. Start at Run.
package guestagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/cgroup"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/without"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/kata"
	"github.com/longshore/longshore/internal/guest"
	"github.com/longshore/longshore/internal/guest/policy"
	"github.com/longshore/longshore/internal/keeper"
	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/kmsg"
	"github.com/longshore/longshore/internal/logs"
	"github.com/longshore/longshore/internal/pin"
	"github.com/longshore/longshore/internal/rootfs"
	"github.com/longshore/longshore/internal/runtime/native"
	"github.com/longshore/longshore/internal/runtime/native/compile"
	"github.com/longshore/longshore/internal/state"
)

// maxEvents is the number of events in the store. The face reads each as it is stored.
const maxEvents = 1000

// heapGrowth is the growth of the heap between two collections, in percent. With Go's default of 100 the agent takes 2
// MB more for twenty containers, which in a guest is more than the time that collections take.
const heapGrowth = 50

// The time to wait for a first call before the start of the parts, and the bounds of the start and of the shutdown.
const (
	quietTime = 100 * time.Millisecond
	startTime = time.Minute
	leaveTime = 10 * time.Second
)

// Options are the parameters of Run.
type Options struct {
	// State is the agent's directory, absolute, on a tmpfs. Its content does not outlive the agent:
	// files of an earlier one are removed.
	State string
	// Keeper is the path of longshore-keeper, or of a program that links guest/onefile.
	Keeper string
	// Beside, unless nil, serves beside the face until ctx ends. Its errors are logged, and do not end the agent. If
	// restricted returns true, a policy or a list in the options restricts the shim's requests, and Beside must not
	// offer a way around it.
	Beside func(ctx context.Context, eng *engine.Engine, restricted func() bool) error
	// Recent gets the output of containers that the shim reads; it may be nil.
	Recent *logs.Recent
	// CgroupRoot is the directory of containers' cgroups below each hierarchy's root.
	CgroupRoot string
	// Listeners accept the shim's connections. Run closes them.
	Listeners []net.Listener
	// Streams has the connections that calls name by their ports; it may be nil.
	Streams kata.Streams
	// Requests allows or denies calls of the shim.
	Requests kata.Requests
	// PolicyFile is the path of the policy in force at the start, "" without one.
	PolicyFile string
	// PlugTime bounds the wait for a device that the host plugs in.
	PlugTime time.Duration
	// Reclaim frees memory of containers when they are paused.
	Reclaim bool
	// CDI resolves the names of containers' devices.
	CDI guest.CDI
	// Images pulls the images of storages of the driver image_guest_pull; nil pulls nothing.
	Images  core.Images
	Version string
	Logger  *slog.Logger
}

// Run serves until ctx ends or the sandbox was destroyed. No container outlives it.
//
// It answers Health at once, and the other calls when the keeper runs: shims make no other call before Health has
// succeeded.
func Run(ctx context.Context, o Options) (err error) {
	defer func() {
		for _, l := range o.Listeners {
			_ = l.Close() // it is usually closed already
		}
	}()
	gate := policy.New(policy.Options{Program: policyProgram, Logger: o.Logger})
	defer gate.Close()
	if err := loadPolicy(ctx, gate, o.PolicyFile); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	machine := guest.New()
	machine.Groups, machine.PlugTime, machine.Logger = o.CgroupRoot, o.PlugTime, o.Logger
	var p *parts // set before the first call that needs it
	f, err := kata.New(kata.Options{
		Deps:    face.Deps{Logger: o.Logger.With("face", "kata"), Version: o.Version},
		Machine: machine, Requests: o.Requests, Policy: gate, Streams: o.Streams, CDI: o.CDI, Recent: o.Recent, Quiet: debug.FreeOSMemory,
		Unified: func() bool { return p.groups.Mode() == core.CgroupV2 },
		OOMCounter: func(ref core.CgroupRef) string {
			level, _ := p.groups.OOMLevel(ref)
			return level.Path
		},
		Paused: func(ctx context.Context, ref core.CgroupRef) {
			if !o.Reclaim {
				return
			}
			freed, err := p.groups.Reclaim(ctx, ref)
			if err != nil {
				o.Logger.WarnContext(ctx, "could not free memory of a paused container", "cgroup", ref.Path, "error", err)
			}
			o.Logger.InfoContext(ctx, "a paused container has given memory back", "cgroup", ref.Path, "bytes", freed)
		},
	})
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() {
		defer cancel() // the sandbox was destroyed
		served <- f.Serve(ctx, o.Listeners...)
	}()
	// Answer the first call before the start of the parts needs the processors.
	select {
	case <-f.Called():
	case <-time.After(quietTime):
	case <-ctx.Done():
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(heapGrowth)
	}
	// A shutdown during the start waits for the start, so that there is only one kind of shutdown.
	starting, stop := context.WithTimeout(context.WithoutCancel(ctx), startTime)
	defer stop()
	p, err = start(starting, o)
	if err == nil && o.Images != nil {
		machine.Puller = &guest.Puller{Images: o.Images, Roots: p.roots}
		if cerr := machine.Puller.Clean(starting); cerr != nil {
			err = errors.Join(fmt.Errorf("discard images' layers of an earlier agent: %w", cerr), p.leave(starting))
		}
	}
	if err != nil {
		cancel()
		return errors.Join(err, ended(<-served))
	}
	// The engine records ends until the containers are gone.
	engineCtx, stopEngine := context.WithCancel(context.WithoutCancel(ctx))
	defer stopEngine()
	recorded := make(chan error, 1)
	go func() { recorded <- p.engine.Run(engineCtx) }()
	debug.FreeOSMemory() // garbage of the start, and the rest of a huge page
	f.Begin(p.engine.As(core.OwnerKata))
	var beside sync.WaitGroup
	if o.Beside != nil {
		restricted := func() bool { return gate.InForce() || len(o.Requests.Allow)+len(o.Requests.Deny) > 0 }
		beside.Go(func() {
			if err := o.Beside(ctx, p.engine, restricted); err != nil && ctx.Err() == nil {
				o.Logger.ErrorContext(ctx, "the control API has ended", "error", err)
			}
		})
	}
	o.Logger.InfoContext(ctx, "agent is ready", "version", o.Version, "state", o.State)
	err = ended(<-served)
	beside.Wait()
	leave, stop := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer stop()
	err = errors.Join(err, removeAll(leave, p.engine))
	f.Release(leave)
	if rerr := machine.Release(); rerr != nil {
		err = errors.Join(err, fmt.Errorf("unmount storages: %w", rerr))
	}
	stopEngine()
	return errors.Join(err, ended(<-recorded), p.leave(leave))
}

// ended returns err, unless a cancelled context caused it: that is the normal end of every part.
func ended(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// parts are the parts that the face needs.
type parts struct {
	engine *engine.Engine
	groups *cgroup.Tree
	roots  core.Roots
	leave  func(ctx context.Context) error // releases everything that does not belong to a container
}

// start makes the parts. It releases them after a failure.
func start(ctx context.Context, o Options) (_ *parts, err error) {
	kernel.SmallPages() // with huge pages a heap of 3 MB takes 6
	keep, err := keeper.New(ctx, keeper.Options{StateDir: filepath.Join(o.State, "keeper"), Binary: o.Keeper, Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	var undo []func(context.Context) error
	leave := func(ctx context.Context) error {
		err := keep.Shutdown(ctx)
		for _, u := range slices.Backward(undo) {
			err = errors.Join(err, u(ctx))
		}
		return errors.Join(err, keep.Close())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, leave(ctx))
		}
	}()
	groups, err := cgroup.New(cgroup.Options{Root: o.CgroupRoot, Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	undo = append(undo, groups.Release)
	pins, err := pin.New(pin.Options{Dir: filepath.Join(o.State, "ns"), Make: keep.Namespaces, Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	host, err := compile.ReadHost()
	if err != nil {
		return nil, err
	}
	run, err := native.New(native.Options{Dir: filepath.Join(o.State, "runtime"), Launcher: keep, Supervisor: keep, Cgroups: groups, Host: host, Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	undo = append(undo, func(context.Context) error { return run.Release() })
	sandboxes := filepath.Join(o.State, engine.Sandboxes)
	if err := rootfs.MakeOwnMount(sandboxes); err != nil {
		return nil, fmt.Errorf("make the sandboxes' directory a mount: %w", err)
	}
	undo = append(undo, func(context.Context) error { return rootfs.RemoveOwnMount(sandboxes) })
	roots := rootfs.New(rootfs.Options{Users: keep.Namespaces, Logger: o.Logger})
	eng, err := engine.New(engine.Options{
		Store: state.NewMemory(maxEvents), Runtimes: []core.Runtime{run}, Supervisor: keep, Images: without.Images{}, Network: without.Network{}, Pinner: pins, Cgroups: groups,
		Roots: roots, Volumes: without.Volumes{}, OOMLog: kmsg.New(kmsg.Options{Logger: o.Logger}),
		State: o.State, Init: o.Keeper, Logger: o.Logger,
	})
	if err != nil {
		return nil, err
	}
	if err := eng.Recover(ctx); err != nil {
		return nil, fmt.Errorf("remove an earlier agent's files: %w", err)
	}
	return &parts{engine: eng, groups: groups, roots: roots, leave: leave}, nil
}

// policyProgram returns the path of longshore-policy: beside this program, or in /usr/bin if this program is a copy in
// the place of a machine's init.
func policyProgram() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	for _, dir := range []string{filepath.Dir(self), "/usr/bin"} {
		path := filepath.Join(dir, "longshore-policy")
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("longshore-policy is neither beside %s nor in /usr/bin", self)
}

// maxPolicy bounds the text of a policy, in bytes.
const maxPolicy = policy.MaxMessage

// loadPolicy sets the policy of a file; "" sets none. After an error the agent must not start, because it would run
// without its policy.
func loadPolicy(ctx context.Context, gate *policy.Gate, file string) error {
	if file == "" {
		return nil
	}
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxPolicy+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	if len(text) > maxPolicy {
		return fmt.Errorf("policy: %s has more than %d bytes", file, maxPolicy)
	}
	if err := gate.Load(ctx, string(text)); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// removeAll removes the sandbox, if there is one, with its containers.
func removeAll(ctx context.Context, eng *engine.Engine) error {
	own := eng.As(core.OwnerKata)
	list, err := own.Sandboxes(ctx, core.Filter{})
	for _, sb := range list {
		err = errors.Join(err, own.RemoveSandbox(ctx, sb.ID, engine.RemoveOptions{Force: true}))
	}
	return err
}
