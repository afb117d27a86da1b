package hubload

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// Options select the measurements.
type Options struct {
	// Ours and Theirs are the programs test/bench/hubserver and test/bench/swarmkit/dispatcher.
	// Without the second, only ours is measured.
	Ours, Theirs string
	// Disk and Memory are directories of the two kinds, "" of one that is not measured. Theirs has
	// no files at all in memory.
	Disk, Memory string
	// Nodes are how many nodes there are, in one round each.
	Nodes []int
	// Limit is how long a round may take.
	Limit time.Duration
}

// result is one round's.
type result struct {
	session  float64 // KB resident, of one
	beat     float64 // CPU of one, µs
	p50, p99 float64 // of an assignment, ms
	last     float64 // one task to each node, s
	cost     float64 // CPU of one of them, µs
	statuses float64 // committed per second
	status   float64 // CPU of one, µs
	// Of a global service, scheduled and stored by our hub: CPU of a task in µs, all tasks running in s, and the
	// longest time of a heartbeat meanwhile in ms.
	scheduled, deployed, slowest float64
	lost                         int
	// steps is how many are done; values of others are not known.
	steps int
}

// The steps of a round, in their order.
const (
	_ = iota
	sessionsDone
	heartbeatsDone
	assignmentsDone
	eachDone
	statusesDone
	globalDone
)

// kind is a server that is measured.
type kind struct {
	name, dir string
	schedules bool // it has a scheduler
	argv      func(dir string) []string
}

func (o Options) kinds() (kinds []kind) {
	for _, on := range []struct{ name, dir string }{{"disk", o.Disk}, {"memory", o.Memory}} {
		if on.dir == "" {
			continue
		}
		kinds = append(kinds, kind{"Longshore, " + on.name, on.dir, true, func(dir string) []string { return []string{o.Ours, "-dir", dir} }})
		if o.Theirs != "" {
			kinds = append(kinds, kind{"swarmkit, " + on.name, on.dir, false, func(dir string) []string {
				if on.name == "memory" {
					return []string{o.Theirs}
				}
				return []string{o.Theirs, "-dir", dir}
			}})
		}
	}
	return kinds
}

// Run measures, logs its steps on the standard error, and prints a table. The table has the partial
// results of a round that does not end in time; then there is an error too.
func Run(ctx context.Context, o Options) error {
	began := time.Now()
	var lines []string
	var failed error
	for _, n := range o.Nodes {
		for i, k := range o.kinds() {
			about := ""
			if i == 0 {
				about = thousands(n)
			}
			fmt.Fprintf(os.Stderr, "%s, %d nodes:\n", k.name, n)
			limited, cancel := context.WithTimeoutCause(ctx, o.Limit, fmt.Errorf("it takes longer than %s", o.Limit))
			f, err := round(limited, k, n)
			cancel()
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("%s, %d nodes: %w", k.name, n, err))
			}
			lines = append(lines, f.line(about, k.name))
			if f.lost > 0 {
				failed = errors.Join(failed, fmt.Errorf("%s, %d nodes: %d were lost", k.name, n, f.lost))
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	fmt.Print("| nodes | | memory of a session | CPU of a heartbeat | of an assignment | of a status | an assignment, p50 | p99 | a task to each node | committed statuses | of a global service: CPU of a task | until all run | slowest heartbeat |\n" +
		"|---|---|---|---|---|---|---|---|---|---|---|---|---|\n" + strings.Join(lines, ""))
	fmt.Fprintf(os.Stderr, "all of it took %s\n", time.Since(began).Round(time.Second))
	return failed
}

// line is the table's line of a round.
func (f result) line(nodes, name string) string {
	cell := func(step int, format string, value float64) string {
		if f.steps < step {
			return "–"
		}
		return fmt.Sprintf(format, value)
	}
	statuses := "–"
	if f.steps >= statusesDone {
		statuses = thousands(int(f.statuses)) + "/s"
	}
	cells := []string{
		nodes, name, cell(sessionsDone, "%.1f KB", f.session), cell(heartbeatsDone, "%.0f µs", f.beat), cell(eachDone, "%.0f µs", f.cost), cell(statusesDone, "%.0f µs", f.status),
		cell(assignmentsDone, "%.1f ms", f.p50), cell(assignmentsDone, "%.1f ms", f.p99), cell(eachDone, "%.2f s", f.last), statuses,
		cell(globalDone, "%.0f µs", f.scheduled), cell(globalDone, "%.1f s", f.deployed), cell(globalDone, "%.0f ms", f.slowest),
	}
	return strings.ReplaceAll("| "+strings.Join(cells, " | ")+" |\n", "|  |", "| |")
}

// thousands writes a number as people read it.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// The sizes of a round.
const (
	beats   = 40_000 // heartbeats, as fast as they are answered
	singles = 100    // tasks one after the other
	reports = 10_000 // statuses
	// stored is how long statuses are awaited: a server that stores few of them is not awaited to the end.
	stored = 20 * time.Second
)

// round measures a server of its own. Beside an error it returns the results so far.
func round(ctx context.Context, k kind, n int) (f result, err error) {
	dir, err := os.MkdirTemp(k.dir, "longshore-bench-hub-")
	if err != nil {
		return f, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		return f, err
	}
	s, err := start(ctx, dir, k.argv(state)...)
	if err != nil {
		return f, err
	}
	defer s.stop()
	c, err := seed(ctx, s, n)
	if err != nil {
		return f, err
	}
	defer c.close()
	m := measurement{s, c, n, &f}
	if err := m.prepare(); err != nil {
		return f, err
	}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
		far  func() int64 // how far it is
	}{
		{"sessions", m.sessions, c.opened.Load},
		{"heartbeats", m.heartbeats, c.beats.Load},
		{"assignments one after the other", m.assignments, c.landed.Load},
		{"one task to each", m.each, c.landed.Load},
		{"statuses", m.statuses, c.reported.Load},
		{"a global service", m.global, c.reported.Load},
	} {
		if step.name == "a global service" && !k.schedules {
			break
		}
		began, used, before := time.Now(), s.cpu(), step.far()
		stop := progress(step.name, func() int64 { return step.far() - before })
		err := step.do(ctx)
		stop()
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return f, s.failed(fmt.Sprintf("%s, %d done in %s", step.name, step.far()-before, time.Since(began).Round(time.Second)), err)
		}
		f.steps++
		fmt.Fprintf(os.Stderr, "  %s: %.1f s, of which the server computed %.1f\n", step.name, time.Since(began).Seconds(), (s.cpu() - used).Seconds())
	}
	down, err := s.ask(request{Op: "lost"})
	f.lost = max(down.N, int(c.lost.Load()))
	return f, err
}

// progress tells how far a step is while it takes long.
func progress(name string, far func() int64) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(10 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Fprintf(os.Stderr, "  %s: %d so far\n", name, far())
			case <-end:
				return
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

// measurement is a round under way.
type measurement struct {
	s *server
	c *clients
	n int
	f *result
}

// prepare makes the tasks before their assignment, for servers that need this.
func (m measurement) prepare() error {
	var one, all []string
	for i := range singles {
		one = append(one, single(i))
	}
	for r := range m.rounds() {
		all = append(all, reporting(r))
	}
	if _, err := m.s.ask(request{Op: "prepare", Prefixes: one, N: 1}); err != nil {
		return err
	}
	_, err := m.s.ask(request{Op: "prepare", Prefixes: all, N: m.n})
	return err
}

// rounds is how many tasks each node has for the statuses.
func (m measurement) rounds() int { return max(1, reports/m.n) }

// single and reporting begin the ids of tasks.
func single(i int) string    { return fmt.Sprintf("single-%d-", i) }
func reporting(r int) string { return fmt.Sprintf("told-%d-", r) }

// sessions opens all sessions, and measures their memory.
func (m measurement) sessions(ctx context.Context) error {
	before, err := m.s.memory(ctx)
	if err != nil {
		return err
	}
	if err := m.c.each(func(_ context.Context, n *client) error { return n.open() }); err != nil {
		return err
	}
	after, err := m.s.memory(ctx)
	m.f.session = float64(after-before) / 1024 / float64(m.n)
	return err
}

// heartbeats are sent as fast as they are answered, beside those that are due.
func (m measurement) heartbeats(context.Context) error {
	used, sent := m.s.cpu(), m.c.beats.Load()
	for range max(1, beats/m.n) {
		if err := m.c.each(func(ctx context.Context, n *client) error { _, err := n.beat(ctx); return err }); err != nil {
			return err
		}
	}
	m.f.beat = float64((m.s.cpu() - used).Microseconds()) / float64(m.c.beats.Load()-sent)
	return nil
}

// assign assigns a task to each of some nodes, and returns when that began and when the tasks
// have arrived.
func (m measurement) assign(prefix string, nodes []string) (a answer, arrived map[string]time.Time, err error) {
	if a, err = m.s.ask(request{Op: "assign", Prefix: prefix, Nodes: nodes}); err != nil {
		return a, nil, err
	}
	arrived, err = m.c.all(len(nodes))
	return a, arrived, err
}

// assignments gives tasks to nodes one after the other.
func (m measurement) assignments(context.Context) error {
	var took []float64
	for i := range singles {
		a, arrived, err := m.assign(single(i), []string{m.c.ids[i*7919%m.n]})
		if err != nil {
			return err
		}
		for _, at := range arrived {
			took = append(took, float64(at.UnixNano()-a.Began)/1e6)
		}
	}
	slices.Sort(took)
	at := func(q float64) float64 { return took[max(0, int(math.Ceil(q*float64(len(took))))-1)] }
	m.f.p50, m.f.p99 = at(0.5), at(0.99)
	_, err := m.s.ask(request{Op: "clear", Prefix: "single-"})
	return err
}

// each gives one task to each node.
func (m measurement) each(context.Context) error {
	used := m.s.cpu()
	a, arrived, err := m.assign(reporting(0), m.c.ids)
	if err != nil {
		return err
	}
	m.f.cost = float64((m.s.cpu() - used).Microseconds()) / float64(m.n)
	for _, at := range arrived {
		m.f.last = max(m.f.last, float64(at.UnixNano()-a.Began)/1e9)
	}
	return nil
}

// statuses have the nodes tell that each of their tasks runs, one status in a call as swarmkit's
// agents do; a node has several calls under way when there are few nodes.
func (m measurement) statuses(context.Context) error {
	for r := 1; r < m.rounds(); r++ {
		if _, _, err := m.assign(reporting(r), m.c.ids); err != nil {
			return err
		}
	}
	used, began := m.s.cpu(), time.Now().UnixNano()
	group, ctx := errgroup.WithContext(m.c.ctx)
	group.SetLimit(parallel)
	for r := range m.rounds() {
		for i, n := range m.c.nodes {
			group.Go(func() error { return n.report(ctx, fmt.Sprint(reporting(r), i)) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	a, err := m.s.ask(request{Op: "reached", Prefix: "told-", N: m.rounds() * m.n, Within: stored})
	if err != nil {
		return err
	}
	if a.N == 0 {
		return fmt.Errorf("no status was stored in %s", stored)
	}
	m.f.statuses = float64(a.N) / (float64(a.Ended-began) / 1e9)
	m.f.status = float64((m.s.cpu() - used).Microseconds()) / float64(a.N)
	return nil
}

// Parse reads a list of numbers of nodes.
func Parse(list string) (nodes []int, err error) {
	for word := range strings.SplitSeq(list, ",") {
		var n int
		if _, err := fmt.Sscan(word, &n); err != nil || n < 1 {
			return nil, fmt.Errorf("%q is no number of nodes", word)
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}
