package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/handover"
	"github.com/longshore/longshore/internal/subprocess"
	"github.com/longshore/longshore/internal/weaken"
)

// nextProgram is the agent's own upgrade: it stops to serve, and executes the installed program in the same process, with the
// listening sockets. If that program cannot start, it executes the one before again.
type nextProgram struct {
	args    []string // of the program, with its name
	check   []string // of its check of the configuration, without
	sockets *handover.Sockets
	passed  handover.Passed // from the program before

	mu     sync.Mutex    // guards served, chosen, pass, failed
	served time.Time     // when this program began to serve in the place of another one; zero is not, or not yet
	chosen string        // the next program; "" is none
	wanted chan struct{} // closed when chosen is set
	pass   map[string]int
	failed string // why an upgrade failed
}

// dies is the mark of test builds that die at a stage of the upgrade: 1 to 3 in the program before, 4 to 7 in the next one.
const dies = "agent-dies"

// takeOver takes the sockets of the program before.
func (p *nextProgram) takeOver(ctx context.Context) (context.Context, error) {
	var err error
	p.passed, err = handover.ParsePassed(os.Getenv(handover.Variable))
	if err != nil {
		return ctx, err
	}
	if err := os.Unsetenv(handover.Variable); err != nil {
		return ctx, err
	}
	p.at(4)
	p.mu.Lock()
	p.failed = p.passed.Failure
	p.mu.Unlock()
	handover.Reap()
	if p.sockets, err = handover.Read(p.passed); err != nil {
		return ctx, err
	}
	return handover.With(ctx, p.sockets), nil
}

// at is called at a stage of this program's start.
func (p *nextProgram) at(stage int) {
	if p.passed.Before > 0 {
		weaken.Die(dies, stage)
	}
}

// callsPatience is the time between an upgrade of the agent and that of the keeper. A call that has waited for the agent ends in
// it, and does not wait a second time.
const callsPatience = 300 * time.Millisecond

// ready is called when the agent serves: it needs the program before no more.
func (p *nextProgram) ready() {
	p.at(7)
	p.sockets.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.passed.Before > 0 {
		p.served = time.Now()
	}
	p.passed.Close()
	p.passed = handover.Passed{}
}

// letCallsEnd waits until the calls that waited for this program have had time to end.
func (p *nextProgram) letCallsEnd(ctx context.Context) error {
	p.mu.Lock()
	rest := callsPatience - time.Since(p.served)
	if p.passed.Before > 0 { // it does not serve yet
		rest = callsPatience
	}
	p.mu.Unlock()
	if rest <= 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(rest):
		return nil
	}
}

// path returns the next program, once the agent stops for it.
func (p *nextProgram) path() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.chosen
}

// failure returns why the last upgrade of the agent failed.
func (p *nextProgram) failure() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// tryPatience is the time for the next program to check the configuration.
const tryPatience = 30 * time.Second

// choose has the agent stop and execute the program at path, if that accepts the agent's configuration, reads its formats, and speaks
// with the keeper that runs.
func (p *nextProgram) choose(ctx context.Context, path string, maySpeak func(ctx context.Context, oldest, newest int) error) error {
	if len(p.args) == 0 || len(p.check) == 0 {
		return fmt.Errorf("upgrade of the agent: it was not started by its program: %w", errdefs.ErrFailedPrecondition)
	}
	ctx, cancel := context.WithTimeout(ctx, tryPatience)
	defer cancel()
	cmd := subprocess.Command(ctx, path, p.check...)
	out := &subprocess.Head{Max: 4096}
	cmd.Stderr = out
	if err := subprocess.Run(ctx, cmd); err != nil {
		return fmt.Errorf("upgrade of the agent: %s does not accept the configuration: %w: %s: %w", path, err, out.Line(), errdefs.ErrFailedPrecondition)
	}
	if err := mayRead(ctx, path, maySpeak); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.chosen != "" {
		return fmt.Errorf("upgrade of the agent: another one is under way: %w", errdefs.ErrFailedPrecondition)
	}
	weaken.Die(dies, 1)
	p.pass, _ = p.sockets.Pass() // before the servers close them
	p.chosen = path
	weaken.Die(dies, 2)
	close(p.wanted)
	return nil
}

// execute executes the next program if the agent has stopped for one, or the program before if this one could not start. It
// returns err if there is neither, or if ctx has ended.
func (p *nextProgram) execute(ctx context.Context, log *slog.Logger, err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case ctx.Err() != nil: // somebody stops the agent
	case p.chosen != "" && err == nil:
		before, oerr := handover.Program()
		if oerr != nil {
			return fmt.Errorf("upgrade of the agent: %w", oerr)
		}
		log.InfoContext(ctx, "the agent executes the installed program", "path", p.chosen, "sockets", len(p.pass))
		weaken.Die(dies, 3)
		err = handover.Execute(p.chosen, p.args, os.Environ(), handover.Passed{Sockets: p.pass, Before: before})
		log.ErrorContext(ctx, "could not execute the installed program; the present one starts again", "path", p.chosen, "error", err)
		return errors.Join(err, handover.Execute("/proc/self/fd/"+strconv.Itoa(before), p.args, os.Environ(), handover.Passed{Sockets: p.pass, Failure: err.Error()}))
	case p.passed.Before > 0 && err != nil:
		log.ErrorContext(ctx, "the agent cannot start after its upgrade; the program before continues", "error", err)
		return errors.Join(err, handover.Execute("/proc/self/fd/"+strconv.Itoa(p.passed.Before), p.args, os.Environ(), p.passed.Again(err)))
	}
	return err
}
