package hub

import (
	"crypto/x509"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/obs"
)

// metrics serves the hub's metrics. Label values come from closed sets, so an id is never one.
func (h *Hub) metrics() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		obs.Connections(h.limits.Usage), newCollector(h), h.commits, h.rounds,
	)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// durations are the buckets of the histograms, in seconds.
func durations() []float64 {
	return []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
}

func histogram(name, help string) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: durations()})
}

// collector reads the inventory and the counters at each collection of metrics.
type collector struct {
	h                                                                              *Hub
	nodes, tasks, services, sessions, superseded, statuses, issued, clones, banned *prometheus.Desc
	rotating, missing, neverReady, dropped, refused, renewals, reached             *prometheus.Desc
	begins, ends, lines                                                            *prometheus.Desc
}

func newCollector(h *Hub) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("longshore_hub_"+name, help, labels, nil)
	}
	return &collector{
		h:          h,
		nodes:      desc("nodes", "Nodes, by state.", "state"),
		tasks:      desc("tasks", "Tasks, by state.", "state"),
		services:   desc("services", "Services."),
		sessions:   desc("sessions", "Nodes with a session at this hub."),
		superseded: desc("sessions_superseded_total", "Sessions that ended at this hub because their node began another one."),
		statuses:   desc("task_statuses_total", "Statuses of tasks that this hub has stored."),
		issued:     desc("certificates_issued_total", "Certificates that this hub has issued."),
		clones:     desc("nodes_cloned", "Nodes with a certificate that was used at two addresses."),
		banned:     desc("nodes_banned", "Cloned nodes that are refused."),
		rotating:   desc("root_rotating", "Whether a root rotation is in progress, 0 or 1."),
		neverReady: desc("nodes_never_ready", "Nodes that have joined and have never had a session."),
		dropped:    desc("nodes_dropped_total", "Nodes that this hub has removed because too many had never had a session."),
		refused:    desc("joins_refused_total", "Joins that this hub has refused because of the rate limit."),
		renewals:   desc("renewals_refused_total", "Certificate renewals that this hub has refused because of the rate limit."),
		reached:    desc("etcd_reachable", "Whether etcd answers this hub, 0 or 1."),
		lines:      desc("audit_lines_total", "Lines of this hub's audit trail since its start, by result: written or lost.", "result"),
		begins:     desc("certificate_not_before_seconds", "When the certificate of the hub, or of its authority, began, in seconds since 1970.", "kind"),
		ends:       desc("certificate_not_after_seconds", "When the certificate of the hub, or of its authority, expires, in seconds since 1970.", "kind"),
		missing:    desc("root_missing_nodes", "Nodes that have no certificate of the new root yet."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	set := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	count := func(d *prometheus.Desc, v uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	nodes := map[string]int{}
	for _, name := range swarmv1.NodeStatus_State_name { // also those that no node has
		nodes[strings.ToLower(name)] = 0
	}
	for _, n := range c.h.Inventory.Nodes() {
		nodes[strings.ToLower(n.GetStatus().GetState().String())]++
	}
	for state, n := range nodes {
		set(c.nodes, n, state)
	}
	tasks := map[string]int{}
	for _, name := range swarmv1.TaskState_name {
		tasks[strings.ToLower(name)] = 0
	}
	for _, t := range c.h.Inventory.Tasks() {
		tasks[strings.ToLower(t.State().String())]++
	}
	for state, n := range tasks {
		set(c.tasks, n, state)
	}
	set(c.services, len(c.h.Inventory.Services()))
	sessions, superseded := c.h.Dispatcher.Counts()
	set(c.sessions, sessions)
	count(c.superseded, superseded)
	count(c.statuses, c.h.Inventory.Stored())
	count(c.issued, c.h.CA.Authority.Issued())
	set(c.neverReady, len(c.h.CA.NeverReady()))
	count(c.dropped, c.h.CA.NodesDropped())
	count(c.refused, c.h.CA.JoinsRefused())
	count(c.renewals, c.h.CA.RenewalsRefused())
	banned, clones := c.h.Inventory.Banned()
	set(c.clones, clones)
	set(c.banned, len(banned))
	reached := 1
	if _, lost := c.h.Peers.LastContact(); lost {
		reached = 0
	}
	set(c.reached, reached)
	if c.h.Trail != nil {
		counts := c.h.Trail.Counts()
		for result, n := range map[string]uint64{"written": counts.Written, "lost": counts.Lost} {
			ch <- prometheus.MustNewConstMetric(c.lines, prometheus.CounterValue, float64(n), result)
		}
	}
	if own, issuer, err := c.h.CA.Authority.Certificates(); err == nil {
		for kind, cert := range map[string]*x509.Certificate{"hub": own, "authority": issuer} {
			set(c.begins, int(cert.NotBefore.Unix()), kind)
			set(c.ends, int(cert.NotAfter.Unix()), kind)
		}
	}
	rotating, missing := 0, 0
	if c.h.CA.Authority.Rotating() {
		rotating, missing = 1, len(c.h.CA.Missing())
	}
	set(c.rotating, rotating)
	set(c.missing, missing)
}
