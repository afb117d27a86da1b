// Package verbs writes lines of the audit trail for the verbs of the engine.
package verbs

import (
	"context"

	"github.com/longshore/longshore/internal/caller"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/trail"
)

// Policy writes a line for each verb on a sandbox or a container. It allows everything.
type Policy struct {
	core.Permit
	Log *trail.Log
}

// Before implements core.Policy. The line is written when the verb has ended, before its caller gets the answer.
func (p Policy) Before(ctx context.Context, op *core.Operation) (after func(error), err error) {
	if op.Part {
		return nil, nil // the removal has a line
	}
	r := trail.Of(ctx)
	r.Verb, r.Owner, r.Process, r.Detail = string(op.Verb), string(op.Owner()), string(op.Process), op.Detail
	if r.Process == string(core.Main) {
		r.Process = ""
	}
	if op.Sandbox != nil {
		r.Kind, r.ID, r.Name = "sandbox", string(op.Sandbox.ID), string(op.Sandbox.Key)
	} else {
		r.Kind, r.ID, r.Name = "container", string(op.Container.ID), string(op.Container.Key)
	}
	return func(err error) {
		p.Log.Write(trail.Ended(r, err))
		if c, ok := caller.From(ctx); ok {
			c.Note()
		}
	}, nil
}
