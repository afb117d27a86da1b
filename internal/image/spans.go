package image

import (
	"context"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/span"
)

// layerSpans makes a span of each download and each unpacking of a layer out of the worker's reports, which come at a limited rate.
type layerSpans struct {
	ctx  context.Context //nolint:containedctx // that of the pull
	mu   sync.Mutex      // guards last
	last map[digest.Digest]layerStatus
}

type layerStatus struct {
	status string
	since  time.Time
}

// layered returns report, which also makes spans if there is a tracer. end is called after the pull.
func layered(ctx context.Context, report func(core.PullProgress)) (progress func(core.PullProgress), end func()) {
	if !span.On() {
		return report, func() {}
	}
	l := &layerSpans{ctx: ctx, last: map[digest.Digest]layerStatus{}}
	return func(p core.PullProgress) {
		if p.Blob != "" {
			l.note(p.Blob, p.Status)
		}
		report(p)
	}, l.end
}

func (l *layerSpans) note(blob digest.Digest, status string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last[blob].status == status {
		return
	}
	l.record(blob)
	l.last[blob] = layerStatus{status, time.Now()}
}

// record makes the span of a layer's present status. Preconditions: mu is held.
func (l *layerSpans) record(blob digest.Digest) {
	switch s := l.last[blob]; s.status {
	case "downloading", "unpacking":
		span.Record(l.ctx, s.status+" "+blob.String(), s.since, time.Now())
	}
}

func (l *layerSpans) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for blob := range l.last {
		l.record(blob)
	}
}
