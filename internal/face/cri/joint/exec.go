package joint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/cri/stream"
	"github.com/longshore/longshore/internal/logs"
	"github.com/longshore/longshore/internal/ocispec"
)

const (
	// MaxOutput bounds both streams of one Sync together, so that the answer
	// fits into the 16 MiB that kubelet and crictl take. What a command writes
	// beyond it is read and dropped.
	MaxOutput = 16<<20 - 4<<10
	// cleanupTimeout bounds what is done after a call was given up.
	cleanupTimeout = 30 * time.Second
)

// errTimeout is the cause of a context that ends with an exec's time.
var errTimeout = errors.New("timed out") //nolint:gochecknoglobals // an error value

// Runner runs commands in containers, and joins clients to what runs there.
type Runner struct {
	Engine *engine.Client
	Log    *slog.Logger
	// Background is what goes on after an answer.
	Background *sync.WaitGroup
}

// Result is how a command ended.
type Result struct {
	Stdout, Stderr []byte
	Status         int
}

// Sync runs a command to its end. One that is still running when its time is over
// (0: there is none), or when the client has gone, is killed with all that it
// started; the former is context.DeadlineExceeded.
func (r Runner) Sync(ctx context.Context, c core.Container, args []string, timeout time.Duration) (Result, error) {
	spec, err := process(c, args, false)
	if err != nil {
		return Result{}, err
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, errTimeout)
		defer cancel()
	}
	p, streams, err := r.Engine.Exec(ctx, c.ID, core.ProcessConfig{
		Spec: spec, Ephemeral: true, Attach: &core.StreamOptions{Stdout: true, Stderr: true, Exclusive: true}, IO: core.IO{Hold: true},
	})
	if err != nil {
		return Result{}, err
	}
	ref := core.Ref{Container: c.ID, Process: p.ID}
	out := &outputs{left: MaxOutput}
	stdout, stderr := out.stream(), out.stream()
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(stdout, streams.Stdout) })
	wg.Go(func() { _, _ = io.Copy(stderr, streams.Stderr) })
	a, err := r.Engine.Wait(ctx, ref)
	if err != nil {
		r.forget(ctx, ref, streams, "ExecSync", true)
		if context.Cause(ctx) == errTimeout { //nolint:errorlint // it is ours, unwrapped
			err = fmt.Errorf("no end after %s: %w", timeout, context.DeadlineExceeded)
		}
		return Result{}, fmt.Errorf("exec in container %s: %w", c.ID, err)
	}
	wg.Wait()
	// The answer does not wait for it; what is left of a process that has
	// ended is in nobody's way, and recovery drops it too.
	r.Background.Go(func() { r.forget(ctx, ref, streams, "ExecSync", false) })
	return Result{stdout.data, stderr.data, a.Exit.Status()}, nil
}

// Exec runs a command to its end, and no longer than its client stays, and
// returns its exit status. Its output is held until the client has taken it, so
// that not a byte is lost.
func (r Runner) Exec(ctx context.Context, c core.Container, req stream.Request, sess stream.Session) (int, error) {
	spec, err := process(c, req.Args, req.TTY)
	if err != nil {
		return 0, err
	}
	cfg := core.ProcessConfig{
		Spec: spec, Ephemeral: true, IO: core.IO{Hold: true, TTY: req.TTY},
		Attach: &core.StreamOptions{Stdin: sess.Stdin != nil, Stdout: true, Stderr: !req.TTY, Exclusive: true},
	}
	if sess.Stdin != nil {
		cfg.IO.Stdin = core.StdinOpen
	}
	select {
	case size := <-sess.Resize:
		cfg.IO.Size = toSize(size)
		spec.ConsoleSize = &specs.Box{Width: uint(size.Width), Height: uint(size.Height)}
	default:
	}
	p, streams, err := r.Engine.Exec(ctx, c.ID, cfg)
	if err != nil {
		return 0, err
	}
	j := &joint{engine: r.Engine, ref: core.Ref{Container: c.ID, Process: p.ID}, streams: streams, sess: sess, tty: req.TTY, ours: true}
	a, err := j.run(ctx)
	r.forget(ctx, j.ref, streams, "Exec", err != nil)
	return a.Exit.Status(), err
}

// Attach joins a container's main process until it ends or the client leaves,
// which the container does not notice. The output comes from the log where there
// is one: a live stream loses what its client is too slow for, a file does not.
func (r Runner) Attach(ctx context.Context, c core.Container, sess stream.Session) (err error) {
	j := &joint{engine: r.Engine, ref: core.Ref{Container: c.ID}, sess: sess, tty: c.Main.TTY}
	if sess.Stdout != nil || sess.Stderr != nil {
		j.log = ownLog(c)
	}
	want := core.StreamOptions{
		Stdin:  sess.Stdin != nil && c.Config.IO.Stdin != core.StdinClosed,
		Stdout: j.log == nil && sess.Stdout != nil, Stderr: j.log == nil && sess.Stderr != nil && !c.Main.TTY,
	}
	j.streams = &core.Streams{Close: func() error { return nil }}
	if want.Stdin || want.Stdout || want.Stderr {
		if j.streams, err = r.Engine.Streams(ctx, j.ref, want); err != nil {
			return err
		}
	}
	defer func() { _ = j.streams.Close() }()
	_, err = j.run(ctx)
	return err
}

// ownLog is a container's log if it can be read back.
func ownLog(c core.Container) *core.Sink {
	if len(c.Config.IO.Sinks) != 1 {
		return nil
	}
	sink := c.Config.IO.Sinks[0]
	if !logs.Readable(sink) {
		return nil
	}
	return &sink
}

// forget closes the streams and drops the process's record. When it was cut short,
// because its time is over or its client has gone, it is killed with all that it
// started, which goes too when the process itself has just ended: else what a
// command leaves behind is as it wants it.
func (r Runner) forget(ctx context.Context, ref core.Ref, streams *core.Streams, call string, cut bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	err := streams.Close()
	opts := engine.RemoveOptions{Force: cut, Asked: core.Asked{Owner: core.OwnerCRI, Call: call, At: time.Now()}}
	if rerr := r.Engine.RemoveProcess(ctx, ref, opts); rerr != nil && !errdefs.IsNotFound(rerr) {
		err = errors.Join(err, rerr)
	}
	if err != nil {
		r.Log.WarnContext(ctx, "an exec was not cleaned up", "container", ref.Container, "process", ref.Process, "error", err)
	}
}

// outputs share one allowance.
type outputs struct {
	mu   sync.Mutex // guards left
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

// process is the main process with another command: the same user, environment,
// directory and rights.
func process(c core.Container, args []string, tty bool) (*specs.Process, error) {
	p, err := ocispec.BundleProcess(c.Bundle)
	if err != nil {
		return nil, fmt.Errorf("exec in container %s: %w", c.ID, err)
	}
	p.Args, p.Terminal, p.ConsoleSize = slices.Clone(args), tty, nil
	if tty && !slices.ContainsFunc(p.Env, func(e string) bool { return strings.HasPrefix(e, "TERM=") }) {
		p.Env = append(p.Env, "TERM=xterm")
	}
	return p, nil
}
