package agent

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/config"
	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/doctor"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/network"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/nlwrap"
)

// tendEvery is the time between two comparisons of the host's network.
const tendEvery = 2 * time.Second

// The findings and the entries of overlays, possibly thousands, come with every third and fifth comparison.
const (
	watchEvery    = 3
	overlaysEvery = 5
	// linksEvery is for a change without a message of the kernel. No such change is known, and a full node
	// takes milliseconds.
	linksEvery = 150
	// capacityEvery is for the room for more containers, which takes milliseconds to count on a full node.
	capacityEvery = 5 * watchEvery
)

// tended has the results of the comparisons.
type tended struct {
	serial sync.Mutex // serializes the comparisons

	mu     sync.Mutex // guards open, mended, at
	open   []kernel.Change
	mended string // the last one
	at     time.Time
}

// tend restores the host's network after changes by other programs, and watches findings, until ctx ends.
func (n *node) tend(ctx context.Context) {
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	changed := func() bool { return true }
	if m, err := nlwrap.OpenMonitor(); err != nil {
		n.log.WarnContext(ctx, "links and addresses will be listed at each comparison, because changes cannot be watched", "error", err)
	} else {
		defer func() { _ = m.Close() }()
		changed = m.Changed
	}
	var capacity control.Finding
	for round := 0; ; round++ {
		n.mend(changed() || round%linksEvery == 0, round%overlaysEvery == 0)
		if round%capacityEvery == 0 {
			capacity = capacityFinding(n, keeperPid(ctx, n))
		}
		if round%watchEvery == 0 {
			n.watch(ctx, capacity)
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case <-n.exposed:
				report(n, n.findings.Put(n.redundancy(ctx)))
			case <-tick.C:
				waiting = false
			}
		}
	}
}

// mend restores the host's network and returns the differences. Each difference gets a line in the log and an event.
func (n *node) mend(links, overlays bool) []kernel.Change {
	n.tended.serial.Lock()
	defer n.tended.serial.Unlock()
	list := network.Mend(n.network, links, overlays)
	n.tended.mu.Lock()
	before := n.tended.open
	n.tended.open = nil
	restored := 0
	for _, c := range list {
		if !c.Mended {
			n.tended.open = append(n.tended.open, c)
			continue
		}
		if restored++; restored == 1 {
			n.tended.mended, n.tended.at = c.Text, time.Now() // later ones are often consequences
		}
	}
	n.tended.mu.Unlock()
	known := map[string]bool{}
	for _, c := range before {
		known[c.Text] = true
	}
	for _, c := range list {
		if c.Mended {
			n.record("network: another program has changed something, which is restored: " + c.Text)
		} else if !known[c.Text] {
			n.record("network: another program has changed something: " + c.Text + ": " + c.Hint)
		}
	}
	return list
}

// record logs a note and appends it to the event log.
func (n *node) record(note string) {
	n.log.Warn("doctor", "note", note)
	if err := engine.Tell(n.engine.As(core.OwnerCLI), note); err != nil {
		n.log.Error("cannot append an event", "error", err)
	}
}

// watch checks the findings that change while the agent runs, and reports changes. The metrics have them too.
func (n *node) watch(ctx context.Context, capacity control.Finding) {
	waits, cancel := context.WithTimeout(ctx, keeperPatience)
	status, err := n.keeper.Status(waits)
	cancel()
	list := append(doctor.Space(n.cfg.Agent.Root, n.cfg.Agent.State), doctor.Devices(), keeperOf(status, err, n.cfg.Agent.State), doctor.Redundancy(status, err), n.networkFinding(ctx), connectionFinding(n.limits.Usage(), time.Now()), logsFinding(n), capacity)
	report(n, n.findings.Update(list))
}

// report logs findings with a changed status, and appends them to the event log.
func report(n *node, changed []control.Finding) {
	for _, f := range changed {
		n.record(strings.TrimSpace(fmt.Sprintf("%s is %s: %s", f.Name, f.Status, f.Detail)))
	}
}

// finding returns the finding of changes by other programs: those that are not restored, or the last one of an hour.
func (t *tended) finding(mode string) (control.Finding, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.open) > 0 {
		return warn("network", t.open[0].Hint, "%s: %s", mode, t.open[0].Text), true
	}
	if t.mended != "" && time.Since(t.at) < recently {
		return warn("network", "find the program that makes these changes", "%s: another program made a change %s ago, now reverted: %s", mode, time.Since(t.at).Round(time.Second), t.mended), true
	}
	return control.Finding{}, false
}

// Offline returns the findings that need no agent.
func Offline(cfg config.Config) (list []*longshorev1.Finding) {
	for _, f := range doctor.Offline(cfg) {
		list = append(list, &longshorev1.Finding{Name: f.Name, Status: string(f.Status), Detail: f.Detail, Hint: f.Hint})
	}
	return list
}
