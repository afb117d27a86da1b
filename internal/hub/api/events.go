package api

import (
	"encoding/json"
	"net/http"

	hubv1 "github.com/longshore/longshore/api/hub/v1"
	"github.com/longshore/longshore/internal/hub/events"
)

// GetMetrics implements hubv1.ServerInterface.
func (s Server) GetMetrics(w http.ResponseWriter, r *http.Request) { s.Metrics.ServeHTTP(w, r) }

// GetEvents implements hubv1.ServerInterface.
func (s Server) GetEvents(w http.ResponseWriter, r *http.Request, p hubv1.GetEventsParams) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	enc, out := json.NewEncoder(w), http.NewResponseController(w)
	if p.Follow == "" {
		list, _, err := s.Events.List(r.Context(), p.After)
		if err != nil {
			reply(w, nil, err)
			return
		}
		for _, e := range list {
			if enc.Encode(view(e)) != nil {
				return // the client is gone
			}
		}
		return
	}
	_ = out.Flush()
	_ = s.Events.Follow(r.Context(), p.After, func(e events.Event) error {
		if err := enc.Encode(view(e)); err != nil {
			return err
		}
		return out.Flush()
	})
}

func view(e events.Event) hubv1.Event {
	return hubv1.Event{Cursor: e.Cursor, Time: e.Time, Kind: e.Kind, Who: e.Who, What: e.What}
}
