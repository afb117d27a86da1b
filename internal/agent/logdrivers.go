package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/logs/ship"
)

// logDrivers follows the logs of containers with a log driver, and counts the lines that their services did not get.
type logDrivers struct {
	ship.Runner
	lines, gaps *prometheus.CounterVec

	mu    sync.Mutex // guards noted
	noted map[core.ID]time.Time
}

// notePause is the shortest time between two events about lost lines of one container.
const notePause = time.Minute

func newLogDrivers(n *node) (*logDrivers, error) {
	labels := []string{"owner", "driver"}
	troubles := &troubleMetrics{desc: prometheus.NewDesc("longshore_log_driver_containers",
		"Containers whose lines do not arrive at the service of their log driver now, by owner, driver and state: failing, which is retried, or stopped.",
		[]string{"owner", "driver", "state"}, nil)}
	l := &logDrivers{
		lines: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "longshore_log_driver_lost_lines_total", Help: "Lines of containers that the service of their log driver did not get, by owner and driver.",
		}, labels),
		gaps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "longshore_log_driver_gaps_total", Help: "Gaps of unknown size in the lines for the service of a log driver, by owner and driver.",
		}, labels),
		noted: map[core.ID]time.Time{},
	}
	l.Runner = ship.Runner{Dir: filepath.Join(n.cfg.Agent.Root, "log-drivers"), Log: n.log, Default: n.cfg.Logs, Lost: func(c *core.Container, lines int, why string) { l.lost(n, c, lines, why) }}
	troubles.of = &l.Runner
	// The keeper writes logs there before tend runs. Without the directory, a finding says so.
	if err := l.Open(); err != nil {
		n.log.Error("cannot make the directory of log drivers", "error", err)
	}
	return l, errors.Join(n.metrics.Register(l.lines), n.metrics.Register(l.gaps), n.metrics.Register(troubles))
}

// lost counts lost lines, and notes them in the event log.
func (l *logDrivers) lost(n *node, c *core.Container, lines int, why string) {
	name, count := c.Config.LogDriver.Name, "an unknown number of"
	if lines < 0 {
		l.gaps.WithLabelValues(string(c.Owner), name).Inc()
	} else {
		l.lines.WithLabelValues(string(c.Owner), name).Add(float64(lines))
		count = fmt.Sprint(lines)
	}
	l.mu.Lock()
	recent := time.Since(l.noted[c.ID]) < notePause
	if !recent {
		l.noted[c.ID] = time.Now()
	}
	for id, at := range l.noted {
		if time.Since(at) > notePause {
			delete(l.noted, id)
		}
	}
	l.mu.Unlock()
	if !recent {
		n.record(fmt.Sprintf("log driver %s: %s lines of container %s were lost: %s", name, count, c.Name(), why))
	}
}

func (l *logDrivers) tend(ctx context.Context, n *node) {
	l.Run(ctx, n.engine.All().Stored.Containers)
}

// troubleMetrics is the metric of troubles with log services.
type troubleMetrics struct {
	of   *ship.Runner
	desc *prometheus.Desc
}

func (m *troubleMetrics) Describe(ch chan<- *prometheus.Desc) { ch <- m.desc }

func (m *troubleMetrics) Collect(ch chan<- prometheus.Metric) {
	type key struct{ owner, driver, state string }
	count := map[key]int{}
	list, _ := m.of.Troubles()
	for _, t := range list {
		k := key{string(t.Owner), t.Driver, "failing"}
		if t.Stopped {
			k.state = "stopped"
		}
		count[k]++
	}
	for k, n := range count {
		ch <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, float64(n), k.owner, k.driver, k.state)
	}
}

// failingPatience is how long a log service may be down before a finding says so.
const failingPatience = time.Minute

// logDriverFinding reports troubles with log services.
func logDriverFinding(list []ship.Trouble, followed int, now time.Time) control.Finding {
	const name = "log drivers"
	stopped, failing, text := 0, 0, ""
	for _, t := range list {
		switch {
		case t.Stopped:
			stopped++
		case now.Sub(t.Since) >= failingPatience:
			failing++
		default:
			continue
		}
		if text == "" || t.Stopped && stopped == 1 {
			text = fmt.Sprintf("%s (%s): %s: %v", t.Name, t.Owner, t.Driver, t.Err)
		}
	}
	switch {
	case stopped > 0:
		return fail(name, "correct the options and create the container again; `longshore logs` has the lines", "%d containers have a log driver that cannot start, such as %s", stopped, text)
	case failing > 0:
		return warn(name, "repair the service or the driver's files; the lines follow as far as the node's own log still has them", "the lines of %d containers do not arrive, such as %s", failing, text)
	default:
		return ok(name, "%d logs are followed", followed)
	}
}

func logsFinding(n *node) control.Finding {
	list, followed := n.drivers.Troubles()
	return logDriverFinding(list, followed, time.Now())
}
