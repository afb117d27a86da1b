package ocicli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/fork"
	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/runtime/native/compile"
	"github.com/longshore/longshore/internal/subprocess"
)

// runHooks runs the hooks of a kind one after the other, until one fails. Each gets the
// container's state on its standard input (runtime-spec, Hooks).
func (a *app) runHooks(ctx context.Context, c *container, spec *specs.Spec, status specs.ContainerState, kind string) error {
	hooks := hooksOf(spec, kind)
	if len(hooks) == 0 {
		return nil
	}
	inside := kind == "createContainer" || kind == "startContainer"
	state := specs.State{Version: spec.Version, ID: c.ID, Status: status, Bundle: c.Bundle, Annotations: c.Annotations}
	if status != specs.StateStopped {
		state.Pid = c.Pid
	}
	if inside {
		var err error
		if state.Pid, err = compile.InnerPid(c.Pid); err != nil {
			return err
		}
	}
	in, err := json.Marshal(state)
	if err != nil {
		return err
	}
	for i, h := range hooks {
		if inside {
			err = a.runInside(ctx, c, spec, kind, h, in)
		} else {
			err = runHook(ctx, h, c.Bundle, in)
		}
		if err != nil {
			return fmt.Errorf("hooks.%s[%d] (%s): %w", kind, i, h.Path, err)
		}
		a.logTo.debugf("ran hooks.%s[%d] (%s)", kind, i, h.Path)
	}
	return nil
}

// hooksOf returns the hooks of one of the six kinds.
func hooksOf(s *specs.Spec, kind string) []specs.Hook {
	if s.Hooks == nil {
		return nil
	}
	return map[string][]specs.Hook{
		"prestart":        s.Hooks.Prestart, //nolint:staticcheck // deprecated, and still sent
		"createRuntime":   s.Hooks.CreateRuntime,
		"createContainer": s.Hooks.CreateContainer,
		"startContainer":  s.Hooks.StartContainer,
		"poststart":       s.Hooks.Poststart,
		"poststop":        s.Hooks.Poststop,
	}[kind]
}

// runInside runs a hook in the container's namespaces, with a plan.
func (a *app) runInside(ctx context.Context, c *container, spec *specs.Spec, kind string, h specs.Hook, state []byte) error {
	host, err := compile.ReadHost()
	if err != nil {
		return err
	}
	cgroups, err := a.nativeCgroup(c.ref())
	if err != nil {
		return err
	}
	blob, err := compile.Hook(kind, h, compile.ExecInput{ID: c.ID, Process: spec.Process, Spec: spec, Cgroup: cgroups, Host: host, KeepKeyring: c.KeepKeyring, Pid: c.Pid, Bundle: c.Bundle})
	if err != nil {
		return err
	}
	target, err := c.pidfd()
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(target) }()
	in, err := kernel.Memfd(state)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(in) }()
	if _, err := unix.Seek(in, 0, unix.SEEK_SET); err != nil {
		return os.NewSyscallError("lseek", err)
	}
	out, err := unix.MemfdCreate("output", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	defer func() { _ = unix.Close(out) }()
	placed, mem, err := place(blob)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(mem) }()
	child, err := fork.Start(placed, fork.Files{Stdin: in, Stdout: out, Stderr: out, Park: -1, Console: -1, Target: target})
	if err != nil {
		return err
	}
	l := &launched{Child: child, master: -1}
	defer l.close()
	if err := l.Outcome(placed); err != nil {
		_ = l.wait()
		return withClass(err)
	}
	ctx, cancel := withTimeout(ctx, h)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = kernel.PidfdSignal(l.PidFD, int(unix.SIGKILL)) })
	status := l.wait()
	if !stop() {
		return context.Cause(ctx)
	}
	if !status.Exited() || status.ExitStatus() != 0 {
		text, _ := kernel.ReadFD(out, maxHookOutput)
		return fmt.Errorf("wait status %#x, output: %q: %w", uint32(status), lastBytes(text, 1024), errdefs.ErrFailedPrecondition)
	}
	return nil
}

// maxHookOutput is how much of a hook's output is kept.
const maxHookOutput = 1 << 20

// withTimeout returns a context that ends when the hook's timeout has passed.
func withTimeout(ctx context.Context, h specs.Hook) (context.Context, context.CancelFunc) {
	if h.Timeout == nil {
		return context.WithCancel(ctx)
	}
	d := time.Duration(*h.Timeout) * time.Second
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("it took more than %s: %w", d, context.DeadlineExceeded))
}

func runHook(ctx context.Context, h specs.Hook, dir string, state []byte) error {
	ctx, cancel := withTimeout(ctx, h)
	defer cancel()
	out := &subprocess.Head{Max: maxHookOutput}
	cmd := subprocess.Command(ctx, h.Path)
	cmd.Args, cmd.Env, cmd.Dir = h.Args, h.Env, dir
	if len(cmd.Args) == 0 {
		cmd.Args = []string{h.Path}
	}
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(state), out, out
	err := subprocess.RunLeaving(ctx, cmd) // a hook may start something that stays
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w, output: %q", err, lastBytes(out.Bytes(), 1024))
	}
	return nil
}

func lastBytes(b []byte, n int) []byte {
	b = bytes.TrimSpace(b)
	return b[max(0, len(b)-n):]
}
