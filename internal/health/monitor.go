package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/attach"
	"github.com/longshore/longshore/internal/ocispec"
)

const (
	// maxOutput is how much of a probe's output is kept, from its beginning; docker's.
	maxOutput = 4096
	// launchLimit is how long the start of a probe may take, which does not count towards the
	// check's timeout; docker's.
	launchLimit = 30 * time.Second
)

// Monitor probes one container. All fields are required.
type Monitor struct {
	Engine *engine.Client
	Log    *slog.Logger
	Owner  core.Owner // whose container it is
	ID     core.ID
	Check  *Check
	// Changed is told each status but the first, which is Starting.
	Changed func(State)
}

// errEnded means that the container does not run any more.
var errEnded = errors.New("the container has ended") //nolint:gochecknoglobals // an error value

// Run probes until ctx ends or the container has ended. No probe runs after that. A paused
// container is not probed.
func (m Monitor) Run(ctx context.Context) {
	s := State{Status: Starting}
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for {
		age, err := m.age(ctx)
		if errors.Is(err, errEnded) {
			return
		}
		timer.Reset(m.Check.Pause(s, age))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		next, err := m.probe(ctx, s)
		switch {
		case ctx.Err() != nil || errors.Is(err, errEnded):
			return
		case err != nil:
			m.Log.WarnContext(ctx, "a health check could not be made; it is tried again at the next interval", "container", string(m.ID), "error", err)
			continue
		}
		changed := next.Status != s.Status
		if s = next; changed {
			m.Changed(s)
		}
	}
}

// age is how long the container has been running.
func (m Monitor) age(ctx context.Context) (time.Duration, error) {
	c, err := m.Engine.Container(ctx, m.ID)
	if errdefs.IsNotFound(err) || err == nil && c.State == core.ContainerExited {
		return 0, errEnded
	}
	if err != nil {
		return 0, err
	}
	return time.Since(c.Main.Started), nil
}

// probe makes one probe, and returns the state after it. An error says that there was none, for a
// reason that is not the container's.
func (m Monitor) probe(ctx context.Context, s State) (State, error) {
	c, err := m.Engine.Container(ctx, m.ID)
	switch {
	case errdefs.IsNotFound(err) || err == nil && c.State == core.ContainerExited:
		return s, errEnded
	case err != nil || c.State == core.ContainerPaused:
		return s, err
	}
	age := time.Since(c.Main.Started)
	ok, said, err := m.run(ctx, c)
	switch {
	case err == nil:
		return m.Check.After(s, ok, said, age), nil
	case ctx.Err() != nil || errdefs.IsUnavailable(err):
		return s, err
	}
	switch now, gone := m.Engine.Container(ctx, m.ID); {
	case errdefs.IsNotFound(gone) || gone == nil && now.State == core.ContainerExited:
		return s, errEnded
	case gone != nil || now.State == core.ContainerPaused:
		return s, gone
	}
	return m.Check.After(s, false, printable(err.Error()), age), nil // the command cannot be run
}

// run runs the check's command in the container.
func (m Monitor) run(ctx context.Context, c core.Container) (ok bool, said string, err error) {
	p, err := ocispec.ExecProcess(c.Bundle, m.Check.Command, false, core.Size{})
	if err != nil {
		return false, "", err
	}
	x := attach.Exec{Engine: m.Engine, Log: m.Log, Owner: m.Owner, Call: "health check"}
	cfg := attach.Held(p, core.StdinClosed, core.Size{})
	cfg.Quiet = true
	launch, cancel := context.WithTimeout(ctx, launchLimit)
	session, err := x.Start(launch, c.ID, cfg)
	cancel()
	if err != nil {
		return false, "", err
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
		return false, said, nil
	case err != nil:
		return false, "", err
	case a.Exit.Lost:
		return false, "", fmt.Errorf("how it ended is lost: %w", errdefs.ErrUnavailable)
	}
	return a.Exit.Status() == 0, out.String(), nil
}

// output is the beginning of what a probe says.
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

// String is the output as one line of text that can be shown anywhere: the container wrote it, and
// a terminal's control characters or what is no UTF-8 do not get through.
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
