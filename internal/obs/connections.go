package obs

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/longshore/longshore/internal/connlimit"
)

// Connections collects how many connections the listeners have, and how many were closed at a
// limit. usage is called at every scrape: connlimit.Table.Usage.
func Connections(usage func() []connlimit.Usage) prometheus.Collector {
	return connections{
		usage:  usage,
		open:   prometheus.NewDesc("longshore_connections_open", "Connections that are open, by socket.", []string{"socket"}, nil),
		limit:  prometheus.NewDesc("longshore_connections_limit", "How many connections may be open, by socket.", []string{"socket"}, nil),
		closed: prometheus.NewDesc("longshore_connections_closed_total", "Connections closed at a limit, by socket and reason (idle, unauthenticated, peer).", []string{"socket", "reason"}, nil),
	}
}

type connections struct {
	usage               func() []connlimit.Usage
	open, limit, closed *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c connections) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.open
	ch <- c.limit
	ch <- c.closed
}

// Collect implements prometheus.Collector.
func (c connections) Collect(ch chan<- prometheus.Metric) {
	for _, u := range c.usage() {
		ch <- prometheus.MustNewConstMetric(c.open, prometheus.GaugeValue, float64(u.Open), u.Name)
		ch <- prometheus.MustNewConstMetric(c.limit, prometheus.GaugeValue, float64(u.Max), u.Name)
		for reason, n := range map[string]uint64{"idle": u.ClosedIdle, "unauthenticated": u.ClosedUnauthenticated, "peer": u.Refused} {
			ch <- prometheus.MustNewConstMetric(c.closed, prometheus.CounterValue, float64(n), u.Name, reason)
		}
	}
}
