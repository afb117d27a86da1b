package engine

import (
	"context"
	"errors"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// runtimeName is the runtime that a sandbox's containers ask for; "" is the node's
// default.
func runtimeName(sb *core.Sandbox) string {
	if sb.AnyRuntime {
		return ""
	}
	return sb.Config.Runtime
}

// fallback creates a container with the first runtime that implements all of its spec.
type fallback struct {
	first core.Runtime
	// others may be tried after first, in this order, when any is set: a
	// runtime that somebody named is never replaced.
	others []core.Runtime
	any    bool
	// version is the ociVersion to write for a runtime.
	version func(context.Context, core.Runtime) string
	// take is called before a runtime other than first is tried, so that the record
	// names it first.
	take func(core.Runtime) error
}

// create asks one runtime after the other while they refuse with
// NotImplemented. The warnings name what was refused and who does it now; when
// nobody does, the error holds each refusal.
func (t fallback) create(ctx context.Context, c core.RuntimeCreate) (pid int, warnings []string, err error) {
	rt, refused := t.first, error(nil)
	others := t.others
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
		warnings = append(warnings, refusal(c.ID, err))
		if rt, others = t.next(others); rt == nil {
			return 0, nil, refused
		}
		if err := t.take(rt); err != nil {
			return 0, nil, err
		}
		c.Spec.Version = t.version(ctx, rt)
	}
}

func (t fallback) next(others []core.Runtime) (core.Runtime, []core.Runtime) {
	for i, rt := range others {
		if t.any && rt.Name() != t.first.Name() {
			return rt, others[i+1:]
		}
	}
	return nil, nil
}

// refusal is what a runtime's error says of the spec: the field, and that it is
// not implemented, without the operation and the error's class.
func refusal(id core.ID, err error) string {
	text := strings.TrimSuffix(err.Error(), ": "+errdefs.ErrNotImplemented.Error())
	return strings.TrimPrefix(text, "create container "+string(id)+": ")
}
