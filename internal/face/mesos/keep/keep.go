// Package keep says how long what containers have left is kept: their records, which
// tell how they ended, and their sandboxes.
//
// It is pure: it looks at nothing but what it is given. Start at Node.Due.
package keep

import (
	"slices"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/face/mesos/sandbox"
)

// Node is what there is.
type Node struct {
	Containers []core.Container
	Sandboxes  []sandbox.Sandbox
}

// Due are the names of the containers whose time is over: those that ended delay ago,
// or of which there has been nothing but a sandbox for that long, as after a reboot.
// With a name goes all that is below it: one in which anything runs is not due, and
// what is below one that is due is not named.
func (n Node) Due(now time.Time, delay time.Duration) (due []string) {
	type state struct{ known, busy bool }
	of := map[string]state{}
	ripe := map[string]bool{}
	for i := range n.Containers {
		c := &n.Containers[i]
		name := string(c.Key)
		over := Over(c, now, delay)
		ripe[name] = over
		of[name] = state{known: true, busy: of[name].busy || !over}
		for up, _ := api.SplitID(name); up != ""; up, _ = api.SplitID(up) {
			s := of[up]
			s.busy = s.busy || !Ended(c)
			of[up] = s
		}
	}
	for _, s := range n.Sandboxes {
		if !of[s.ID].known && now.Sub(s.Used) >= delay {
			ripe[s.ID] = true
		}
	}
	for name, over := range ripe {
		if over && !of[name].busy {
			due = append(due, name)
		}
	}
	slices.Sort(due)
	top := due[:0]
	for _, name := range due {
		if !slices.ContainsFunc(top, func(t string) bool { return strings.HasPrefix(name, t+".") }) {
			top = append(top, name)
		}
	}
	return top
}

// Stale are the sandboxes of what runs, and those of no container whose time is yet to
// come: they are to be said to be in use now.
func (n Node) Stale(now time.Time) (names []string) {
	runs := map[string]bool{}
	for i := range n.Containers {
		if c := &n.Containers[i]; !Ended(c) {
			runs[string(c.Key)] = true
		}
	}
	for _, s := range n.Sandboxes {
		if runs[s.ID] || s.Used.After(now) {
			names = append(names, s.ID)
		}
	}
	return names
}

// Ended reports whether a container has ended, and all sessions in it.
func Ended(c *core.Container) bool {
	return c.Main.Autopsy != nil && !slices.ContainsFunc(c.Execs, func(p core.Process) bool { return p.Autopsy == nil })
}

// Over reports whether that was delay ago.
func Over(c *core.Container, now time.Time, delay time.Duration) bool {
	return Ended(c) && now.Sub(c.Main.Autopsy.Exit.At) >= delay
}
