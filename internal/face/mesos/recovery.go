package mesos

import (
	"context"
	"net/http"

	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/face/mesos/view"
)

// recoveryGate delays requests until the engine and the face have recovered.
type recoveryGate struct {
	recovered <-chan struct{} // closed when the engine has recovered; nil: it has
	ready     <-chan struct{} // closed when the face is ready too, soon afterwards
}

// recovering reports whether the engine is still recovering.
func (g recoveryGate) recovering() bool {
	if g.recovered == nil {
		return false
	}
	select {
	case <-g.recovered:
		return false
	default:
		return true
	}
}

// wait returns when the engine has recovered; false if ctx ends first.
func (g recoveryGate) wait(ctx context.Context) bool {
	if g.recovered == nil {
		return true
	}
	select {
	case <-g.recovered:
		return true
	case <-ctx.Done():
		return false
	}
}

// wrap answers with status 503 while the engine is recovering, as Mesos does, before it
// reads anything of a request. The health document is always served.
func (g recoveryGate) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !view.IsHealth(r.URL.Path) {
			if g.recovering() {
				api.WriteError(w, r, &api.Error{Code: http.StatusServiceUnavailable, Text: "Agent has not finished recovery"})
				return
			}
			select {
			case <-g.ready:
			case <-r.Context().Done():
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
