package engine

import (
	"context"
	"errors"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// runtimeName returns the runtime that a container asks for, or else that its sandbox does; "" is
// the node's default.
func runtimeName(sb *core.Sandbox, cfg *core.ContainerConfig) string {
	if cfg.Runtime != "" || sb.AnyRuntime {
		return cfg.Runtime
	}
	return sb.Config.Runtime
}

// fallback creates a container with the first runtime that supports all of its spec.
type fallback struct {
	first core.Runtime
	// others are tried after first, in this order. It is empty when a caller has named the
	// runtime, which is then never replaced.
	others []core.Runtime
	any    bool
	// version returns the ociVersion to write for a runtime.
	version func(context.Context, core.Runtime) string
	// take is called before a runtime other than first is tried, so that the record names that
	// runtime first.
	take func(core.Runtime) error
}

// create asks one runtime after the other as long as they return NotImplemented. The warnings name
// the refused features and the runtime that runs the container instead. When all refuse, the error
// contains each refusal.
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
		if _, named := rt.(core.NamedRuntime); t.any && !named && rt.Name() != t.first.Name() {
			return rt, others[i+1:]
		}
	}
	return nil, nil
}

// refusal returns the text of a runtime's error without the operation and the error's class.
func refusal(id core.ID, err error) string {
	text := strings.TrimSuffix(err.Error(), ": "+errdefs.ErrNotImplemented.Error())
	return strings.TrimPrefix(text, "create container "+string(id)+": ")
}
