package health_test

import (
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/health"
)

// TestSettle: a container's own check, field by field over its image's, over docker's defaults.
func TestSettle(t *testing.T) {
	type check = core.HealthCheck
	image := core.Image{
		Health: &check{Test: []string{"CMD-SHELL", "wget -q x"}, Interval: time.Second, Timeout: 2 * time.Second, StartPeriod: 3 * time.Second, StartInterval: 4 * time.Second, Retries: 5},
		Shell:  []string{"/bin/bash", "-ec"},
	}
	theirs := health.Check{Command: []string{"/bin/bash", "-ec", "wget -q x"}, Interval: time.Second, Timeout: 2 * time.Second, StartPeriod: 3 * time.Second, StartInterval: 4 * time.Second, Retries: 5}
	plain := func(command ...string) *health.Check {
		return &health.Check{Command: command, Interval: 30 * time.Second, Timeout: 30 * time.Second, StartInterval: 5 * time.Second, Retries: 3}
	}
	mixed := theirs
	mixed.Command, mixed.Timeout, mixed.Retries = []string{"true", "x"}, 7*time.Second, 1
	for name, c := range map[string]struct {
		own  *check
		img  core.Image
		want *health.Check
	}{
		"nothing":                     {nil, core.Image{}, nil},
		"times only":                  {&check{Interval: time.Second}, core.Image{}, nil},
		"the image's":                 {nil, image, &theirs},
		"an empty one":                {&check{}, image, &theirs},
		"none of the image's":         {&check{Test: []string{"NONE"}}, image, nil},
		"an image that has none":      {nil, core.Image{Health: &check{Test: []string{"NONE"}}}, nil},
		"its own beside the image's":  {&check{Test: []string{"CMD", "true", "x"}, Timeout: 7 * time.Second, Retries: 1}, image, &mixed},
		"a command":                   {&check{Test: []string{"CMD", "true"}}, core.Image{}, plain("true")},
		"a line":                      {&check{Test: []string{"CMD-SHELL", "exit 1"}}, core.Image{}, plain("/bin/sh", "-c", "exit 1")},
		"numbers below zero":          {&check{Test: []string{"CMD", "true"}, Interval: -1, Timeout: -1, StartPeriod: -1, StartInterval: -1, Retries: -1}, core.Image{}, plain("true")},
		"more often than docker lets": {&check{Test: []string{"CMD", "true"}, Interval: 1}, core.Image{}, &health.Check{Command: []string{"true"}, Interval: time.Millisecond, Timeout: 30 * time.Second, StartInterval: 5 * time.Second, Retries: 3}},
	} {
		got, err := health.Settle(c.own, c.img)
		if d := cmp.Diff(c.want, got); d != "" || err != nil {
			t.Errorf("%s: %v\n%s", name, err, d)
		}
	}
	for _, test := range [][]string{{"CMD"}, {"CMD-SHELL"}, {"CMD", ""}, {"HTTP", "/"}, {""}, {"cmd", "true"}} {
		if _, err := health.Settle(&check{Test: test}, core.Image{}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", test, err)
		}
	}
	if len(image.Health.Test) != 2 || cap(image.Shell) > 2 && image.Shell[:3][2] != "" {
		t.Error("the image was changed")
	}
}

// TestStates are docker's rules: failures in the start period do not count until there was a
// success, which ends it; one success makes healthy, and as many failures in a row as there are
// retries unhealthy.
func TestStates(t *testing.T) {
	check := &health.Check{Interval: 30 * time.Second, StartPeriod: 10 * time.Second, StartInterval: time.Second, Retries: 2}
	type probe struct {
		at   time.Duration
		ok   bool
		want health.Status
		next time.Duration
	}
	for name, probes := range map[string][]probe{
		"healthy at once": {{0, true, health.Healthy, 30 * time.Second}},
		"failures of the start do not count": {
			{time.Second, false, health.Starting, time.Second},
			{2 * time.Second, false, health.Starting, time.Second},
			{9 * time.Second, false, health.Starting, time.Second},
			{10 * time.Second, false, health.Starting, 30 * time.Second},
			{40 * time.Second, false, health.Unhealthy, 30 * time.Second},
		},
		"a success ends the start period": {
			{time.Second, true, health.Healthy, 30 * time.Second}, {2 * time.Second, false, health.Healthy, 30 * time.Second}, {3 * time.Second, false, health.Unhealthy, 30 * time.Second},
		},
		"failures count in a row": {
			{11 * time.Second, false, health.Starting, 30 * time.Second},
			{12 * time.Second, true, health.Healthy, 30 * time.Second},
			{13 * time.Second, false, health.Healthy, 30 * time.Second},
			{14 * time.Second, true, health.Healthy, 30 * time.Second},
			{15 * time.Second, false, health.Healthy, 30 * time.Second},
		},
		"an unhealthy one recovers": {
			{11 * time.Second, false, health.Starting, 30 * time.Second}, {12 * time.Second, false, health.Unhealthy, 30 * time.Second}, {13 * time.Second, true, health.Healthy, 30 * time.Second},
		},
	} {
		s := health.State{Status: health.Starting}
		for i, p := range probes {
			s = check.After(s, p.ok, name, p.at)
			if s.Status != p.want || s.Output != name {
				t.Errorf("%s: probe %d: %+v, want %s", name, i, s, p.want)
			}
			if next := check.Pause(s, p.at); next != p.next {
				t.Errorf("%s: probe %d: the next one in %s, want %s", name, i, next, p.next)
			}
		}
	}
}

// TestStatesAgreeWithTheRule, which reads the whole history of probes each time.
func TestStatesAgreeWithTheRule(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		check := &health.Check{
			Interval: 30 * time.Second, StartInterval: time.Second,
			StartPeriod: time.Duration(rapid.IntRange(0, 20).Draw(r, "start period")) * time.Second, Retries: rapid.IntRange(1, 4).Draw(r, "retries"),
		}
		var oks []bool
		var ages []time.Duration
		s, age := health.State{Status: health.Starting}, time.Duration(0)
		for range rapid.IntRange(1, 30).Draw(r, "probes") {
			age += time.Duration(rapid.IntRange(0, 3).Draw(r, "later")) * time.Second
			oks, ages = append(oks, rapid.Bool().Draw(r, "ok")), append(ages, age)
			s = check.After(s, oks[len(oks)-1], "", age)
			want, row, known := health.Starting, 0, false // known: it has been healthy or unhealthy
			for i, ok := range oks {
				switch {
				case ok:
					want, row, known = health.Healthy, 0, true
				case !known && ages[i] < check.StartPeriod:
				default:
					if row++; row >= check.Retries {
						want, known = health.Unhealthy, true
					}
				}
			}
			if s.Status != want || s.Failures != row {
				r.Fatalf("%v at %v: %+v, want %s after %d failures", oks, ages, s, want, row)
			}
			fast := want == health.Starting && age < check.StartPeriod
			if pause := check.Pause(s, age); fast != (pause == check.StartInterval) {
				r.Fatalf("%v at %v: the next probe in %s", oks, ages, pause)
			}
		}
	})
}
