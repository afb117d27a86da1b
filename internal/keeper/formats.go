package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/subprocess"
)

// statePatience is the time for a program to state its formats.
const statePatience = 10 * time.Second

// maxStated is the limit of that line.
const maxStated = 1024

// statedBy starts the program at path and reads the line with its formats.
func statedBy(ctx context.Context, path string) (wire.Stated, error) {
	ctx, cancel := context.WithTimeout(ctx, statePatience)
	defer cancel()
	cmd := subprocess.Command(ctx, path, "protocol")
	cmd.Args[0] = kernel.KeeperName // the file may be another program as well
	cmd.Env, cmd.Dir = kernel.SmallEnv(1), "/"
	out := &subprocess.Head{Max: maxStated}
	cmd.Stdout = out
	if err := subprocess.Run(ctx, cmd); err != nil {
		return wire.Stated{}, err
	}
	line, _, _ := bytes.Cut(out.Bytes(), []byte("\n"))
	s, ok := wire.ParseFormats(string(line))
	if !ok {
		return s, fmt.Errorf("it answers %.100q", line)
	}
	return s, nil
}

// mayBecome returns an error if the next program could not continue this keeper's work.
func (p *pair) mayBecome(ctx context.Context, next wire.Stated) error {
	oldest, newest := int(wire.OldestSpoken()), int(wire.Newest())
	if next.Protocol < oldest || next.OldestProtocol > newest {
		return fmt.Errorf("it speaks the versions %d to %d of the agent's protocol, and this agent %d to %d: restart the agent of the same release first: %w",
			next.OldestProtocol, next.Protocol, oldest, newest, errdefs.ErrFailedPrecondition)
	}
	s, present, err := p.states(ctx)
	if err != nil {
		return err
	}
	if present.Handover < next.OldestHandover || present.Handover > next.Handover {
		return fmt.Errorf("the present keeper, %s, hands its state over in form %d, and the next program reads the forms %d to %d: the keeper is replaced when no container runs: %w",
			s.Program, present.Handover, next.OldestHandover, next.Handover, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// states returns the keeper's status, and the formats that its program states.
func (p *pair) states(ctx context.Context) (s wire.Status, present wire.Stated, err error) {
	if _, err := p.call(ctx, wire.KindStatus, nil, &s); err != nil {
		return s, present, err
	}
	present, err = statedBy(ctx, "/proc/"+strconv.Itoa(s.KeeperPid)+"/exe")
	var failed *exec.ExitError
	switch {
	case errors.As(err, &failed): // the releases before the first number
		present = wire.Stated{OldestProtocol: wire.Oldest, Protocol: wire.Oldest, OldestHandover: 1, Handover: 1}
	case err != nil:
		return s, present, fmt.Errorf("the present program: %w", err)
	}
	return s, present, nil
}

// Spoken returns the oldest and the newest version of the protocol of this program.
func Spoken() (oldest, newest int) { return int(wire.OldestSpoken()), int(wire.Newest()) }

// MaySpeak returns FailedPrecondition if an agent with these versions of the protocol, from oldest to newest, could not speak with a
// keeper that runs. A keeper that has died is no obstacle: the agent starts another one.
func MaySpeak(ctx context.Context, c *Client, oldest, newest int) error {
	for _, p := range c.all() {
		if p.dead() {
			continue
		}
		s, present, err := p.states(ctx)
		if err != nil {
			return err
		}
		if newest < present.OldestProtocol || oldest > present.Protocol {
			return fmt.Errorf("it speaks the versions %d to %d of the keeper's protocol, and the running keeper of release %s the versions %d to %d: upgrade by a release in between: %w",
				oldest, newest, s.Program, present.OldestProtocol, present.Protocol, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// become has the keeper execute the program at path. Requests that take time wait until it has, because the keeper does not hand
// over those that it has read and not carried out.
func (p *pair) become(ctx context.Context, path string) error {
	release, err := p.hold(ctx)
	if err != nil {
		return fmt.Errorf("upgrade of the keeper to %s: %w", path, err)
	}
	_, err = p.call(ctx, wire.KindUpgrade, &wire.Upgrade{Path: path}, nil)
	release()
	if errors.Is(err, errCut) && p.runs(ctx, path) {
		return nil
	}
	return err
}

// quietPatience is how long an upgrade waits for a moment without requests that take time. Without such a moment it holds new
// requests back until those under way have ended.
const quietPatience = 3 * time.Second

// hold stops requests of the kinds that take time, until release is called. Earlier requests are complete messages in the
// keeper's socket when hold returns. The keeper ends the requests under way before it executes its next program, so hold
// waits for a moment without any: those that it stops wait for the upgrade alone.
func (p *pair) hold(ctx context.Context) (release func(), err error) {
	held := make(chan struct{})
	enough := time.NewTimer(quietPatience)
	defer enough.Stop()
	p.mu.Lock()
	for patient := true; p.held == nil && p.slow > 0 && patient; {
		if p.quiet == nil {
			p.quiet = make(chan struct{})
		}
		quiet := p.quiet
		p.mu.Unlock()
		select {
		case <-quiet:
		case <-enough.C:
			patient = false
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		p.mu.Lock()
	}
	if p.held != nil {
		p.mu.Unlock()
		return nil, fmt.Errorf("another one is under way: %w", errdefs.ErrFailedPrecondition)
	}
	p.held = held
	p.mu.Unlock()
	p.sending.Wait()
	return func() {
		p.mu.Lock()
		p.held = nil
		p.mu.Unlock()
		close(held)
	}, nil
}

// count counts a request if it takes time. The returned function is called at its end. Preconditions: mu is held.
func (p *pair) count(kind wire.Kind) (ended func()) {
	if !takesTime(kind) {
		return func() {}
	}
	p.slow++
	return p.slowEnded
}

// slowEnded is called at the end of a request that takes time.
func (p *pair) slowEnded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slow--; p.slow == 0 && p.quiet != nil {
		close(p.quiet)
		p.quiet = nil
	}
}

// takesTime reports whether the keeper answers a request of this kind later than it reads it.
func takesTime(kind wire.Kind) bool {
	switch kind {
	case wire.KindLaunch, wire.KindLaunchPlan, wire.KindLaunchGiven, wire.KindRun, wire.KindTask, wire.KindNamespaces, wire.KindRelease, wire.KindAdvance, wire.KindHold, wire.KindDropHeld:
		return true
	default:
		return false
	}
}

// runs reports whether the keeper is the program at path.
func (p *pair) runs(ctx context.Context, path string) bool {
	var s wire.Status
	if _, err := p.call(ctx, wire.KindStatus, nil, &s); err != nil {
		return false
	}
	running, err := os.Stat("/proc/" + strconv.Itoa(s.KeeperPid) + "/exe")
	if err != nil {
		return false
	}
	wanted, err := os.Stat(path)
	return err == nil && os.SameFile(running, wanted)
}
