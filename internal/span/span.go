// Package span makes the spans of traces. Without a Tracer its functions do nothing. It knows no protocol: package traces
// exports spans.
package span

import (
	"context"
	"sync/atomic"
	"time"
)

// Attr describes a span.
type Attr struct{ Key, Value string }

// Tracer makes spans. Its methods may be called from several goroutines.
type Tracer interface {
	// Start begins a span below that of ctx, and returns a context with it. end is called once.
	Start(ctx context.Context, name string, attrs []Attr) (inner context.Context, end func(error))
	// Record makes a span below that of ctx that has ended.
	Record(ctx context.Context, name string, from, to time.Time)
	// Remote returns a context with the span of a W3C traceparent header. A wrong header has no effect.
	Remote(ctx context.Context, traceparent, tracestate string) context.Context
}

var tracer atomic.Pointer[Tracer]

// SetTracer sets the tracer of the process; nil removes it.
func SetTracer(t Tracer) {
	if t == nil {
		tracer.Store(nil)
		return
	}
	tracer.Store(&t)
}

// On reports whether there is a tracer. Callers ask it before they compute names and attributes.
func On() bool { return tracer.Load() != nil }

// Start begins a span.
func Start(ctx context.Context, name string, attrs ...Attr) (inner context.Context, end func(error)) {
	if t := tracer.Load(); t != nil {
		return (*t).Start(ctx, name, attrs)
	}
	return ctx, func(error) {}
}

// Record makes a span that has ended.
func Record(ctx context.Context, name string, from, to time.Time) {
	if t := tracer.Load(); t != nil {
		(*t).Record(ctx, name, from, to)
	}
}

// Remote continues the trace of a client.
func Remote(ctx context.Context, traceparent, tracestate string) context.Context {
	if t := tracer.Load(); t != nil && traceparent != "" {
		return (*t).Remote(ctx, traceparent, tracestate)
	}
	return ctx
}
