package view

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/face/mesos/api"
)

// Documents serves the documents that older tools of Mesos read by GET, each path a JSON document:
// those of an agent, and two of a master, which tools use to find agents and tasks. It gets all it
// shows by calls of the API.
type Documents struct {
	// Do executes one call. An *api.Error is sent as it is.
	Do func(ctx context.Context, call *mesosagent.Call) (*mesosagent.Response, error)
	// API serves all other paths.
	API http.Handler
}

// document writes one document.
type document func(h Documents, w http.ResponseWriter, r *http.Request) error

// healthPath is the path that answers as soon as the agent runs.
const healthPath = "/health"

// documents are the documents by path.
func documents() map[string]document {
	return map[string]document{
		healthPath:            func(Documents, http.ResponseWriter, *http.Request) error { return nil },
		"/version":            jsonDocument(versionDocument),
		"/flags":              jsonDocument(flagsDocument),
		"/metrics/snapshot":   jsonDocument(metricsDocument),
		"/state":              jsonDocument(stateDocument),
		"/containers":         jsonDocument(containersDocument),
		"/monitor/statistics": jsonDocument(statisticsDocument),
		"/slaves":             jsonDocument(slavesDocument),
		"/tasks":              jsonDocument(tasksDocument),
		"/files/browse":       jsonDocument(browseDocument),
		"/files/read":         jsonDocument(readDocument),
		"/files/debug":        jsonDocument(debugDocument),
		"/files/download":     downloadFile,
	}
}

// agentPrefix may precede the path of an agent's document.
const agentPrefix = "/slave(1)"

// trimPath removes the optional prefix and trailing slashes.
func trimPath(path string) string {
	return strings.TrimRight(strings.TrimPrefix(path, agentPrefix), "/")
}

// documentAt returns the document at path, nil for none.
func documentAt(path string) document { return documents()[trimPath(path)] }

// IsDocument reports whether there is a document at path.
func IsDocument(path string) bool { return documentAt(path) != nil }

// IsHealth reports whether path is the one that answers as soon as the agent runs.
func IsHealth(path string) bool { return trimPath(path) == healthPath }

// ServeHTTP implements http.Handler.
func (h Documents) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := documentAt(r.URL.Path)
	switch {
	case p == nil:
		h.API.ServeHTTP(w, r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", http.MethodGet)
		api.WriteError(w, r, &api.Error{Code: http.StatusMethodNotAllowed, Text: "405 Method Not Allowed. Expecting one of { 'GET' }, but received '" + r.Method + "'."})
	default:
		if err := p(h, w, r); err != nil {
			api.WriteError(w, r, err)
		}
	}
}

// jsonDocument is a document with the value that of returns as JSON.
func jsonDocument(of func(h Documents, r *http.Request) (any, error)) document {
	return func(h Documents, w http.ResponseWriter, r *http.Request) error {
		v, err := of(h, r)
		if err != nil {
			return err
		}
		body, err := json.Marshal(v)
		if err != nil {
			return err
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body) // fails only if the client is gone
		return nil
	}
}

// get executes a call that has no parameters.
func (h Documents) get(ctx context.Context, t mesosagent.Call_Type) (*mesosagent.Response, error) {
	return h.Do(ctx, &mesosagent.Call{Type: t.Enum()})
}

func badRequest(text string) error { return &api.Error{Code: http.StatusBadRequest, Text: text} }

func versionDocument(h Documents, r *http.Request) (any, error) {
	resp, err := h.get(r.Context(), mesosagent.Call_GET_VERSION)
	return map[string]string{"version": resp.GetGetVersion().GetVersionInfo().GetVersion()}, err
}

func flagsDocument(h Documents, r *http.Request) (any, error) {
	all, err := h.flags(r.Context())
	return map[string]any{"flags": all}, err
}

func (h Documents) flags(ctx context.Context) (map[string]string, error) {
	resp, err := h.get(ctx, mesosagent.Call_GET_FLAGS)
	all := map[string]string{}
	for _, f := range resp.GetGetFlags().GetFlags() {
		all[f.GetName()] = f.GetValue()
	}
	return all, err
}

func metricsDocument(h Documents, r *http.Request) (any, error) {
	resp, err := h.Do(r.Context(), &mesosagent.Call{Type: mesosagent.Call_GET_METRICS.Enum(), GetMetrics: &mesosagent.Call_GetMetrics{}})
	all := map[string]float64{}
	for _, m := range resp.GetGetMetrics().GetMetrics() {
		all[m.GetName()] = m.GetValue()
	}
	return all, err
}
