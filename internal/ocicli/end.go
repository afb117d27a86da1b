package ocicli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
)

func killCmd(ctx context.Context, a *app, args []string) error {
	f := a.flags("kill", "ID [SIGNAL]")
	all := f.Bool("all", false, "to all processes of the container")
	f.BoolVar(all, "a", false, "short for --all")
	id, rest, err := a.id(f, args)
	if err != nil {
		return err
	}
	sig := unix.SIGTERM
	if len(rest) > 0 {
		if sig, err = parseSignal(rest[0]); err != nil {
			return err
		}
	}
	c, err := a.load(id)
	if err != nil {
		return err
	}
	if err := a.kill(ctx, c, sig, *all); err != nil {
		return fmt.Errorf("kill container %s: %w", id, err)
	}
	return nil
}

func (a *app) kill(ctx context.Context, c *container, sig unix.Signal, all bool) error {
	if !all {
		fd, err := c.pidfd()
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
			return fmt.Errorf("send signal %d: %w", sig, err)
		}
		if sig != unix.SIGKILL {
			return nil
		}
		// A frozen process does not die, and processes that share the pid namespace with
		// others do not die with the main process.
		t, err := a.cgroups()
		if err != nil {
			return err
		}
		if spec, err := c.spec(); err == nil && !ownPidNamespace(spec) {
			return t.Kill(ctx, c.ref())
		}
		if t.Frozen(c.ref()) {
			return t.Freeze(ctx, c.ref(), false)
		}
		return nil
	}
	t, err := a.cgroups()
	if err != nil {
		return err
	}
	if sig == unix.SIGKILL {
		return t.Kill(ctx, c.ref())
	}
	pids, err := t.Pids(ctx, c.ref())
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil { // otherwise it has just ended
			_ = kernel.PidfdSignal(fd, int(sig))
			_ = unix.Close(fd)
		}
	}
	return nil
}

func ownPidNamespace(s *specs.Spec) bool {
	for _, ns := range s.Linux.Namespaces {
		if ns.Type == specs.PIDNamespace {
			return ns.Path == ""
		}
	}
	return false
}

// The numbers of the first and last real-time signal.
const (
	sigRTMin = 34
	sigRTMax = 64
)

// parseSignal parses "9", "KILL", "SIGKILL" and "RTMIN+1".
func parseSignal(s string) (unix.Signal, error) {
	if n, err := strconv.Atoi(s); err == nil {
		if n < 0 || n > sigRTMax {
			return 0, fmt.Errorf("signal %s: unknown: %w", s, errdefs.ErrInvalidArgument)
		}
		return unix.Signal(n), nil
	}
	name := strings.TrimPrefix(strings.ToUpper(s), "SIG")
	if n := unix.SignalNum("SIG" + name); n != 0 {
		return n, nil
	}
	for _, rt := range []struct {
		prefix string
		base   int
	}{{"RTMIN", sigRTMin}, {"RTMAX", sigRTMax}} {
		rest, ok := strings.CutPrefix(name, rt.prefix)
		if !ok {
			continue
		}
		n := 0
		if rest != "" {
			var err error
			if n, err = strconv.Atoi(rest); err != nil {
				break
			}
		}
		if n += rt.base; n >= sigRTMin && n <= sigRTMax {
			return unix.Signal(n), nil
		}
	}
	return 0, fmt.Errorf("signal %q: unknown: %w", s, errdefs.ErrInvalidArgument)
}

func deleteCmd(ctx context.Context, a *app, args []string) error {
	f := a.flags("delete", "ID")
	force := f.Bool("force", false, "kill what runs; succeed when there is nothing")
	f.BoolVar(force, "f", false, "short for --force")
	id, _, err := a.id(f, args)
	if err != nil {
		return err
	}
	c, err := a.open(id)
	if *force && errors.Is(err, errdefs.ErrNotFound) {
		return nil
	}
	if err != nil && *force {
		return a.clear(id, err)
	}
	if err != nil {
		return err
	}
	defer c.unlock()
	if s := a.status(c); s != specs.StateStopped && s != specs.StateCreated && !*force {
		return fmt.Errorf("cannot delete container %s that is not stopped: %s: %w", id, s, errdefs.ErrFailedPrecondition)
	}
	return a.delete(ctx, c)
}

// clear removes a container with an unreadable record; err is the reason.
func (a *app) clear(id string, err error) error {
	if validID(id) != nil {
		return err
	}
	a.logTo.warn("delete container %s: %v; its directory is removed, its cgroups stay", id, err)
	return os.RemoveAll(a.root + "/" + id)
}

// delete ends the remaining processes of a container, removes it, and runs its poststop hooks.
func (a *app) delete(ctx context.Context, c *container) error {
	spec, serr := c.spec()
	if err := a.remove(ctx, c); err != nil {
		return fmt.Errorf("delete container %s: %w", c.ID, err)
	}
	if serr == nil {
		// The container is deleted even if a hook fails (runtime-spec, Lifecycle 13).
		if err := a.runHooks(ctx, c, spec, specs.StateStopped, "poststop"); err != nil {
			a.logTo.warn("delete container %s: %v", c.ID, err)
		}
	}
	return nil
}

// patienceMillis bounds the wait for the end of a killed process.
const patienceMillis = 5000

// remove kills all processes in the container's cgroup, and removes the cgroup and the
// directory. It can be called at any point of a create.
func (a *app) remove(ctx context.Context, c *container) error {
	if c.Cgroup != "" {
		t, err := a.cgroups()
		if err != nil {
			return err
		}
		main, err := c.pidfd()
		if err == nil {
			defer func() { _ = unix.Close(main) }()
			_ = kernel.PidfdSignal(main, int(unix.SIGKILL))
		}
		for {
			if err := t.Kill(ctx, c.ref()); err != nil {
				return err
			}
			// A process of a create that was killed may not be in the cgroup yet; it has
			// the failure FIFO open.
			if c.Pid != 0 || !c.hasWriter() {
				break
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		if main >= 0 {
			// A process that is ending is in no cgroup any more. It cannot end before
			// all processes of its pid namespace are reaped by their parents.
			_ = kernel.Wait(main, unix.POLLIN, patienceMillis)
		}
		if err := t.Remove(ctx, c.ref()); err != nil {
			return err
		}
	}
	if err := c.unmount(); err != nil {
		return err
	}
	return os.RemoveAll(c.dir)
}

// hasWriter reports whether any process has the failure FIFO open for writing.
func (c *container) hasWriter() bool {
	fd, err := unix.Open(c.path(errorFifo), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	var b [64]byte
	for {
		n, err := unix.Read(fd, b[:])
		if n > 0 || errors.Is(err, unix.EINTR) {
			continue
		}
		return errors.Is(err, unix.EAGAIN)
	}
}

func pauseCmd(ctx context.Context, a *app, args []string) error {
	return a.freeze(ctx, "pause", args, true)
}

func resumeCmd(ctx context.Context, a *app, args []string) error {
	return a.freeze(ctx, "resume", args, false)
}

func (a *app) freeze(ctx context.Context, verb string, args []string, frozen bool) error {
	id, _, err := a.id(a.flags(verb, "ID"), args)
	if err != nil {
		return err
	}
	c, err := a.open(id)
	if err != nil {
		return err
	}
	defer c.unlock()
	switch s := a.status(c); {
	case frozen && s != specs.StateRunning, !frozen && s != paused:
		return fmt.Errorf("cannot %s container %s: it is %s: %w", verb, id, s, errdefs.ErrFailedPrecondition)
	}
	t, err := a.cgroups()
	if err != nil {
		return err
	}
	return t.Freeze(ctx, c.ref(), frozen)
}
