package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/attach"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/ocispec"
)

const (
	// maxOutput is how much of a probe's output is kept, from its beginning; docker's.
	maxOutput = 4096
	// launchLimit is how long the start of a probe may take, which does not count towards the
	// check's timeout; docker's.
	launchLimit = 30 * time.Second
	// maxProbes is how many probes are remembered; docker's.
	maxProbes = 5
	// storeEvery is how often probes are stored that change nothing, so that a thousand healthy
	// containers cost little.
	storeEvery = time.Minute
	// maxSpread is over how much time an agent that takes over spreads the probes that are due, so
	// that those of all containers do not begin at once.
	maxSpread = 5 * time.Second
)

// Monitor probes one container, and stores the results in its record. All fields are required.
type Monitor struct {
	Engine *engine.Client
	Log    *slog.Logger
	Owner  core.Owner // the container's owner
	ID     core.ID
	Check  *Check
	// Changed is called with each status but the first, if that is Starting. It is another one when
	// an earlier agent has probed the same run of the program.
	Changed func(State)
}

// run has the results of one run of a container's program.
type run struct {
	started time.Time
	state   State
	probes  []core.Probe
	stored  time.Time // when it was stored last
}

// errEnded means that the container does not run any more.
var errEnded = errors.New("the container has ended") //nolint:gochecknoglobals // an error value

// Run probes until ctx ends, or the container has ended or was started again. No probe runs after
// that. A paused container is not probed.
func (m Monitor) Run(ctx context.Context) {
	c, err := m.Engine.Container(ctx, m.ID)
	if err != nil {
		if !errdefs.IsNotFound(err) && ctx.Err() == nil {
			m.Log.WarnContext(ctx, "the health of a container is not checked", "container", string(m.ID), "error", err)
		}
		return
	}
	if c.State == core.ContainerExited {
		return
	}
	r := run{started: c.Main.Started, state: State{Status: Starting}}
	pause := m.Check.Pause(r.state, time.Since(r.started))
	if h := c.HealthNow(); h != nil {
		pause = m.resume(&r, h)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		was := r.state
		err := m.probe(ctx, &r)
		switch {
		case ctx.Err() != nil || errors.Is(err, errEnded):
			return
		case err != nil:
			m.Log.WarnContext(ctx, "a health check could not be made; it is tried again at the next interval", "container", string(m.ID), "error", err)
		default:
			m.store(ctx, &r, was)
			if was.Status != r.state.Status {
				m.Changed(r.state)
			}
		}
		timer.Reset(m.Check.Pause(r.state, time.Since(r.started)))
	}
}

// resume continues where an earlier agent was, and returns how long to wait for the next probe.
func (m Monitor) resume(r *run, h *core.Health) time.Duration {
	r.state, r.probes = State{Status: Status(h.Status), Failures: h.Failures}, h.Probes
	due := m.Check.Pause(r.state, time.Since(r.started))
	if n := len(h.Probes); n > 0 {
		r.state.Output = h.Probes[n-1].Output
		due -= time.Since(h.Probes[n-1].End)
	}
	if r.state.Status != Starting {
		m.Changed(r.state)
	}
	if due > 0 {
		return min(due, m.Check.Interval)
	}
	return rand.N(min(m.Check.Interval, maxSpread)) //nolint:gosec // it only spreads the work
}

// store stores the state if it differs from the last stored one.
func (m Monitor) store(ctx context.Context, r *run, was State) {
	if was.Status == r.state.Status && was.Failures == r.state.Failures && time.Since(r.stored) < storeEvery {
		return
	}
	h := core.Health{Since: r.started, Status: string(r.state.Status), Failures: r.state.Failures, Probes: r.probes}
	switch err := m.Engine.SetContainerHealth(ctx, m.ID, h); {
	case err == nil:
		r.stored = time.Now()
	case !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) && ctx.Err() == nil: // else it has just ended
		m.Log.WarnContext(ctx, "could not store the result of a health check; the next one is stored", "container", string(m.ID), "error", err)
	}
}

// errPaused means that there was no probe, because the container is paused or asleep.
var errPaused = errors.New("the container is paused or asleep") //nolint:gochecknoglobals // an error value

// look returns the container if the probed run continues.
func (m Monitor) look(ctx context.Context, r *run) (core.Container, error) {
	c, err := m.Engine.Container(ctx, m.ID)
	switch {
	case errdefs.IsNotFound(err) || err == nil && (c.State == core.ContainerExited || !c.Main.Started.Equal(r.started)):
		return c, errEnded
	case err == nil && (c.State == core.ContainerPaused || c.State == core.ContainerAsleep):
		return c, errPaused
	}
	return c, err
}

// probe makes one probe, and updates r. An error means that there was no probe, for a reason outside
// of the container.
func (m Monitor) probe(ctx context.Context, r *run) error {
	c, err := m.look(ctx, r)
	if err != nil {
		return unlessPaused(err)
	}
	p := core.Probe{Start: time.Now().UTC()}
	code, said, err := m.run(ctx, c)
	if err != nil {
		if ctx.Err() != nil || errdefs.IsUnavailable(err) {
			return err
		}
		if _, gone := m.look(ctx, r); gone != nil {
			return unlessPaused(gone)
		}
		code, said = noCode, printable(err.Error()) // the command cannot be run
	}
	p.End, p.Code, p.Output = time.Now().UTC(), code, said
	if r.probes = append(slices.Clip(r.probes), p); len(r.probes) > maxProbes {
		r.probes = slices.Clone(r.probes[1:])
	}
	r.state = m.Check.After(r.state, code == 0, said, p.Start.Sub(r.started))
	return nil
}

func unlessPaused(err error) error {
	if errors.Is(err, errPaused) {
		return nil
	}
	return err
}

// noCode is the code of a probe that has no exit code; docker's.
const noCode = -1

// run runs the check's command in the container.
func (m Monitor) run(ctx context.Context, c core.Container) (code int, said string, err error) {
	p, err := ocispec.ExecProcess(c.Bundle, m.Check.Command, false, core.Size{})
	if err != nil {
		return noCode, "", err
	}
	x := attach.Exec{Engine: m.Engine, Log: m.Log, Owner: m.Owner, Call: "health check"}
	cfg := attach.Held(p, core.StdinClosed, core.Size{})
	cfg.Quiet = true
	launch, cancel := context.WithTimeout(ctx, launchLimit)
	session, err := x.Start(launch, c.ID, cfg)
	cancel()
	if err != nil {
		return noCode, "", err
	}
	var out output
	session.Output = out.add
	limited, cancel := context.WithTimeoutCause(ctx, m.Check.Timeout, attach.ErrTimeout)
	defer cancel()
	a, err := session.Run(limited)
	x.End(ctx, session, err != nil)
	switch {
	case errors.Is(err, attach.ErrTimeout):
		said = fmt.Sprintf("Health check exceeded timeout (%v)", m.Check.Timeout)
		if s := out.String(); s != "" {
			said += ": " + s
		}
		return noCode, said, nil
	case err != nil:
		return noCode, "", err
	case a.Exit.Lost:
		return noCode, "", fmt.Errorf("how it ended is lost: %w", errdefs.ErrUnavailable)
	}
	return a.Exit.Status(), killed(a, out.String()), nil
}

// killed adds to a probe's output that it was killed for lack of memory, or by a signal.
func killed(a core.Autopsy, said string) string {
	var why string
	switch {
	case a.OOM != nil && a.OOM.Main:
		why = "Health check ran out of memory and was killed"
	case a.Exit.Signal != 0:
		why = fmt.Sprintf("Health check was killed by signal %d", a.Exit.Signal)
	default:
		return said
	}
	if said != "" {
		why += ": " + said
	}
	return why
}

// output is the beginning of a probe's output.
type output struct {
	mu        sync.Mutex // guards data, truncated
	data      []byte
	truncated bool
}

// add implements attach.Sender. It takes everything, so that the program never blocks.
func (o *output) add(_ bool, p []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := min(len(p), maxOutput-len(o.data))
	o.data = append(o.data, p[:n]...)
	o.truncated = o.truncated || n < len(p)
	return nil
}

// String is the output as one line of text that can be shown anywhere: the container wrote it, so a
// terminal's control characters and invalid UTF-8 are removed.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := printable(string(o.data))
	if o.truncated {
		text += "..."
	}
	return text
}

func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	return strings.Join(strings.Fields(s), " ")
}
