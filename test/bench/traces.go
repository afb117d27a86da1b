package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
)

// spanCounter is a collector of traces that only counts their spans.
type spanCounter struct {
	collector.UnimplementedTraceServiceServer

	spans atomic.Int64
}

// Export is the collector's only call.
func (c *spanCounter) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	for _, r := range req.GetResourceSpans() {
		for _, s := range r.GetScopeSpans() {
			c.spans.Add(int64(len(s.GetSpans())))
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// tracing is an agent that exports traces, or does not, and its pods' times.
type tracing struct {
	label, config string
	start         []time.Duration
	cpu           time.Duration // of the agent and its pods' helpers, from start to removal
}

// traceTurns is how many times each configuration has its turn.
const traceTurns = 8

// traces compares the start of pods without traces and with all of them exported to a collector on loopback.
func (b *bench) traces(ctx context.Context) error {
	if !b.ours() {
		return nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	counter, srv := &spanCounter{}, grpc.NewServer()
	collector.RegisterTraceServiceServer(srv, counter)
	go func() { _ = srv.Serve(l) }()
	defer srv.Stop()
	kinds := []*tracing{{label: "no traces"}, {label: "all traces exported", config: fmt.Sprintf("[traces]\nendpoint = %q\n", l.Addr())}}
	for range traceTurns {
		for _, k := range kinds {
			if err := b.server.Vary(ctx, k.config); err != nil {
				return err
			}
			if err := b.traced(ctx, k); err != nil {
				return fmt.Errorf("%s: %w", k.label, err)
			}
		}
		slices.Reverse(kinds) // a machine that becomes slower slows both
	}
	if err := b.server.Vary(ctx, ""); err != nil {
		return err
	}
	off, on := kinds[0], kinds[1]
	if counter.spans.Load() == 0 {
		return errors.New("the collector got no span")
	}
	for _, k := range kinds {
		b.row("", "pod start, "+k.label, k.start)
	}
	b.value("", "pod start: times", float64(middle(on.start))/float64(middle(off.start)), "(%s to %s, p50; at most 1.03)", on.label, off.label)
	b.value("", "CPU of a pod: times", float64(on.cpu)/float64(off.cpu), "(%s to %s)", on.label, off.label)
	b.value("", "spans of a pod", float64(counter.spans.Load())/float64(len(on.start)+traceTurns*warmUp), "")
	return nil
}

// traced starts and removes pods after a start of the agent.
func (b *bench) traced(ctx context.Context, k *tracing) error {
	if _, err := b.client.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true)); err != nil {
		return err
	}
	for range warmUp {
		if _, err := b.cycle(ctx, func() {}); err != nil {
			return err
		}
	}
	used := b.charged()
	for range max(1, b.pods/2) {
		p, err := b.cycle(ctx, func() {})
		if err != nil {
			return err
		}
		k.start = append(k.start, p.total())
	}
	k.cpu += b.charged() - used
	return nil
}
