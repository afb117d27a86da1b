package obs

import (
	"context"
	"net/http"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/longshore/longshore/internal/span"
)

// span begins the span of a call, below that of its client if it sent one. A call that only reads has none without it, because
// orchestrators ask for lists all the time.
func (g GRPC) span(ctx context.Context, op string) (inner context.Context, end func(error)) {
	if !span.On() {
		return ctx, func(error) {}
	}
	one := func(key string) string {
		if v := metadata.ValueFromIncomingContext(ctx, key); len(v) > 0 {
			return v[0]
		}
		return ""
	}
	parent := one("traceparent")
	if parent == "" && onlyReads(op) {
		return ctx, func(error) {}
	}
	return span.Start(span.Remote(ctx, parent, one("tracestate")), g.Face+" "+op)
}

// HTTPSpan begins the span of a request, as those of gRPC calls are.
func HTTPSpan(r *http.Request, face, call string) (ctx context.Context, end func(error)) {
	ctx = r.Context()
	parent := r.Header.Get("traceparent")
	if !span.On() || parent == "" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		return ctx, func(error) {}
	}
	return span.Start(span.Remote(ctx, parent, r.Header.Get("tracestate")), face+" "+call)
}

// onlyReads reports whether a call's name is that of one that reads.
func onlyReads(op string) bool {
	for _, prefix := range []string{"List", "Get", "Inspect", "Version", "Status", "Stats", "Wait", "Logs", "Events", "Info", "Fingerprint", "Why", "Top"} {
		if strings.HasPrefix(op, prefix) {
			return true
		}
	}
	for _, suffix := range []string{"Status", "Stats", "Info", "Metrics", "Events"} {
		if strings.HasSuffix(op, suffix) {
			return true
		}
	}
	return false
}
