package attach

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// cleanupTimeout bounds the cleanup after a client has disconnected.
const cleanupTimeout = 30 * time.Second

// ErrTimeout is the cause of an exec that took longer than it may.
var ErrTimeout = errors.New("timed out") //nolint:gochecknoglobals // an error value

// Exec runs further processes that belong to a client. Engine, Log, Owner and Call are
// required.
type Exec struct {
	Engine *engine.Client
	Log    *slog.Logger
	// Owner and Call are the recorded origin of the stop after a client has disconnected.
	Owner core.Owner
	Call  string
	// User is the client's user; "" is unknown.
	User string
	// Sweep kills the remaining processes of a process that has ended by itself. Without it they
	// continue.
	Sweep bool
	// Background, when set, is where Collect leaves the cleaning up after a process that
	// has ended by itself, so that the answer does not wait for it.
	Background *sync.WaitGroup
}

// Held is the config of a process with output that waits for its client, so that no byte is lost.
// It ends with the agent.
func Held(p *specs.Process, stdin core.StdinMode, size core.Size) core.ProcessConfig {
	return core.ProcessConfig{
		Spec: p, Ephemeral: true, IO: core.IO{Hold: true, TTY: p.Terminal, Stdin: stdin, Size: size},
		Attach: &core.StreamOptions{Stdin: stdin != core.StdinClosed, Stdout: true, Stderr: !p.Terminal, Exclusive: true},
	}
}

// Start starts a process and returns the session of its client, which End ends.
func (x Exec) Start(ctx context.Context, container core.ID, cfg core.ProcessConfig) (*Session, error) {
	p, streams, err := x.Engine.Exec(ctx, container, cfg)
	if err != nil {
		return nil, err
	}
	s := &Session{Engine: x.Engine, Ref: core.Ref{Container: container, Process: p.ID}, Streams: streams}
	s.Follow(ctx)
	return s, nil
}

// End drops a process's record after its session. A process that was cut, because its
// client has gone or its time is over, is killed with all that it has started; that
// goes too when the process itself has just ended.
func (x Exec) End(ctx context.Context, s *Session, cut bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	s.Close()
	o := engine.RemoveOptions{Force: cut || x.Sweep, Request: core.StopRequest{Owner: x.Owner, Call: x.Call, User: x.User, At: time.Now()}}
	if err := x.Engine.RemoveProcess(ctx, s.Ref, o); err != nil && !errdefs.IsNotFound(err) {
		x.Log.WarnContext(ctx, "an exec was not cleaned up", "container", string(s.Ref.Container), "process", string(s.Ref.Process), "error", err)
	}
}

// Collect runs a quiet process (core.ProcessConfig.Quiet) without input to its end and
// gives its output to output. One that takes longer than limit is cut, and the error is
// ErrTimeout; 0 is no limit.
func (x Exec) Collect(ctx context.Context, container core.ID, p *specs.Process, limit time.Duration, output Sender) (core.Autopsy, error) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, ErrTimeout)
		defer cancel()
	}
	var a core.Autopsy
	cfg := Held(p, core.StdinClosed, core.Size{})
	cfg.Quiet = true
	s, err := x.Start(ctx, container, cfg)
	if err == nil {
		s.Output = output
		a, err = s.Run(ctx)
		if err == nil && x.Background != nil {
			x.Background.Go(func() { x.End(ctx, s, false) })
		} else {
			x.End(ctx, s, err != nil)
		}
	}
	if err != nil && context.Cause(ctx) == ErrTimeout { //nolint:errorlint // it is ours, unwrapped
		err = ErrTimeout
	}
	return a, err
}
