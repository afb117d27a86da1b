package sandbox

import (
	"slices"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/core"
)

func endedContainer(name string, at time.Time) core.Container {
	return core.Container{Meta: core.Meta{Key: core.Key(name)}, Main: core.Process{Autopsy: &core.Autopsy{Exit: core.Exit{At: at}}}}
}

func runningContainer(name string) core.Container {
	return core.Container{Meta: core.Meta{Key: core.Key(name)}}
}

// TestExpired: trees that ended long enough ago as a whole, and none with a running session.
func TestExpired(t *testing.T) {
	now := time.Unix(1e9, 0)
	old, young := now.Add(-time.Hour), now.Add(-time.Minute)
	session := endedContainer("a", old)
	session.Execs = []core.Process{{ID: "s"}}
	over := endedContainer("a", old)
	over.Execs = []core.Process{{ID: "s", Autopsy: &core.Autopsy{}}}
	for name, c := range map[string]struct {
		containers []core.Container
		sandboxes  []Sandbox
		want       []string
	}{
		"nothing":                       {},
		"runs":                          {containers: []core.Container{runningContainer("a")}, sandboxes: []Sandbox{{ID: "a", LastUsed: old}}},
		"young":                         {containers: []core.Container{endedContainer("a", young)}, sandboxes: []Sandbox{{ID: "a", LastUsed: old}}},
		"old":                           {containers: []core.Container{endedContainer("a", old)}, sandboxes: []Sandbox{{ID: "a", LastUsed: now}}, want: []string{"a"}},
		"without a sandbox":             {containers: []core.Container{endedContainer("a", old)}, want: []string{"a"}},
		"as old as that":                {containers: []core.Container{endedContainer("a", now.Add(-10*time.Minute))}, want: []string{"a"}},
		"a session runs in it":          {containers: []core.Container{session}},
		"a session has ended in it":     {containers: []core.Container{over}, want: []string{"a"}},
		"a child runs":                  {containers: []core.Container{endedContainer("a", old), runningContainer("a.b")}},
		"a grandchild runs":             {containers: []core.Container{endedContainer("a", old), endedContainer("a.b", old), runningContainer("a.b.c"), endedContainer("a.d", old)}, want: []string{"a.d"}},
		"a child ended later":           {containers: []core.Container{endedContainer("a", old), endedContainer("a.b", young)}, want: []string{"a"}},
		"a child ended, its parent not": {containers: []core.Container{runningContainer("a"), endedContainer("a.b", old), endedContainer("ab", old)}, want: []string{"a.b", "ab"}},
		"all of a tree":                 {containers: []core.Container{endedContainer("a.b.c", old), endedContainer("a.b", old), endedContainer("a", old), endedContainer("a0", old)}, want: []string{"a", "a0"}},
		"sandboxes alone":               {sandboxes: []Sandbox{{ID: "a", LastUsed: old}, {ID: "a.b", LastUsed: old}, {ID: "c", LastUsed: young}}, want: []string{"a"}},
		"a launch cut in what runs":     {containers: []core.Container{runningContainer("a")}, sandboxes: []Sandbox{{ID: "a", LastUsed: old}, {ID: "a.b", LastUsed: old}}, want: []string{"a.b"}},
		"no record above what runs":     {containers: []core.Container{runningContainer("a.b")}, sandboxes: []Sandbox{{ID: "a", LastUsed: old}}},
	} {
		got := Inventory{Containers: c.containers, Sandboxes: c.sandboxes}.Expired(now, 10*time.Minute)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestInUse: sandboxes of running containers, and of a clock that was wrong.
func TestInUse(t *testing.T) {
	now := time.Unix(1e9, 0)
	n := Inventory{Containers: []core.Container{runningContainer("a"), endedContainer("b", now)}, Sandboxes: []Sandbox{{ID: "a"}, {ID: "b"}, {ID: "c", LastUsed: now}, {ID: "d", LastUsed: now.Add(time.Second)}}}
	if got := n.InUse(now); !slices.Equal(got, []string{"a", "d"}) {
		t.Errorf("%q", got)
	}
}
