package nomad

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/attach"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// keptOutput bounds the output in ExecTask's answer, which is the end of it.
const keptOutput = 4 << 10

// unknownExit is the exit code of a process with a lost status.
const unknownExit = -2

// execs runs processes for the clients of a call. Their remaining processes are killed.
func (s *server) execs(call string) attach.Exec {
	return attach.Exec{Engine: s.engine, Log: s.log, Owner: core.OwnerNomad, Call: call, Sweep: true}
}

// execProcess is the task's own process with another command.
func execProcess(c core.Container, command []string, tty bool, size core.Size) (*specs.Process, error) {
	if len(command) == 0 {
		return nil, invalid.Errorf("exec in task %s: no command", c.Key)
	}
	if !c.State.Runs() {
		return nil, fmt.Errorf("exec in task %s: it is %s: %w", c.Key, c.State, errdefs.ErrFailedPrecondition)
	}
	p, err := ocispec.ExecProcess(c.Bundle, command, tty, size)
	if err != nil {
		return nil, fmt.Errorf("exec in task %s: %w", c.Key, err)
	}
	return p, nil
}

// ExecTask implements the service: script checks and scripts of templates.
func (s *server) ExecTask(ctx context.Context, req *nomaddriver.ExecTaskRequest) (*nomaddriver.ExecTaskResponse, error) {
	c, err := s.task(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	p, err := execProcess(c, req.GetCommand(), false, core.Size{})
	if err != nil {
		return nil, err
	}
	limit := req.GetTimeout().AsDuration()
	var out outputs
	a, err := s.execs("ExecTask").Collect(ctx, c.ID, p, limit, out.add)
	if errors.Is(err, attach.ErrTimeout) {
		err = fmt.Errorf("exec in task %s: %w after %s", c.Key, err, limit)
	}
	if err != nil {
		return nil, err
	}
	return &nomaddriver.ExecTaskResponse{Stdout: out.all, Stderr: out.stderr, Result: execResult(a)}, nil
}

func execResult(a core.Autopsy) *nomaddriver.ExitResult {
	r := exitResult(a)
	if a.Exit.Lost {
		r.ExitCode = unknownExit
	}
	return r
}

// outputs keeps the end of a process's output. Nomad shows Stdout only: as with its exec drivers,
// that has both streams.
type outputs struct {
	mu          sync.Mutex // guards all, stderr
	all, stderr []byte
}

func (o *outputs) add(stderr bool, data []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = tail(o.all, data)
	if stderr {
		o.stderr = tail(o.stderr, data)
	}
	return nil
}

// tail is the last of kept and data together.
func tail(kept, data []byte) []byte {
	kept = append(kept, data...)
	if n := len(kept) - keptOutput; n > 0 {
		kept = slices.Clone(kept[n:])
	}
	return kept
}
