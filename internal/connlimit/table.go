package connlimit

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Table holds the limits of all listeners of an agent, for its metrics (obs.Connections) and for
// doctor. A nil Table makes limits and lists none.
type Table struct {
	log    *slog.Logger
	mu     sync.Mutex // guards limits
	limits map[string]*Limit
}

// NewTable returns an empty table. Its limits log to log.
func NewTable(log *slog.Logger) *Table { return &Table{log: log, limits: map[string]*Limit{}} }

// Limit makes a limit. It replaces an earlier one of the same name.
func (t *Table) Limit(o Options) *Limit {
	if t == nil {
		return newLimit(o, nil)
	}
	l := newLimit(o, t.log)
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.limits[o.Name]; old != nil {
		old.mu.Lock()
		l.counts = old.counts // a counter does not go back
		old.mu.Unlock()
	}
	t.limits[o.Name] = l
	return l
}

// Usage is the present state of a limit.
type Usage struct {
	Options
	Open, Pending int // Pending ones are not authenticated
	// The numbers of connections closed or refused at a limit.
	ClosedIdle, ClosedUnauthenticated, Refused uint64
	// Near is when Open was last 80 percent of Max or more; zero is never.
	Near time.Time
}

// Usage returns the state of all limits, by name.
func (t *Table) Usage() []Usage {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Usage, 0, len(t.limits))
	for _, l := range t.limits {
		all = append(all, l.usage())
	}
	slices.SortFunc(all, func(a, b Usage) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

func (l *Limit) usage() Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := Usage{
		Options: l.o, Open: len(l.slots), Pending: l.unknown, Near: l.nearAt,
		ClosedIdle: l.counts.idle, ClosedUnauthenticated: l.counts.unauthenticated, Refused: l.counts.refused,
	}
	if near(u.Open, u.Max) {
		u.Near = l.now()
	}
	return u
}
