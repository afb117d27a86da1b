package keep

import (
	"slices"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/mesos/sandbox"
)

func ended(name string, at time.Time) core.Container {
	return core.Container{Meta: core.Meta{Key: core.Key(name)}, Main: core.Process{Autopsy: &core.Autopsy{Exit: core.Exit{At: at}}}}
}

func running(name string) core.Container { return core.Container{Meta: core.Meta{Key: core.Key(name)}} }

// TestDue: what ended long enough ago, as a whole, and nothing in which something runs.
func TestDue(t *testing.T) {
	now := time.Unix(1e9, 0)
	old, young := now.Add(-time.Hour), now.Add(-time.Minute)
	session := ended("a", old)
	session.Execs = []core.Process{{ID: "s"}}
	over := ended("a", old)
	over.Execs = []core.Process{{ID: "s", Autopsy: &core.Autopsy{}}}
	for name, c := range map[string]struct {
		containers []core.Container
		sandboxes  []sandbox.Sandbox
		want       []string
	}{
		"nothing":                       {},
		"runs":                          {containers: []core.Container{running("a")}, sandboxes: []sandbox.Sandbox{{ID: "a", Used: old}}},
		"young":                         {containers: []core.Container{ended("a", young)}, sandboxes: []sandbox.Sandbox{{ID: "a", Used: old}}},
		"old":                           {containers: []core.Container{ended("a", old)}, sandboxes: []sandbox.Sandbox{{ID: "a", Used: now}}, want: []string{"a"}},
		"without a sandbox":             {containers: []core.Container{ended("a", old)}, want: []string{"a"}},
		"as old as that":                {containers: []core.Container{ended("a", now.Add(-10*time.Minute))}, want: []string{"a"}},
		"a session runs in it":          {containers: []core.Container{session}},
		"a session has ended in it":     {containers: []core.Container{over}, want: []string{"a"}},
		"a child runs":                  {containers: []core.Container{ended("a", old), running("a.b")}},
		"a grandchild runs":             {containers: []core.Container{ended("a", old), ended("a.b", old), running("a.b.c"), ended("a.d", old)}, want: []string{"a.d"}},
		"a child ended later":           {containers: []core.Container{ended("a", old), ended("a.b", young)}, want: []string{"a"}},
		"a child ended, its parent not": {containers: []core.Container{running("a"), ended("a.b", old), ended("ab", old)}, want: []string{"a.b", "ab"}},
		"all of a tree":                 {containers: []core.Container{ended("a.b.c", old), ended("a.b", old), ended("a", old), ended("a0", old)}, want: []string{"a", "a0"}},
		"sandboxes alone":               {sandboxes: []sandbox.Sandbox{{ID: "a", Used: old}, {ID: "a.b", Used: old}, {ID: "c", Used: young}}, want: []string{"a"}},
		"a launch cut in what runs":     {containers: []core.Container{running("a")}, sandboxes: []sandbox.Sandbox{{ID: "a", Used: old}, {ID: "a.b", Used: old}}, want: []string{"a.b"}},
		"no record above what runs":     {containers: []core.Container{running("a.b")}, sandboxes: []sandbox.Sandbox{{ID: "a", Used: old}}},
	} {
		got := Node{Containers: c.containers, Sandboxes: c.sandboxes}.Due(now, 10*time.Minute)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestStale: sandboxes of what runs, and those of a clock that was wrong.
func TestStale(t *testing.T) {
	now := time.Unix(1e9, 0)
	n := Node{Containers: []core.Container{running("a"), ended("b", now)}, Sandboxes: []sandbox.Sandbox{{ID: "a"}, {ID: "b"}, {ID: "c", Used: now}, {ID: "d", Used: now.Add(time.Second)}}}
	if got := n.Stale(now); !slices.Equal(got, []string{"a", "d"}) {
		t.Errorf("%q", got)
	}
}

func TestFlag(t *testing.T) {
	for d, want := range map[Duration]string{
		Default: "1weeks", Duration(36 * time.Hour): "36hrs", Duration(48 * time.Hour): "2days", Duration(90 * time.Second): "90secs", Duration(time.Minute): "1mins", Duration(1500 * time.Microsecond): "1500us",
		Duration(time.Millisecond): "1ms", 1: "1ns", 0: "0ns",
	} {
		if got := d.Flag(); got != want {
			t.Errorf("%s: %s, want %s", time.Duration(d), got, want)
		}
	}
	var d Duration
	if err := d.UnmarshalText([]byte("1h30m")); err != nil || d != Duration(90*time.Minute) {
		t.Errorf("%v, %v", d, err)
	}
	if err := d.UnmarshalText([]byte("1weeks")); err == nil {
		t.Error("1weeks is taken")
	}
}
