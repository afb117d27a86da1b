package sandbox

import (
	"slices"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/mesos/api"
)

// Inventory has the existing records and sandboxes of Mesos' containers.
type Inventory struct {
	Containers []core.Container
	Sandboxes  []Sandbox
}

// Expired returns the ids of containers that ended at least delay ago, or that have had no record
// but only a sandbox for that long, as after a reboot. A container expires together with everything
// nested in it, so nothing in it may still run, and nested ones are not returned on their own.
func (n Inventory) Expired(now time.Time, delay time.Duration) (due []string) {
	type state struct{ known, busy bool }
	of := map[string]state{}
	ripe := map[string]bool{}
	for i := range n.Containers {
		c := &n.Containers[i]
		name := string(c.Key)
		expired := Expired(c, now, delay)
		ripe[name] = expired
		of[name] = state{known: true, busy: of[name].busy || !expired}
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
	for name, expired := range ripe {
		if expired && !of[name].busy {
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

// InUse returns the sandboxes of running containers, and those with a time in the future because
// the clock was wrong. They have to be touched.
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

// hasEnded reports whether a container and all sessions in it have ended.
func hasEnded(c *core.Container) bool {
	return c.Main.Autopsy != nil && !slices.ContainsFunc(c.Execs, func(p core.Process) bool { return p.Autopsy == nil })
}

// Expired reports whether a container and all sessions in it ended at least delay ago.
func Expired(c *core.Container, now time.Time, delay time.Duration) bool {
	return hasEnded(c) && now.Sub(c.Main.Autopsy.Exit.At) >= delay
}
