// Package choice takes another runtime where the first does not do all that a
// spec asks for, and words what was refused.
//
// It must not know the engine. Start at Try.
package choice

import (
	"context"
	"errors"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Name is the runtime that a sandbox's containers ask for; "" is the node's
// choice.
func Name(sb *core.Sandbox) string {
	if sb.AnyRuntime {
		return ""
	}
	return sb.Config.Runtime
}

// Try makes a container by the first runtime that does all of its spec.
type Try struct {
	First core.Runtime
	// Others may be tried after First, in this order, when Any is set: a
	// runtime that somebody named is never replaced.
	Others []core.Runtime
	Any    bool
	// Version is the ociVersion to write for a runtime.
	Version func(context.Context, core.Runtime) string
	// Take is called before another runtime than First is tried, to have it on
	// record first.
	Take func(core.Runtime) error
}

// Create asks one runtime after the other while they refuse with
// NotImplemented. The warnings name what was refused and who does it now; when
// nobody does, the error holds each refusal.
func (t Try) Create(ctx context.Context, c core.RuntimeCreate) (pid int, warnings []string, err error) {
	rt, refused := t.First, error(nil)
	others := t.Others
	for {
		pid, err := rt.Create(ctx, c)
		if err == nil {
			for i, w := range warnings {
				warnings[i] = w + "; run by " + rt.Name()
			}
			return pid, warnings, nil
		}
		if !errdefs.IsNotImplemented(err) {
			return 0, nil, err
		}
		refused = errors.Join(refused, err)
		warnings = append(warnings, Refusal(c.ID, err))
		if rt, others = t.next(others); rt == nil {
			return 0, nil, refused
		}
		if err := t.Take(rt); err != nil {
			return 0, nil, err
		}
		c.Spec.Version = t.Version(ctx, rt)
	}
}

func (t Try) next(others []core.Runtime) (core.Runtime, []core.Runtime) {
	for i, rt := range others {
		if t.Any && rt.Name() != t.First.Name() {
			return rt, others[i+1:]
		}
	}
	return nil, nil
}

// Refusal is what a runtime's error says of the spec: the field and that it is
// not done, without the operation and the error's class.
func Refusal(id core.ID, err error) string {
	text := strings.TrimSuffix(err.Error(), ": "+errdefs.ErrNotImplemented.Error())
	return strings.TrimPrefix(text, "create container "+string(id)+": ")
}
