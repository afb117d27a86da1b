package agent

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestSwarmCertificateMetrics: a node in no Swarm has none.
func TestSwarmCertificateMetrics(t *testing.T) {
	for _, tt := range []struct {
		begins, ends time.Time
		want         map[string]float64
	}{
		{time.Time{}, time.Time{}, map[string]float64{}},
		{time.Unix(100, 0), time.Unix(200, 0), map[string]float64{"longshore_swarm_certificate_not_before_seconds": 100, "longshore_swarm_certificate_not_after_seconds": 200}},
	} {
		r := prometheus.NewPedanticRegistry()
		r.MustRegister(newSwarmCertificate(func() (begins, ends time.Time) { return tt.begins, tt.ends }))
		found, err := r.Gather()
		if err != nil || len(found) != len(tt.want) {
			t.Errorf("%v, %v", found, err)
		}
		for _, f := range found {
			if v := f.GetMetric()[0].GetGauge().GetValue(); v != tt.want[f.GetName()] {
				t.Errorf("%s is %v", f.GetName(), v)
			}
		}
	}
}
