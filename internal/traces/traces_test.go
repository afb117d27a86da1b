package traces

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/longshore/longshore/internal/span"
)

func TestValidate(t *testing.T) {
	for c, ok := range map[Config]bool{
		{}:                                 true,
		{Endpoint: "127.0.0.1:4317"}:       true,
		{Endpoint: "[::1]:4317"}:           true,
		{Endpoint: "localhost:4317"}:       true,
		{Endpoint: "collector:4317"}:       false,
		{Endpoint: "10.0.0.1:4317"}:        false,
		{Endpoint: "collector:1", CA: "x"}: true,
		{Endpoint: "127.0.0.1"}:            false,
		{PerMillion: -1}:                   false,
		{PerMillion: 1_000_001}:            false,
	} {
		if err := c.Validate(); (err == nil) != ok || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestSpans: a client's trace continues, a wrong header begins another one, and a failed call has its error.
func TestSpans(t *testing.T) {
	rec := tracetest.NewSpanRecorder()
	span.SetTracer(tracer{sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec)).Tracer("")})
	defer span.SetTracer(nil)
	ctx := span.Remote(context.Background(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "")
	inner, end := span.Start(ctx, "call", span.Attr{Key: "k", Value: "v"})
	from := time.Now()
	span.Record(inner, "stage", from, from.Add(time.Second))
	end(errors.New("no"))
	_, end = span.Start(span.Remote(context.Background(), "00-xx", ""), "alone")
	end(nil)
	got := rec.Ended()
	if len(got) != 3 {
		t.Fatalf("%d spans", len(got))
	}
	stage, call, alone := got[0], got[1], got[2]
	if call.Parent().SpanID().String() != "b7ad6b7169203331" || stage.Parent().SpanID() != call.SpanContext().SpanID() || stage.EndTime().Sub(stage.StartTime()) != time.Second {
		t.Errorf("call %+v, stage %+v", call, stage)
	}
	if call.Status().Description != "no" || len(call.Attributes()) != 1 || alone.Parent().IsValid() {
		t.Errorf("call %+v, alone %+v", call.Status(), alone.Parent())
	}
	span.SetTracer(nil)
	if same, end := span.Start(ctx, "off"); same != ctx || span.On() {
		t.Error("a span without a tracer")
	} else {
		end(nil)
	}
}
