package agent

import (
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/longshore/longshore/internal/caller"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/trail"
	"github.com/longshore/longshore/internal/trail/verbs"
)

// openTrail opens the audit trail, if the configuration wants one. An agent that cannot open it starts without one: its containers
// matter more.
func openTrail(n *node, open *closers) error {
	c := n.cfg.Audit
	if !c.Enabled {
		return nil
	}
	o := trail.Options{Dir: filepath.Join(n.cfg.Agent.Root, "audit"), Bytes: c.Bytes, Files: c.Files, Logger: n.log}
	if c.Journal {
		o.Copy = trail.Journal()
	}
	l, err := trail.Open(o)
	if err != nil {
		n.log.Error("the node keeps no audit trail", "error", err)
		return nil
	}
	open.add(l.Close) // after records and images, because a call that is cut off may still change them
	n.trail = l
	return n.metrics.Register(auditMetrics(l.Counts))
}

// audited returns the trail for the faces; nil if there is none.
func audited(l *trail.Log) caller.Audit {
	if l == nil {
		return nil
	}
	return l
}

// auditPolicies returns the policy that writes the trail.
func auditPolicies(l *trail.Log) []core.Policy {
	if l == nil {
		return nil
	}
	return []core.Policy{verbs.Policy{Log: l}}
}

// auditMetrics collects how many lines of the audit trail were written and lost.
func auditMetrics(counts func() trail.Counts) prometheus.Collector {
	return auditCollector{counts, prometheus.NewDesc("longshore_audit_lines_total", "Lines of the audit trail since the agent's start, by result: written, lost, or not_copied to the journal.", []string{"result"}, nil)}
}

type auditCollector struct {
	counts func() trail.Counts
	lines  *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (a auditCollector) Describe(ch chan<- *prometheus.Desc) { ch <- a.lines }

// Collect implements prometheus.Collector.
func (a auditCollector) Collect(ch chan<- prometheus.Metric) {
	c := a.counts()
	for result, n := range map[string]uint64{"written": c.Written, "lost": c.Lost, "not_copied": c.NotCopied} {
		ch <- prometheus.MustNewConstMetric(a.lines, prometheus.CounterValue, float64(n), result)
	}
}
