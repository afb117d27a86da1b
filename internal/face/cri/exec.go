package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

const (
	// execOutput bounds both streams of one ExecSync together, so that the
	// answer fits into the 16 MiB that kubelet and crictl take. What a command
	// writes beyond it is read and dropped.
	execOutput = 16<<20 - 4<<10
	// cleanupTimeout bounds what is done after a call was given up.
	cleanupTimeout = 30 * time.Second
	sigkill        = 9
)

// errExecTimeout is the cause of a context that ends with an ExecSync's time.
var errExecTimeout = errors.New("timed out") //nolint:gochecknoglobals // an error value

// ExecSync runs a command to its end. One that is still running when its time is
// over, or when the client has gone, is killed.
func (s *server) ExecSync(ctx context.Context, req *v1.ExecSyncRequest) (*v1.ExecSyncResponse, error) {
	if len(req.GetCmd()) == 0 {
		return nil, invalid("exec in container %s: no command", req.GetContainerId())
	}
	c, err := s.container(ctx, req.GetContainerId())
	if err != nil {
		return nil, err
	}
	spec, err := execProcess(c, req.GetCmd(), false)
	if err != nil {
		return nil, err
	}
	if req.GetTimeout() > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, grace(req.GetTimeout()), errExecTimeout)
		defer cancel()
	}
	p, streams, err := s.engine.Exec(ctx, c.ID, core.ProcessConfig{
		Spec: spec, Ephemeral: true, Attach: &core.StreamOptions{Stdout: true, Stderr: true, Exclusive: true}, IO: core.IO{Hold: true},
	})
	if err != nil {
		return nil, err
	}
	ref := core.Ref{Container: c.ID, Process: p.ID}
	// The answer does not wait for it; what is left of a process that has
	// ended is in nobody's way, and recovery drops it too.
	defer s.background.Go(func() { s.forget(ctx, ref, streams) })
	out := &outputs{left: execOutput}
	stdout, stderr := out.stream(), out.stream()
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(stdout, streams.Stdout) })
	wg.Go(func() { _, _ = io.Copy(stderr, streams.Stderr) })
	a, err := s.engine.Wait(ctx, ref)
	if err != nil {
		s.kill(ctx, ref)
		if context.Cause(ctx) == errExecTimeout { //nolint:errorlint // it is ours, unwrapped
			err = fmt.Errorf("no end after %ds: %w", req.GetTimeout(), context.DeadlineExceeded)
		}
		return nil, fmt.Errorf("exec in container %s: %w", c.ID, err)
	}
	wg.Wait()
	return &v1.ExecSyncResponse{Stdout: stdout.data, Stderr: stderr.data, ExitCode: int32(a.Exit.Status())}, nil
}

// kill ends a process whatever has become of the call that started it.
func (s *server) kill(ctx context.Context, ref core.Ref) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := gone(s.engine.Signal(ctx, ref, sigkill, asked("ExecSync"))); err != nil {
		s.log.WarnContext(ctx, "an exec was not killed", "container", ref.Container, "process", ref.Process, "error", err)
	}
}

// forget closes the streams and drops the process's record.
func (s *server) forget(ctx context.Context, ref core.Ref, streams *core.Streams) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	err := streams.Close()
	if rerr := gone(s.engine.RemoveProcess(ctx, ref, engine.RemoveOptions{Force: true, Asked: asked("ExecSync")})); rerr != nil {
		err = errors.Join(err, rerr)
	}
	if err != nil {
		s.log.WarnContext(ctx, "an exec was not cleaned up", "container", ref.Container, "process", ref.Process, "error", err)
	}
}

// outputs share one allowance.
type outputs struct {
	mu   sync.Mutex
	left int
}

type output struct {
	share *outputs
	data  []byte
}

func (o *outputs) stream() *output { return &output{share: o} }

// Write keeps what the allowance has room for, and takes everything, so that
// the program never blocks.
func (o *output) Write(p []byte) (int, error) {
	o.share.mu.Lock()
	n := min(len(p), o.share.left)
	o.share.left -= n
	o.share.mu.Unlock()
	o.data = append(o.data, p[:n]...)
	return len(p), nil
}

// execProcess is the main process with another command: the same user,
// environment, directory and rights.
func execProcess(c core.Container, args []string, tty bool) (*specs.Process, error) {
	b, err := os.ReadFile(filepath.Join(c.Bundle, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("exec in container %s: spec: %w", c.ID, err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(b, &spec); err != nil {
		return nil, fmt.Errorf("exec in container %s: spec: %w", c.ID, err)
	}
	p := spec.Process
	if p == nil {
		p = &specs.Process{Cwd: "/"}
	}
	p.Args, p.Terminal, p.ConsoleSize = slices.Clone(args), tty, nil
	return p, nil
}
