// Package agent assembles the agent of a virtual machine's guest: the engine over the
// native runtime, with its records in memory, and the face of Kata.
//
// It is to cmd/longshore-guest what internal/agent is to the node's agent. It links
// no gRPC server and no database, since in a guest files are memory; a test of
// internal/arch keeps it so. Start at Run.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/longshore/longshore/internal/cgroup"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/without"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/kata"
	"github.com/longshore/longshore/internal/guest"
	"github.com/longshore/longshore/internal/guest/policy"
	"github.com/longshore/longshore/internal/keeper"
	"github.com/longshore/longshore/internal/kmsg"
	"github.com/longshore/longshore/internal/pin"
	"github.com/longshore/longshore/internal/rootfs"
	"github.com/longshore/longshore/internal/runtime/native"
	"github.com/longshore/longshore/internal/state"
)

// maxEvents is how many events are kept; the face reads them as they come.
const maxEvents = 1000

// leaveTime is how long the end of the agent may take.
const leaveTime = 10 * time.Second

// Options are the parameters of Run.
type Options struct {
	// State is the agent's directory, absolute, on a tmpfs. Its content does not outlive the
	// agent: what an earlier one left is removed.
	State string
	// Keeper is the path of longshore-keeper, or of a program that links guest/onefile.
	Keeper string
	// CgroupRoot is the directory of containers' cgroups below each hierarchy's root.
	CgroupRoot string
	// Listeners are where the shim calls. Run closes them.
	Listeners []net.Listener
	// Requests says which of the shim's calls are answered.
	Requests kata.Requests
	// PolicyFile is the policy that decides from the beginning; "" is none.
	PolicyFile string
	// PlugTime is how long a device may take that the host is plugging in.
	PlugTime time.Duration
	Version  string
	Logger   *slog.Logger
}

// Run serves until ctx ends or the sandbox was destroyed. No container outlives it.
func Run(ctx context.Context, o Options) (err error) {
	defer func() {
		for _, l := range o.Listeners {
			_ = l.Close() // most often it is closed
		}
	}()
	gate := policy.New(policy.Options{Program: policyProgram, Logger: o.Logger})
	defer gate.Close()
	if err := loadPolicy(ctx, gate, o.PolicyFile); err != nil {
		return err
	}
	store := state.NewMemory(maxEvents)
	keep, err := keeper.New(ctx, keeper.Options{StateDir: filepath.Join(o.State, "keeper"), Binary: o.Keeper, Logger: o.Logger})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, keep.Close()) }()
	groups, err := cgroup.New(cgroup.Options{Root: o.CgroupRoot, Logger: o.Logger})
	if err != nil {
		return err
	}
	pins, err := pin.New(pin.Options{Dir: filepath.Join(o.State, "ns"), Make: keep.Namespaces, Logger: o.Logger})
	if err != nil {
		return err
	}
	host, err := native.ReadHost()
	if err != nil {
		return err
	}
	run, err := native.New(native.Options{Dir: filepath.Join(o.State, "runtime"), Launcher: keep, Supervisor: keep, Cgroups: groups, Host: host, Logger: o.Logger})
	if err != nil {
		return err
	}
	if err := rootfs.MakeOwnMount(filepath.Join(o.State, engine.Sandboxes)); err != nil {
		return fmt.Errorf("make the sandboxes' directory a mount: %w", err)
	}
	eng, err := engine.New(engine.Options{
		Store: store, Runtimes: []core.Runtime{run}, Supervisor: keep, Images: without.Images{}, Network: without.Network{}, Pinner: pins, Cgroups: groups,
		Roots: rootfs.New(rootfs.Options{Users: keep.Namespaces, Logger: o.Logger}), Volumes: without.Volumes{}, OOMLog: kmsg.New(kmsg.Options{Logger: o.Logger}),
		State: o.State, Init: o.Keeper, Logger: o.Logger,
	})
	if err != nil {
		return err
	}
	if err := eng.Recover(ctx); err != nil {
		return fmt.Errorf("remove what an earlier agent left: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	machine := guest.New()
	machine.Groups, machine.PlugTime = o.CgroupRoot, o.PlugTime
	f, err := kata.New(kata.Options{
		Deps:    face.Deps{Engine: eng.As(core.OwnerKata), Logger: o.Logger.With("face", "kata"), Version: o.Version},
		Machine: machine, Requests: o.Requests, Policy: gate,
	})
	if err != nil {
		return err
	}
	// The engine records ends until the containers are gone.
	engineCtx, stopEngine := context.WithCancel(context.WithoutCancel(ctx))
	defer stopEngine()
	ended := make(chan error, 1)
	go func() { ended <- eng.Run(engineCtx) }()
	group.Go(func() error {
		defer cancel() // the sandbox was destroyed
		return f.Serve(ctx, o.Listeners...)
	})
	o.Logger.InfoContext(ctx, "agent is ready", "version", o.Version, "state", o.State)
	err = group.Wait()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil
	}
	leave, stop := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer stop()
	err = errors.Join(err, removeAll(leave, eng))
	stopEngine()
	if eerr := <-ended; !errors.Is(eerr, context.Canceled) {
		err = errors.Join(err, eerr)
	}
	return errors.Join(err, keep.Shutdown(leave), groups.Release(leave), run.Release(), rootfs.RemoveOwnMount(filepath.Join(o.State, engine.Sandboxes)))
}

// policyProgram returns the path of longshore-policy, which is beside this program, or in
// /usr/bin when this one was copied to where a machine begins.
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
	return "", fmt.Errorf("longshore-policy is to be beside %s or in /usr/bin", self)
}

// maxPolicy is how long the text of a policy may be.
const maxPolicy = policy.MaxMessage

// loadPolicy sets the policy of a file, "" for none. An agent that was to have a policy must
// not start without.
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
