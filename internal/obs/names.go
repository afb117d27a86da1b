package obs

import "github.com/prometheus/client_golang/prometheus"

// UnansweredNames collects how many questions the name server of networks did not answer because of a
// bound, by sandbox. last is called at every scrape.
func UnansweredNames(last func() map[string]uint64) prometheus.Collector {
	return perSandbox{last, prometheus.NewDesc("longshore_name_questions_unanswered_total", "Questions and connections of a sandbox that the name server of networks dropped or refused at a bound, of sandboxes that had any.", []string{"sandbox"}, nil)}
}

// RefusedEgress collects how many names and connections egress lists refused, by sandbox. last is called at every scrape.
func RefusedEgress(last func() map[string]uint64) prometheus.Collector {
	return perSandbox{last, prometheus.NewDesc("longshore_egress_refused_total", "Names and connections of a sandbox that its egress list refused, of sandboxes that had any; connections beyond 100 a second are not counted.", []string{"sandbox"}, nil)}
}

type perSandbox struct {
	last func() map[string]uint64
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (u perSandbox) Describe(ch chan<- *prometheus.Desc) { ch <- u.desc }

// Collect implements prometheus.Collector.
func (u perSandbox) Collect(ch chan<- prometheus.Metric) {
	for sandbox, n := range u.last() {
		ch <- prometheus.MustNewConstMetric(u.desc, prometheus.CounterValue, float64(n), sandbox)
	}
}
