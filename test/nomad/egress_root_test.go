package nomad

import (
	"strings"
	"testing"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestATasksEgressList is its key egress.
func TestATasksEgressList(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.NewReachWorld(t)
		r := newRigOn(t, nodetest.Options{Config: networktest.ReachDNS}, nil)
		for name, c := range map[string]struct {
			config map[string]any
			want   string
		}{
			"open":   {map[string]any{"network_mode": "bridge"}, networktest.ReachedAll},
			"listed": {map[string]any{"network_mode": "bridge", "egress": []string{networktest.ReachList}}, networktest.ReachedList},
		} {
			if out, result := r.said(r.given(name, networktest.ReachScript, c.config)); out != c.want {
				t.Errorf("%s: %q %v, want %q", name, out, result, c.want)
			}
		}
		for text, config := range map[string]map[string]any{
			"a network of the sandbox's own": {"egress": []string{"internet"}},
			"top-level":                      {"network_mode": "bridge", "egress": []string{"*.com"}},
		} {
			_, err := r.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: r.given("refused", "true", config)})
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%v: %v, want %s", config, err, text)
			}
		}
		r.Check()
	})
}
