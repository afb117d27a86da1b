package cri

import (
	"maps"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/core"
)

func TestCPUUseIsTakenOverATimeThatMeansSomething(t *testing.T) {
	var r rates
	start := time.Unix(1000, 0)
	for i, step := range []struct {
		at    time.Duration
		usage core.Value
		want  core.Value
	}{
		{0, core.Known(5e9), core.Value{}},                                                    // nothing to compare with
		{300 * time.Millisecond, core.Known(6e9), core.Value{}},                               // too soon to say
		{2 * time.Second, core.Known(6e9), core.Known(5e8)},                                   // half a core since the first
		{2500 * time.Millisecond, core.Known(9e9), core.Known(5e8)},                           // another client: the same answer
		{4 * time.Second, core.Known(10e9), core.Known(2e9)},                                  // two cores
		{5 * time.Second, core.Value{}, core.Value{}},                                         // not measured
		{6 * time.Second, core.Known(1e9), core.Value{}},                                      // another cgroup of that name
		{8 * time.Second, core.Known(1e9), core.Known(0)},                                     // idle, not unknown
		{8*time.Second + rateLongest + 1, core.Known(2e9), core.Value{}},                      // says nothing about now
		{7 * time.Second, core.Known(3e9), core.Value{}},                                      // a clock that was set
		{9 * time.Second, core.Known(1<<64 - 1), core.Known((1<<64 - 1 - 3_000_000_000) / 2)}, // nobody can, but it is counted
	} {
		got := r.of("a", core.Stats{At: start.Add(step.at), CPU: core.CPUStats{Usage: step.usage}})
		if got != step.want {
			t.Errorf("step %d: %+v, want %+v", i, got, step.want)
		}
	}
}

func TestRatesForgetWhatIsGone(t *testing.T) {
	var r rates
	for i := range rateRoom + 3 {
		r.of(core.ID(rune('0'+i)), core.Stats{CPU: core.CPUStats{Usage: core.Known(1)}})
	}
	alive := map[core.ID]bool{"0": true, "x": true}
	r.keep(2, maps.Keys(alive))
	if len(r.by) != rateRoom+3 {
		t.Errorf("%d remembered: too early to look", len(r.by))
	}
	r.keep(1, maps.Keys(alive))
	if len(r.by) != 1 || r.by["0"] == nil {
		t.Errorf("remembered: %v", r.by)
	}
}
