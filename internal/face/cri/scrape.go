package cri

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/cri/metric"
)

// scrapes serves the metrics of pods and containers to Prometheus, with the names
// and labels of kubelet's /metrics/cadvisor.
type scrapes struct {
	set     *metric.Set
	measure func(context.Context) ([]*measured, error)
	metrics face.Metrics
	// reading shares one reading between concurrent scrapes, so that additional
	// scrapers do not read the kernel's files again.
	reading singleflight.Group
}

// measureTimeout bounds one reading. Prometheus waits ten seconds by default.
const measureTimeout = 20 * time.Second

// ServeHTTP answers a scrape.
func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began, code := time.Now(), "OK"
	defer func() { s.metrics.Request(Name, "ScrapeMetrics", code, time.Since(began)) }()
	all, err := s.objects(r.Context())
	if err != nil {
		code = "Internal"
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", metric.TextType)
	var out io.Writer = w
	if acceptsGzip(r.Header) {
		w.Header().Set("Content-Encoding", "gzip")
		// The lines are alike: even the fastest level saves five sixths.
		z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
		if err == nil {
			defer func() { _ = z.Close() }()
			out = z
		}
	}
	if err := s.set.WriteText(out, all); err != nil {
		code = "Canceled" // the client has gone
	}
}

// objects returns all pods and containers with their stats. Concurrent callers share
// one reading and must not modify the result.
func (s *scrapes) objects(ctx context.Context) ([]*metric.Object, error) {
	done := s.reading.DoChan("", func() (_ any, err error) {
		defer func() {
			if p := recover(); p != nil {
				s.metrics.Panic(Name)
				err = fmt.Errorf("read metrics: %v", p)
			}
		}()
		// The first caller may leave while others still wait.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), measureTimeout)
		defer cancel()
		pods, err := s.measure(ctx)
		var all []*metric.Object
		for _, p := range pods {
			all = append(all, &p.pod)
			for i := range p.containers {
				all = append(all, &p.containers[i])
			}
		}
		return all, err
	})
	select {
	case r := <-done:
		all, _ := r.Val.([]*metric.Object)
		return all, r.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func acceptsGzip(h http.Header) bool {
	for part := range strings.SplitSeq(h.Get("Accept-Encoding"), ",") {
		coding, params, _ := strings.Cut(strings.TrimSpace(part), ";")
		if coding == "gzip" {
			return strings.TrimSpace(params) != "q=0"
		}
	}
	return false
}
