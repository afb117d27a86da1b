// Package endpoint answers what older tools of Mesos read by GET, each path a
// document of its own in JSON: an agent's, and two of a master's by which tools
// find agents and tasks.
//
// It knows the node by the calls of the API alone. Start at Handler.
package endpoint

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/face/mesos/api"
)

// Handler answers the paths that are for GET.
type Handler struct {
	// Do does one call. A *door.Error is answered as it is.
	Do func(ctx context.Context, call *mesosagent.Call) (*mesosagent.Response, error)
	// API answers everything else.
	API http.Handler
}

// page writes one document.
type page func(h Handler, w http.ResponseWriter, r *http.Request) error

// health tells that the agent lives.
const health = "/health"

// pages are the documents by their paths.
func pages() map[string]page {
	return map[string]page{
		health:                func(Handler, http.ResponseWriter, *http.Request) error { return nil },
		"/version":            document(version),
		"/flags":              document(flags),
		"/metrics/snapshot":   document(metrics),
		"/state":              document(state),
		"/containers":         document(containers),
		"/monitor/statistics": document(statistics),
		"/slaves":             document(slaves),
		"/tasks":              document(tasks),
		"/files/browse":       document(browse),
		"/files/read":         document(read),
		"/files/debug":        document(debug),
		"/files/download":     download,
	}
}

// agent is what stands before the paths of an agent's own, and may be left out.
const agent = "/slave(1)"

// named is a path without what may be left out.
func named(path string) string { return strings.TrimRight(strings.TrimPrefix(path, agent), "/") }

// at is the page at a path, nil for none.
func at(path string) page { return pages()[named(path)] }

// Document reports whether a path is one that is for GET.
func Document(path string) bool { return at(path) != nil }

// Health reports whether a path is the one that tells that the agent lives.
func Health(path string) bool { return named(path) == health }

// ServeHTTP implements http.Handler.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := at(r.URL.Path)
	switch {
	case p == nil:
		h.API.ServeHTTP(w, r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", http.MethodGet)
		api.WriteError(w, &api.Error{Code: http.StatusMethodNotAllowed, Text: "405 Method Not Allowed. Expecting one of { 'GET' }, but received '" + r.Method + "'."})
	default:
		if err := p(h, w, r); err != nil {
			api.WriteError(w, err)
		}
	}
}

// document is a page of JSON.
func document(of func(h Handler, r *http.Request) (any, error)) page {
	return func(h Handler, w http.ResponseWriter, r *http.Request) error {
		v, err := of(h, r)
		if err != nil {
			return err
		}
		body, err := json.Marshal(v)
		if err != nil {
			return err
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body) // a client that has gone wants no other answer
		return nil
	}
}

func (h Handler) get(ctx context.Context, t mesosagent.Call_Type) (*mesosagent.Response, error) {
	return h.Do(ctx, &mesosagent.Call{Type: t.Enum()})
}

func bad(text string) error { return &api.Error{Code: http.StatusBadRequest, Text: text} }

func version(h Handler, r *http.Request) (any, error) {
	resp, err := h.get(r.Context(), mesosagent.Call_GET_VERSION)
	return map[string]string{"version": resp.GetGetVersion().GetVersionInfo().GetVersion()}, err
}

func flags(h Handler, r *http.Request) (any, error) {
	all, err := h.flags(r.Context())
	return map[string]any{"flags": all}, err
}

func (h Handler) flags(ctx context.Context) (map[string]string, error) {
	resp, err := h.get(ctx, mesosagent.Call_GET_FLAGS)
	all := map[string]string{}
	for _, f := range resp.GetGetFlags().GetFlags() {
		all[f.GetName()] = f.GetValue()
	}
	return all, err
}

func metrics(h Handler, r *http.Request) (any, error) {
	resp, err := h.Do(r.Context(), &mesosagent.Call{Type: mesosagent.Call_GET_METRICS.Enum(), GetMetrics: &mesosagent.Call_GetMetrics{}})
	all := map[string]float64{}
	for _, m := range resp.GetGetMetrics().GetMetrics() {
		all[m.GetName()] = m.GetValue()
	}
	return all, err
}
