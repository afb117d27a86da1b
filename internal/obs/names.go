package obs

import "github.com/prometheus/client_golang/prometheus"

// UnansweredNames collects how many questions the name server of networks did not answer because of a
// bound, by sandbox. last is called at every scrape.
func UnansweredNames(last func() map[string]uint64) prometheus.Collector {
	return unansweredNames{last, prometheus.NewDesc("longshore_name_questions_unanswered_total", "Questions and connections of a sandbox that the name server of networks dropped or refused at a bound, of sandboxes that had any.", []string{"sandbox"}, nil)}
}

type unansweredNames struct {
	last func() map[string]uint64
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (u unansweredNames) Describe(ch chan<- *prometheus.Desc) { ch <- u.desc }

// Collect implements prometheus.Collector.
func (u unansweredNames) Collect(ch chan<- prometheus.Metric) {
	for sandbox, n := range u.last() {
		ch <- prometheus.MustNewConstMetric(u.desc, prometheus.CounterValue, float64(n), sandbox)
	}
}
