package hubload

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// Options are what is measured.
type Options struct {
	// Ours and Theirs are the programs test/bench/hubserver and test/bench/swarmkit/dispatcher.
	// Without the second, only ours is measured.
	Ours, Theirs string
	// Disk and Memory are directories of the two kinds, "" of one that is not measured. Theirs has
	// no files at all in memory.
	Disk, Memory string
	// Nodes are how many nodes there are, in one round each.
	Nodes []int
}

// result is one round's.
type result struct {
	registered float64 // per second
	session    float64 // KB resident, of one
	beat       float64 // CPU of one, µs
	idle       float64 // % of a core, with heartbeats when they are due
	p50, p99   float64 // of an assignment, ms
	last       float64 // one task to each node, s
	write      float64 // their writing, s
	cost       float64 // CPU of one of them, µs
	statuses   float64 // committed per second
	status     float64 // CPU of one, µs
	lost       int
}

// Run measures, and prints a table.
func Run(ctx context.Context, o Options) error {
	type kind struct {
		name, dir string
		argv      func(dir string) []string
	}
	var kinds []kind
	for _, on := range []struct{ name, dir string }{{"disk", o.Disk}, {"memory", o.Memory}} {
		if on.dir == "" {
			continue
		}
		kinds = append(kinds, kind{"longshore, " + on.name, on.dir, func(dir string) []string { return []string{o.Ours, "-dir", dir} }})
		if o.Theirs != "" {
			kinds = append(kinds, kind{"swarmkit, " + on.name, on.dir, func(dir string) []string {
				if on.name == "memory" {
					return []string{o.Theirs}
				}
				return []string{o.Theirs, "-dir", dir}
			}})
		}
	}
	fmt.Printf("%-18s %6s %9s %8s %8s %7s %7s %7s %8s %8s %9s %9s %8s %5s\n", "", "nodes", "reg/s", "KB/sess", "µs/beat", "idle %", "p50 ms", "p99 ms", "last s", "write s", "µs/task", "status/s", "µs/stat", "lost")
	for _, n := range o.Nodes {
		for _, k := range kinds {
			f, err := round(ctx, k.dir, n, k.argv)
			if err != nil {
				return fmt.Errorf("%s, %d nodes: %w", k.name, n, err)
			}
			fmt.Printf("%-18s %6d %9.0f %8.1f %8.0f %7.1f %7.2f %7.2f %8.3f %8.3f %9.0f %9.0f %8.0f %5d\n",
				k.name, n, f.registered, f.session, f.beat, f.idle, f.p50, f.p99, f.last, f.write, f.cost, f.statuses, f.status, f.lost)
		}
	}
	return nil
}

// The sizes of a round.
const (
	beats   = 20_000 // heartbeats, as fast as they are answered
	singles = 200    // tasks one after the other
	reports = 10_000 // statuses
	idleFor = 10 * time.Second
)

// round measures a server of its own.
func round(ctx context.Context, under string, n int, argv func(string) []string) (f result, err error) {
	dir, err := os.MkdirTemp(under, "longshore-bench-hub-")
	if err != nil {
		return f, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		return f, err
	}
	s, err := start(ctx, dir, argv(state)...)
	if err != nil {
		return f, err
	}
	defer s.stop()
	c, err := seed(s, n)
	if err != nil {
		return f, err
	}
	defer c.close()
	m := measurement{s, c, n, &f}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{{"sessions", m.sessions}, {"heartbeats", m.heartbeats}, {"assignments", m.assignments}, {"one task to each", m.each}, {"statuses", m.statuses}} {
		if err := step.do(ctx); err != nil {
			return f, s.failed(step.name, err)
		}
	}
	down, err := s.ask(request{Op: "lost"})
	f.lost = max(down.N, int(c.lost.Load()))
	return f, err
}

// measurement is a round under way.
type measurement struct {
	s *server
	c *clients
	n int
	f *result
}

// sessions opens all sessions, and looks at what they take.
func (m measurement) sessions(ctx context.Context) error {
	before, err := m.s.memory(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := m.c.each(func(_ context.Context, n *client) error { return n.open() }); err != nil {
		return err
	}
	m.f.registered = float64(m.n) / time.Since(began).Seconds()
	after, err := m.s.memory(ctx)
	m.f.session = float64(after-before) / 1024 / float64(m.n)
	return err
}

// heartbeats are sent when they are due, and then as fast as they are answered.
func (m measurement) heartbeats(ctx context.Context) error {
	used, began := m.s.cpu(), time.Now()
	select {
	case <-time.After(idleFor):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	m.f.idle = 100 * (m.s.cpu() - used).Seconds() / time.Since(began).Seconds()
	used, sent := m.s.cpu(), m.c.beats.Load()
	for range max(1, beats/m.n) {
		if err := m.c.each(func(ctx context.Context, n *client) error { _, err := n.beat(ctx); return err }); err != nil {
			return err
		}
	}
	m.f.beat = float64((m.s.cpu() - used).Microseconds()) / float64(m.c.beats.Load()-sent)
	return nil
}

// assign assigns a task to each of some nodes, and returns when they were written and when they
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
		a, arrived, err := m.assign(fmt.Sprintf("single-%d-", i), []string{m.c.ids[i*7919%m.n]})
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
	a, arrived, err := m.assign("each-", m.c.ids)
	if err != nil {
		return err
	}
	m.f.cost = float64((m.s.cpu() - used).Microseconds()) / float64(m.n)
	for _, at := range arrived {
		m.f.last = max(m.f.last, float64(at.UnixNano()-a.Began)/1e9)
	}
	m.f.write = float64(a.Ended-a.Began) / 1e9
	return nil
}

// statuses have the nodes tell that each of their tasks runs, one status in a call as swarmkit's
// agents do; a node has several calls under way when there are few nodes.
func (m measurement) statuses(context.Context) error {
	var tasks [][]string // by round, then by node
	for r := range max(1, reports/m.n) {
		prefix := fmt.Sprintf("told-%d-", r)
		if _, _, err := m.assign(prefix, m.c.ids); err != nil {
			return err
		}
		all := make([]string, m.n)
		for i := range all {
			all[i] = fmt.Sprint(prefix, i)
		}
		tasks = append(tasks, all)
	}
	used, began := m.s.cpu(), time.Now().UnixNano()
	group, ctx := errgroup.WithContext(m.c.ctx)
	group.SetLimit(parallel)
	for _, all := range tasks {
		for i, n := range m.c.nodes {
			group.Go(func() error { return n.report(ctx, all[i]) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	total := len(tasks) * m.n
	a, err := m.s.ask(request{Op: "reached", Prefix: "told-", N: total})
	if err != nil {
		return err
	}
	m.f.statuses = float64(total) / (float64(a.Ended-began) / 1e9)
	m.f.status = float64((m.s.cpu() - used).Microseconds()) / float64(total)
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
