// Package caller carries the client of a call in a context. Faces set it once for each call (With), and the audit trail reads it
// (From). It knows neither faces nor the engine.
package caller

import (
	"context"
	"sync/atomic"
)

// Caller describes a call and its client.
type Caller struct {
	Face string // "control", "cri", "docker", …
	Call string // the RPC, or the method and the route
	// Peer names the client: "uid 0, pid 812", the name in its certificate, or its address. "" is unknown.
	Peer string
	// Request is the client's own ID of the call, if it sent one.
	Request string

	lines *atomic.Int32
}

// Audit gets the calls that change something. *trail.Log is one.
type Audit interface {
	// Call reports the end of a call: it has no effect if a verb of the engine has reported it. request is a text or a
	// protobuf message that names the object.
	Call(ctx context.Context, request any, err error)
}

type key struct{}

// With returns a context with c. It replaces the caller of an outer call.
func With(ctx context.Context, c Caller) context.Context {
	c.lines = new(atomic.Int32)
	return context.WithValue(ctx, key{}, c)
}

// From returns the caller; ok is false if the node does the work for itself.
func From(ctx context.Context) (c Caller, ok bool) {
	c, ok = ctx.Value(key{}).(Caller)
	return c, ok
}

// Noted reports whether Note was called for the call.
func (c Caller) Noted() bool { return c.lines != nil && c.lines.Load() > 0 }

// Note records that the audit trail has a line of the call.
func (c Caller) Note() {
	if c.lines != nil {
		c.lines.Add(1)
	}
}
