package engine

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/stages"
	"github.com/longshore/longshore/internal/span"
)

// policies check callers' operations.
type policies struct {
	all    []core.Policy
	logger *slog.Logger
}

// around asks the policies about a verb, calls do, and reports the result to them. The caller holds no
// lock: policies may call verbs, and may wait for something that waits for one.
func (ps policies) around(ctx context.Context, op *core.Operation, do func() error) (err error) {
	if span.On() {
		var end func(error)
		_, end = span.Start(ctx, string(op.Verb), spanAttrs(op)...)
		defer func() { end(err) }()
	}
	done, err := ps.ask(ctx, op)
	if err != nil {
		return err
	}
	err = fmt.Errorf("it was not finished: %w", errdefs.ErrInternal) // the result if do panics
	defer func() { done(err) }()
	err = do()
	return err
}

// spanAttrs describes the object of a verb to a trace.
func spanAttrs(op *core.Operation) []span.Attr {
	var m *core.Meta
	kind := "sandbox"
	if op.Sandbox != nil {
		m = &op.Sandbox.Meta
	} else {
		kind, m = "container", &op.Container.Meta
	}
	return []span.Attr{{Key: kind + ".id", Value: string(m.ID)}, {Key: kind + ".name", Value: string(m.Key)}, {Key: "owner", Value: string(m.Owner)}}
}

// perform is around for a verb that a caller waits for: when it returns, the new record of a durable
// object outlives a boot.
func (e *Engine) perform(ctx context.Context, op *core.Operation, do func() error) error {
	return e.policies.around(ctx, op, func() error {
		if err := do(); err != nil || op.Part {
			return err
		}
		if op.Container != nil && op.Container.Config.Durable || op.Sandbox != nil && op.Sandbox.Config.Durable {
			return e.o.Store.Sync()
		}
		return nil
	})
}

// ask asks the policies before a verb; done reports the result to those that allowed it.
func (ps policies) ask(ctx context.Context, op *core.Operation) (done func(error), err error) {
	var afters []func(error)
	done = func(err error) {
		if stages.Crashed(err) {
			return // a dead agent reports nothing
		}
		for _, after := range slices.Backward(afters) {
			after(err)
		}
	}
	for _, p := range ps.all {
		after, err := p.Before(ctx, op)
		switch {
		case err == nil:
			if after != nil {
				afters = append(afters, after)
			}
		case op.Verb == core.VerbStop || op.Verb == core.VerbKill || op.Verb == core.VerbRemove:
			ps.logger.WarnContext(ctx, "a policy refused a stop or removal, which happens all the same", "verb", op.Verb, "error", err)
		default:
			done(err)
			return nil, err
		}
	}
	return done, nil
}

// admit is the stage that asks the policies about a sandbox.
func (b *sandboxBuild) admit(ctx context.Context) error {
	for _, p := range b.e.policies.all {
		if err := p.AdmitSandbox(ctx, &b.sb); err != nil {
			return err
		}
	}
	return nil
}

// adjust is the stage that lets the policies change a container's spec. Mounts that come from the host show their owners
// as without a user namespace.
func (b *build) adjust(ctx context.Context) error {
	for _, p := range b.e.policies.all {
		if err := p.AdjustContainer(ctx, &b.sb, &b.c, b.spec); err != nil {
			return err
		}
	}
	if u := b.sb.Config.Users; b.e.o.Users == nil || len(b.sb.Config.UIDs) == 0 || !u.Own && !u.Chosen {
		return nil
	}
	return b.e.o.Users.Map(b.spec, b.ridmap, func(source string) bool {
		return source == b.e.o.Init || strings.HasPrefix(source, b.c.Bundle+"/") || strings.HasPrefix(source, b.sb.Dir+"/")
	})
}

// adjust returns p as the policies have changed it.
func (ps policies) adjust(ctx context.Context, sb *core.Sandbox, ct *core.Container, p *specs.Process) (*specs.Process, error) {
	own := *p
	own.Args, own.Env, own.Rlimits = slices.Clone(p.Args), slices.Clone(p.Env), slices.Clone(p.Rlimits)
	own.User.AdditionalGids = slices.Clone(p.User.AdditionalGids)
	if p.Capabilities != nil {
		caps := *p.Capabilities
		own.Capabilities = &caps
	}
	for _, p := range ps.all {
		if err := p.AdjustProcess(ctx, sb, ct, &own); err != nil {
			return nil, err
		}
	}
	return &own, nil
}
