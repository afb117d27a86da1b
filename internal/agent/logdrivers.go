package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
	l := &logDrivers{
		lines: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "longshore_log_driver_lost_lines_total", Help: "Lines of containers that the service of their log driver did not get, by owner and driver.",
		}, labels),
		gaps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "longshore_log_driver_gaps_total", Help: "Gaps of unknown size in the lines for the service of a log driver, by owner and driver.",
		}, labels),
		noted: map[core.ID]time.Time{},
	}
	l.Runner = ship.Runner{Dir: filepath.Join(n.cfg.Agent.Root, "log-drivers"), Log: n.log, Lost: func(c *core.Container, lines int, why string) { l.lost(n, c, lines, why) }}
	return l, errors.Join(n.metrics.Register(l.lines), n.metrics.Register(l.gaps))
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
