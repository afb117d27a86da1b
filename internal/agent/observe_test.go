package agent

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/longshore/longshore/internal/config"
	"github.com/longshore/longshore/internal/obs"
)

// TestPodMetricsAreServedWhenTheFaceIsThere: not before the face is, and nothing when
// the config says so or there is no such face.
func TestPodMetricsAreServedWhenTheFaceIsThere(t *testing.T) {
	get := func(n *node, path string) (int, string) {
		t.Helper()
		w := httptest.NewRecorder()
		n.httpHandler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	of := func(change func(*config.Config)) *node {
		n := &node{cfg: config.Default(), metrics: obs.New(obs.Options{})}
		change(&n.cfg)
		return n
	}
	n := of(func(*config.Config) {})
	if code, _ := get(n, "/metrics/cadvisor"); code != http.StatusServiceUnavailable {
		t.Errorf("before the face is there: %d", code)
	}
	scrapes := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "pods") }))
	n.scrapes.Store(&scrapes)
	if code, body := get(n, "/metrics/cadvisor"); code != http.StatusOK || body != "pods" {
		t.Errorf("%d %q", code, body)
	}
	for what, n := range map[string]*node{
		"metrics.cadvisor = false": of(func(c *config.Config) { c.Metrics.Cadvisor = false }),
		"face.cri.enabled = false": of(func(c *config.Config) { c.Face.CRI.Enabled = false }),
	} {
		if code, _ := get(n, "/metrics"); code != http.StatusOK {
			t.Errorf("%s: /metrics answers %d", what, code)
		}
		if code, _ := get(n, "/metrics/cadvisor"); n.scrapes.Load() == nil && code != http.StatusNotFound {
			t.Errorf("%s: %d", what, code)
		}
	}
}
