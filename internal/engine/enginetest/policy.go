package enginetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// Policy is a core.Policy that records the operations and calls a test's functions. The zero Policy
// permits everything.
type Policy struct {
	mu    sync.Mutex // guards notes, do
	notes []string
	do    Hooks
}

var _ core.Policy = (*Policy)(nil)

// Hooks are a test's functions and values for a Policy. Each may be nil.
type Hooks struct {
	// Asked is called with each question, in the form of Notes, and may refuse.
	Asked func(ctx context.Context, question string) error
	// Ended is called with each result, in the form of Notes.
	Ended func(ctx context.Context, end string)
	// Resources replace those of an update.
	Resources *specs.LinuxResources
	// Container and Process change the spec before a start.
	Container func(c *core.Container, spec *specs.Spec)
	Process   func(c *core.Container, p *specs.Process)
}

// Does makes the policy use h from now on.
func (p *Policy) Does(h Hooks) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.do = h
}

// Refuse makes the policy answer PermissionDenied to each question with this prefix, and permit
// all others; "" refuses nothing.
func (p *Policy) Refuse(question string) {
	p.Does(Hooks{Asked: func(_ context.Context, asked string) error {
		if question == "" || !strings.HasPrefix(asked, question) {
			return nil
		}
		return fmt.Errorf("policy: not here: %w", errdefs.ErrPermissionDenied)
	}})
}

// Notes returns the questions and results since the last call of Notes, in order: "create sandbox
// KEY" before a verb, "create sandbox KEY: done" or "…: failed" after it, "admit sandbox KEY",
// "adjust container KEY" and "adjust process KEY" in between.
func (p *Policy) Notes() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	notes := p.notes
	p.notes = nil
	return notes
}

// hooks records a note, and returns the hooks.
func (p *Policy) hooks(note string) Hooks {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notes = append(p.notes, note)
	return p.do
}

func (p *Policy) ask(ctx context.Context, question string) (Hooks, error) {
	h := p.hooks(question)
	if h.Asked == nil {
		return h, nil
	}
	return h, h.Asked(ctx, question)
}

// AdmitSandbox implements core.Policy.
func (p *Policy) AdmitSandbox(ctx context.Context, sb *core.Sandbox) error {
	_, err := p.ask(ctx, "admit sandbox "+string(sb.Key))
	return err
}

// AdjustContainer implements core.Policy.
func (p *Policy) AdjustContainer(ctx context.Context, _ *core.Sandbox, c *core.Container, spec *specs.Spec) error {
	h, err := p.ask(ctx, "adjust container "+string(c.Key))
	if err == nil && h.Container != nil {
		h.Container(c, spec)
	}
	return err
}

// AdjustProcess implements core.Policy.
func (p *Policy) AdjustProcess(ctx context.Context, _ *core.Sandbox, c *core.Container, proc *specs.Process) error {
	h, err := p.ask(ctx, "adjust process "+string(c.Key))
	if err == nil && h.Process != nil {
		h.Process(c, proc)
	}
	return err
}

// Before implements core.Policy.
func (p *Policy) Before(ctx context.Context, op *core.Operation) (after func(error), err error) {
	question := string(op.Verb)
	if op.Sandbox != nil {
		question += " sandbox " + string(op.Sandbox.Key)
	} else {
		question += " container " + string(op.Container.Key)
	}
	h, err := p.ask(ctx, question)
	if err != nil {
		return nil, err
	}
	if h.Resources != nil && op.Verb == core.VerbUpdate {
		op.Resources = h.Resources
	}
	return func(err error) {
		end := question + ": done"
		if err != nil {
			end = question + ": failed"
		}
		if h := p.hooks(end); h.Ended != nil {
			h.Ended(ctx, end)
		}
	}, nil
}

// Asked returns those of the notes that are questions.
func Asked(notes []string) []string {
	return slices.DeleteFunc(slices.Clone(notes), func(n string) bool {
		return strings.HasSuffix(n, ": done") || strings.HasSuffix(n, ": failed")
	})
}

// RefusesExecs makes a face's call that starts a further process while a policy refuses that. It
// fails the test unless the policy is called and the call fails, and returns the call's errors.
func (n *Node) RefusesExecs(call func() error) (answers []error) {
	n.tb.Helper()
	defer n.Policy.Refuse("")
	for _, question := range []string{"exec container ", "adjust process "} {
		n.Policy.Refuse(question)
		n.Policy.Notes()
		before := n.Left()
		err := call()
		answers = append(answers, err)
		asked := func(note string) bool { return strings.HasPrefix(note, question) }
		if notes := n.Policy.Notes(); err == nil || !slices.ContainsFunc(notes, asked) {
			n.tb.Errorf("answered %v, asked %q, want a refused %q", err, notes, question)
		}
		if left := n.Left(); !slices.Equal(left, before) {
			n.tb.Errorf("refused, and there is %q instead of %q", left, before)
		}
	}
	return answers
}
