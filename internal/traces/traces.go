// Package traces exports spans to an OpenTelemetry collector by OTLP. Only the agent links it. Start at Open.
package traces

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/containerd/errdefs"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/credentials"

	"github.com/longshore/longshore/internal/span"
)

// Config is the section [traces].
type Config struct {
	// Endpoint is host:port of a collector that takes OTLP over gRPC; "" exports nothing.
	Endpoint string `toml:"endpoint"`
	// CA is a PEM file with the authorities of the collector's certificate. "" connects without TLS, which only a collector
	// on loopback may have.
	CA string `toml:"ca"`
	// PerMillion is how many of a million traces that begin here are exported. Traces of clients are exported if their
	// clients do it.
	PerMillion int `toml:"per_million"`
}

// DefaultConfig exports nothing.
func DefaultConfig() Config { return Config{PerMillion: 1_000_000} }

// Validate refuses an endpoint that could show the traces to others.
func (c Config) Validate() error {
	if c.PerMillion < 0 || c.PerMillion > 1_000_000 {
		return fmt.Errorf("traces.per_million %d: not from 0 to 1000000: %w", c.PerMillion, errdefs.ErrInvalidArgument)
	}
	if c.Endpoint == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(c.Endpoint)
	if err != nil {
		return fmt.Errorf("traces.endpoint %q: %w: %w", c.Endpoint, err, errdefs.ErrInvalidArgument)
	}
	if ip := net.ParseIP(host); c.CA == "" && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("traces.endpoint %q: traces have names of containers and clients: set traces.ca, or name a collector on loopback: %w", c.Endpoint, errdefs.ErrInvalidArgument)
	}
	return nil
}

// The bounds of an exporter. When its queue is full, spans are dropped: no call waits for a collector.
const (
	maxQueue    = 4096
	exportTime  = 10 * time.Second
	goodbyeTime = time.Second
)

// Open sets the tracer of the process. closing exports the last spans, for a short time; it is not nil.
func Open(ctx context.Context, c Config, version string) (closing func() error, err error) {
	if c.Endpoint == "" {
		return func() error { return nil }, nil
	}
	options := []otlptracegrpc.Option{otlptracegrpc.WithEndpoint(c.Endpoint), otlptracegrpc.WithTimeout(exportTime)}
	if c.CA == "" {
		options = append(options, otlptracegrpc.WithInsecure())
	} else {
		creds, err := credentials.NewClientTLSFromFile(c.CA, "")
		if err != nil {
			return nil, fmt.Errorf("traces.ca: %w", err)
		}
		options = append(options, otlptracegrpc.WithTLSCredentials(creds))
	}
	exporter, err := otlptrace.New(ctx, otlptracegrpc.NewClient(options...))
	if err != nil {
		return nil, fmt.Errorf("traces.endpoint: %w", err)
	}
	host, err := resource.New(ctx, resource.WithHost(), resource.WithAttributes(attribute.String("service.name", "longshore"), attribute.String("service.version", version)))
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	p := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter, sdktrace.WithMaxQueueSize(maxQueue)), sdktrace.WithResource(host),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(float64(c.PerMillion)/1e6))),
	)
	span.SetTracer(tracer{p.Tracer("github.com/longshore/longshore")})
	return func() error {
		span.SetTracer(nil)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbyeTime)
		defer cancel()
		_ = p.Shutdown(ctx) // a collector that is away keeps no agent
		return nil
	}, nil
}

// tracer implements span.Tracer.
type tracer struct{ of trace.Tracer }

// Start implements span.Tracer.
func (t tracer) Start(ctx context.Context, name string, attrs []span.Attr) (context.Context, func(error)) {
	kv := make([]attribute.KeyValue, len(attrs))
	for i, a := range attrs {
		kv[i] = attribute.String(a.Key, a.Value)
	}
	ctx, s := t.of.Start(ctx, name, trace.WithAttributes(kv...))
	return ctx, func(err error) {
		if err != nil {
			s.SetStatus(codes.Error, err.Error())
		}
		s.End()
	}
}

// Record implements span.Tracer.
func (t tracer) Record(ctx context.Context, name string, from, to time.Time) {
	_, s := t.of.Start(ctx, name, trace.WithTimestamp(from))
	s.End(trace.WithTimestamp(to))
}

// Remote implements span.Tracer.
func (t tracer) Remote(ctx context.Context, traceparent, tracestate string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": traceparent, "tracestate": tracestate})
}
