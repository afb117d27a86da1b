package nomad

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// keptOutput is how much of what was said ExecTask answers, from its end.
const keptOutput = 4 << 10

// unknownExit is the exit code of a process of which nobody can know how it
// ended.
const unknownExit = -2

// execProcess is the task's own process with another command: the same user,
// environment, directory and rights.
func execProcess(c core.Container, command []string, tty bool) (*specs.Process, error) {
	if len(command) == 0 {
		return nil, invalid.Errorf("exec in task %s: no command", c.Key)
	}
	if c.State != core.ContainerRunning {
		return nil, fmt.Errorf("exec in task %s: it is %s: %w", c.Key, c.State, errdefs.ErrFailedPrecondition)
	}
	p, err := ocispec.BundleProcess(c.Bundle)
	if err != nil {
		return nil, fmt.Errorf("exec in task %s: %w", c.Key, err)
	}
	p.Args, p.Terminal, p.ConsoleSize, p.CommandLine = slices.Clone(command), tty, nil, ""
	if tty && !slices.ContainsFunc(p.Env, func(e string) bool { return strings.HasPrefix(e, "TERM=") }) {
		p.Env = append(p.Env, "TERM=xterm")
	}
	return p, nil
}

// forget drops an exec's record, and kills what still runs of it.
func (s *server) forget(ctx context.Context, ref core.Ref, streams *core.Streams, call string) {
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	err := errors.Join(streams.Close(), s.engine.RemoveProcess(clean, ref, engine.RemoveOptions{Force: true, Asked: asked(call)}))
	if err != nil && !errdefs.IsNotFound(err) {
		s.log.WarnContext(ctx, "an exec was not cleaned up", "container", string(ref.Container), "process", string(ref.Process), "error", err)
	}
}

// ExecTask implements the service: script checks and scripts of templates.
func (s *server) ExecTask(ctx context.Context, req *nomaddriver.ExecTaskRequest) (*nomaddriver.ExecTaskResponse, error) {
	c, err := s.task(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	p, err := execProcess(c, req.GetCommand(), false)
	if err != nil {
		return nil, err
	}
	limit := req.GetTimeout().AsDuration()
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errExecTimeout)
		defer cancel()
	}
	proc, streams, err := s.engine.Exec(ctx, c.ID, core.ProcessConfig{
		Spec: p, Ephemeral: true, IO: core.IO{Hold: true}, Attach: &core.StreamOptions{Stdout: true, Stderr: true, Exclusive: true},
	})
	tooLate := func(err error) error {
		if errors.Is(context.Cause(ctx), errExecTimeout) {
			return fmt.Errorf("exec in task %s: %w after %s", c.Key, errExecTimeout, limit)
		}
		return err
	}
	if err != nil {
		return nil, tooLate(err)
	}
	ref := core.Ref{Container: c.ID, Process: proc.ID}
	defer s.forget(ctx, ref, streams, "ExecTask")
	// Nomad shows what is in Stdout only: as with its exec drivers, that is all
	// that was said.
	var all, stderr tail
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(&all, streams.Stdout) })
	wg.Go(func() { _, _ = io.Copy(io.MultiWriter(&all, &stderr), streams.Stderr) })
	a, err := s.engine.Wait(ctx, ref)
	if err != nil {
		return nil, tooLate(err)
	}
	wg.Wait()
	return &nomaddriver.ExecTaskResponse{Stdout: all.data, Stderr: stderr.data, Result: execResult(a)}, nil
}

var errExecTimeout = errors.New("timed out") //nolint:gochecknoglobals // an error value

func execResult(a core.Autopsy) *nomaddriver.ExitResult {
	r := exitResult(a)
	if a.Exit.Lost {
		r.ExitCode = unknownExit
	}
	return r
}

// tail keeps the last of what is written to it, by any number of writers.
type tail struct {
	mu   sync.Mutex // guards data
	data []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	if n := len(t.data) - keptOutput; n > 0 {
		t.data = slices.Clone(t.data[n:])
	}
	return len(p), nil
}
