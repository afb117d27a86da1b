// Package collector is an OTLP collector for tests. It keeps all spans that it gets.
package collector

import (
	"context"
	"encoding/hex"
	"net"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// Span is a span with its service and its IDs in hexadecimal digits.
type Span struct {
	*otlp.Span

	Service           string
	Trace, ID, Parent string
}

// Attribute returns the text of an attribute of the span, or "".
func (s Span) Attribute(key string) string {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == key {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

// Collector is a server that keeps all spans.
type Collector struct {
	collector.UnimplementedTraceServiceServer

	Addr string

	mu    sync.Mutex // guards spans
	spans []Span
}

// Start serves at an address of the loopback interface until the test ends.
func Start(t *testing.T) *Collector {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &Collector{Addr: l.Addr().String()}
	srv := grpc.NewServer()
	collector.RegisterTraceServiceServer(srv, c)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	return c
}

// Export is the collector's only call.
func (c *Collector) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range req.GetResourceSpans() {
		service := ""
		for _, a := range r.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range r.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, Span{
					Span: s, Service: service,
					Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()),
				})
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// Spans returns the spans that ok accepts.
func (c *Collector) Spans(ok func(Span) bool) (list []Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if ok(s) {
			list = append(list, s)
		}
	}
	return list
}
