// Package policy asks a guest's policy, which is written in Rego, about the host's requests.
//
// The policy and the requests come from outside, and the library that evaluates them is twice as
// large as the whole agent, so a program of its own does it: longshore-policy, which is package
// rego below this one. It is started with the first policy, has no rights, and answers over a pipe.
// A request needs its permission: when it dies during a request, or does not answer in time, that
// request is denied. The next one starts it again with the same policy and the policy's last state.
// Start at Gate.
package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
)

// askTime is how long the program may take for an answer. It gives up by itself before that,
// so this is for a program that is stuck or lacks the processor.
const askTime = 30 * time.Second

// settleTime is how long a request that changes the policy's state holds up others that do.
const settleTime = 30 * time.Second

// Options are the parameters of New.
type Options struct {
	// Program returns the path of longshore-policy, or why there is none.
	Program func() (string, error)
	Logger  *slog.Logger
}

// Gate decides about requests by the policy that was set last. Without one it allows all.
type Gate struct {
	o       Options
	start   func(ctx context.Context) (program, error)
	askTime time.Duration
	inForce atomic.Bool

	// turn is held during a question. It guards text, state, pending, lenient, running and closed.
	turn    chan struct{}
	text    string
	state   json.RawMessage // the policy's state; nil before the first change
	pending *pending        // the change of state of an unfinished request; nil if there is none
	lenient bool
	running program // nil when it has died
	closed  bool
}

// program is a running longshore-policy.
type program interface {
	io.ReadWriter
	// SetDeadline ends reads and writes that take longer.
	SetDeadline(t time.Time) error
	// Gone reports whether the program has ended.
	Gone() bool
	// End kills the program, and returns when it is gone. It says how it ended.
	End() error
}

// New returns a gate without a policy. No program runs yet.
func New(o Options) *Gate {
	g := &Gate{o: o, askTime: askTime, turn: make(chan struct{}, 1)}
	g.start = func(ctx context.Context) (program, error) {
		path, err := o.Program()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", err, errdefs.ErrNotImplemented)
		}
		return startProgram(ctx, path, o.Logger)
	}
	return g
}

// Served reports whether policies can be set.
func (g *Gate) Served() bool {
	_, err := g.o.Program()
	return err == nil
}

// InForce reports whether there is a policy. Other interfaces than the host's requests, such as a
// console for debugging, may then only list and inspect.
func (g *Gate) InForce() bool { return g.inForce.Load() }

// pending is a change of a policy's state that its request has made and that is not final: the
// agent may still refuse the request.
type pending struct {
	before  json.RawMessage // the state that returns if the request fails
	decided chan struct{}   // closed when the change is final or undone
}

// Ask returns a nil error when the policy allows a request, or there is none. input is the request
// as JSON. Any other error than PermissionDenied is ctx's.
//
// The caller calls end when the request has ended. If it failed, the policy's state is restored.
// Until then a request that changes the state too waits, for at most settleTime.
func (g *Gate) Ask(ctx context.Context, request string, input []byte) (end func(failed bool), err error) {
	end = func(bool) {}
	for g.InForce() {
		if err := g.lock(ctx); err != nil {
			return end, err
		}
		before := g.state
		changes, err := g.askLocked(ctx, request, input)
		if err != nil || !changes {
			g.unlock()
			return end, err
		}
		other := g.pending
		if other == nil {
			p := &pending{before: before, decided: make(chan struct{})}
			g.pending = p
			g.unlock()
			return func(failed bool) { g.settle(p, failed) }, nil
		}
		// The other request may still fail, and then this one used a wrong state.
		g.restoreLocked(before)
		g.unlock()
		if err := g.await(ctx, other); err != nil {
			return end, err
		}
	}
	return end, nil
}

// await waits until a change is final. A change of a request that takes longer than settleTime is
// final then.
func (g *Gate) await(ctx context.Context, p *pending) error {
	timer := time.NewTimer(settleTime)
	defer timer.Stop()
	select {
	case <-p.decided:
	case <-timer.C:
		g.settle(p, false)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// settle ends a change of the state, which is undone if its request failed.
func (g *Gate) settle(p *pending, failed bool) {
	g.turn <- struct{}{}
	defer g.unlock()
	if g.pending != p {
		return // it was final before, or the policy is another one
	}
	g.pending = nil
	close(p.decided)
	if failed {
		g.restoreLocked(p.before)
	}
}

// restoreLocked gives the policy an earlier state. A program that does not take it is ended: the
// next request starts one with the state that is in force.
func (g *Gate) restoreLocked(state json.RawMessage) {
	g.state = state
	if g.running == nil {
		return
	}
	if state != nil {
		if answer, err := g.exchange(g.running, KindState, state); err == nil && answer.Done {
			return
		}
	}
	_ = g.running.End() // we have killed it
	g.running = nil
}

// Replace sets a policy if the one that is in force allows that. Input is the request as JSON. It
// returns PermissionDenied if not, InvalidArgument for a text that is no policy and NotImplemented
// where policies cannot be evaluated; in all cases the present policy stays.
func (g *Gate) Replace(ctx context.Context, text string, input []byte) error {
	if err := g.lock(ctx); err != nil {
		return err
	}
	defer g.unlock()
	if g.InForce() {
		if _, err := g.askLocked(ctx, "SetPolicyRequest", input); err != nil {
			return err
		}
	}
	return g.setLocked(ctx, text)
}

// Load sets the first policy, which the machine's image has.
func (g *Gate) Load(ctx context.Context, text string) error {
	if err := g.lock(ctx); err != nil {
		return err
	}
	defer g.unlock()
	return g.setLocked(ctx, text)
}

// Close ends the program. Later requests are denied if there was a policy.
func (g *Gate) Close() {
	g.turn <- struct{}{}
	defer g.unlock()
	g.closed = true
	if g.running != nil {
		_ = g.running.End() // we have killed it
		g.running = nil
	}
}

func (g *Gate) lock(ctx context.Context) error {
	select {
	case g.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (g *Gate) unlock() { <-g.turn }

// setLocked starts a program with a policy, which takes the place of the one before.
func (g *Gate) setLocked(ctx context.Context, text string) error {
	if g.closed {
		return errors.New("policy: the agent ends")
	}
	next, answer, err := g.load(ctx, text, nil)
	switch {
	case err != nil:
		return fmt.Errorf("policy: %w", err)
	case !answer.Done:
		return fmt.Errorf("policy: %s: %w", answer.Reason, errdefs.ErrInvalidArgument)
	}
	if g.running != nil {
		_ = g.running.End() // we have killed it
	}
	g.text, g.state, g.lenient, g.running = text, nil, answer.Lenient, next
	if g.pending != nil { // of the policy before
		close(g.pending.decided)
		g.pending = nil
	}
	g.inForce.Store(true)
	if answer.Lenient {
		g.o.Logger.WarnContext(ctx, "the policy has AllowRequestsFailingPolicy: it allows everything")
	}
	return nil
}

// load starts a program and sends it a policy and its state. The program runs if there is no error
// and the answer is done.
func (g *Gate) load(ctx context.Context, text string, state json.RawMessage) (program, Answer, error) {
	p, err := g.start(ctx)
	if err != nil {
		return nil, Answer{}, err
	}
	answer, err := g.exchange(p, KindPolicy, []byte(text))
	if err == nil && answer.Done && state != nil {
		var again Answer
		if again, err = g.exchange(p, KindState, state); err == nil && !again.Done {
			err = fmt.Errorf("the policy's state was not taken again: %s", again.Reason)
		}
	}
	if err != nil || !answer.Done {
		how := p.End()
		if err != nil && how != nil {
			err = fmt.Errorf("%w; longshore-policy: %w", err, how)
		}
	}
	return p, answer, err
}

// exchange sends a message and waits for the answer. After an error the program is of no
// more use.
func (g *Gate) exchange(p program, kind Kind, parts ...[]byte) (Answer, error) {
	if err := p.SetDeadline(time.Now().Add(g.askTime)); err != nil {
		return Answer{}, err
	}
	if err := WriteMessage(p, kind, parts...); err != nil {
		return Answer{}, err
	}
	return ReadAnswer(p)
}

// askLocked asks about one request, and reports whether it changes the policy's state. The answer
// is awaited also when ctx ends meanwhile, since the next question follows it.
func (g *Gate) askLocked(ctx context.Context, request string, input []byte) (changes bool, err error) {
	answer, err := g.answerLocked(ctx, request, input)
	if err != nil {
		g.o.Logger.WarnContext(ctx, "the policy could not be asked; the request is denied, and the next one starts longshore-policy again", "request", request, "error", err)
		return false, denied(request, "it could not be asked: "+printable(err.Error()))
	}
	if len(answer.State) > 0 {
		g.state = answer.State
	}
	if !answer.Done {
		return false, denied(request, answer.Reason)
	}
	return len(answer.State) > 0, nil
}

func (g *Gate) answerLocked(ctx context.Context, request string, input []byte) (Answer, error) {
	if g.closed {
		return Answer{}, errors.New("the agent ends")
	}
	if len(request)+1+len(input) > MaxMessage {
		return Answer{}, fmt.Errorf("the request has %d bytes as JSON; a policy is asked about %d at most", len(input), MaxMessage-len(request)-1)
	}
	if g.running != nil && g.running.Gone() {
		// It has not died of this request, so the request can be repeated.
		g.o.Logger.WarnContext(ctx, "longshore-policy has ended; it is started again with the same policy", "how", g.running.End())
		g.running = nil
	}
	if g.running == nil {
		p, answer, err := g.load(ctx, g.text, g.state)
		if err == nil && !answer.Done {
			err = fmt.Errorf("the policy was not taken again: %s", answer.Reason)
		}
		if err != nil {
			return Answer{}, err
		}
		g.running = p
	}
	answer, err := g.exchange(g.running, KindQuestion, []byte(request), []byte{0}, input)
	if err == nil && len(answer.State) > 0 && !answer.Done {
		err = errors.New("longshore-policy answered a request that it denies with a new state")
	}
	if err != nil {
		if how := g.running.End(); how != nil {
			err = fmt.Errorf("%w; longshore-policy: %w", err, how)
		}
		g.running = nil
		return Answer{}, err
	}
	return answer, nil
}

func denied(request, reason string) error {
	text := request + " is blocked by policy"
	if reason != "" {
		text += ": " + reason
	}
	return deniedError(text)
}

// deniedError is PermissionDenied, and tells its text alone.
type deniedError string

// Error implements error.
func (e deniedError) Error() string { return string(e) }

// Is makes errdefs see the class.
func (deniedError) Is(target error) bool { return target == errdefs.ErrPermissionDenied }

// printable makes a reason one line of bounded length.
func printable(s string) string {
	s = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))), " ")
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "…"
	}
	return s
}
