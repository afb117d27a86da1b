package sandbox

import (
	"slices"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/mesos/api"
)

// Node is what there is.
type Inventory struct {
	Containers []core.Container
	Sandboxes  []Sandbox
}

// Due are the names of the containers whose time is over: those that ended delay ago,
// or of which there has been nothing but a sandbox for that long, as after a reboot.
// With a name goes all that is below it: one in which anything runs is not due, and
// what is below one that is due is not named.
func (n Inventory) Expired(now time.Time, delay time.Duration) (due []string) {
	type state struct{ known, busy bool }
	of := map[string]state{}
	ripe := map[string]bool{}
	for i := range n.Containers {
		c := &n.Containers[i]
		name := string(c.Key)
		over := Expired(c, now, delay)
		ripe[name] = over
		of[name] = state{known: true, busy: of[name].busy || !over}
		for up, _ := api.SplitID(name); up != ""; up, _ = api.SplitID(up) {
			s := of[up]
			s.busy = s.busy || !hasEnded(c)
			of[up] = s
		}
	}
	for _, s := range n.Sandboxes {
		if !of[s.ID].known && now.Sub(s.LastUsed) >= delay {
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
func (n Inventory) InUse(now time.Time) (names []string) {
	runs := map[string]bool{}
	for i := range n.Containers {
		if c := &n.Containers[i]; !hasEnded(c) {
			runs[string(c.Key)] = true
		}
	}
	for _, s := range n.Sandboxes {
		if runs[s.ID] || s.LastUsed.After(now) {
			names = append(names, s.ID)
		}
	}
	return names
}

// Ended reports whether a container has ended, and all sessions in it.
func hasEnded(c *core.Container) bool {
	return c.Main.Autopsy != nil && !slices.ContainsFunc(c.Execs, func(p core.Process) bool { return p.Autopsy == nil })
}

// Over reports whether that was delay ago.
func Expired(c *core.Container, now time.Time, delay time.Duration) bool {
	return hasEnded(c) && now.Sub(c.Main.Autopsy.Exit.At) >= delay
}
