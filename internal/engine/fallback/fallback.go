// Package fallback creates a container with another runtime if the first one lacks a feature of its spec.
// It does not know the engine. Start at Runtimes.Create.
package fallback

import (
	"context"
	"errors"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Runtimes creates a container with the first runtime that supports all of its spec.
type Runtimes struct {
	First core.Runtime
	// Others are tried after First, in this order. It is empty when a caller has named the
	// runtime, which is then never replaced.
	Others []core.Runtime
	// Any says that others may run it; no caller has named one.
	Any bool
	// Version returns the ociVersion to write for a runtime.
	Version func(context.Context, core.Runtime) string
	// Take is called before a runtime other than First is tried, so that the record names that
	// runtime first.
	Take func(core.Runtime) error
}

// Create asks one runtime after the other as long as they return NotImplemented. The warnings name
// the refused features and the runtime that runs the container instead. When all refuse, the error
// contains each refusal.
func (t Runtimes) Create(ctx context.Context, c core.RuntimeCreate) (pid int, warnings []string, err error) {
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
		warnings = append(warnings, refusal(c.ID, err))
		if rt, others = t.next(others); rt == nil {
			return 0, nil, refused
		}
		if err := t.Take(rt); err != nil {
			return 0, nil, err
		}
		c.Spec.Version = t.Version(ctx, rt)
	}
}

func (t Runtimes) next(others []core.Runtime) (core.Runtime, []core.Runtime) {
	for i, rt := range others {
		if _, named := rt.(core.NamedRuntime); t.Any && !named && rt.Name() != t.First.Name() {
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
