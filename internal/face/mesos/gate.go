package mesos

import (
	"context"
	"net/http"

	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/face/mesos/view"
)

// gate stands before the API until there is a node to ask about.
type gate struct {
	recovered <-chan struct{} // closed when the engine has recovered; nil: it has
	ready     <-chan struct{} // closed when the face itself is ready, which is soon after
}

// recovering reports whether the engine still recovers.
func (g gate) recovering() bool {
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

// wait returns when the engine has recovered; false when ctx ends first.
func (g gate) wait(ctx context.Context) bool {
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

// wrap answers as Mesos does while the engine recovers: before anything else of a
// request is looked at but who makes it. Whether the agent lives can be asked
// always.
func (g gate) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !view.IsHealth(r.URL.Path) {
			if g.recovering() {
				api.WriteError(w, &api.Error{Code: http.StatusServiceUnavailable, Text: "Agent has not finished recovery"})
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
