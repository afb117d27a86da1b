package stats

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	nomadbase "github.com/longshore/longshore/api/nomad/base"
	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/core"
)

// at is a cgroup's use at a time after the first reading. V1 and v2 tell different figures.
func at(after time.Duration, used uint64, v2 bool) core.Stats {
	s := core.Stats{
		At: time.Unix(1000, 0).Add(after),
		CPU: core.CPUStats{
			Usage: core.Known(used), User: core.Known(used / 4), System: core.Known(used - used/4),
			Periods: core.Known(9), Throttled: core.Known(2), ThrottledNS: core.Known(77),
		},
		Memory: core.MemoryStats{RSS: core.Known(10), Cache: core.Known(20), Usage: core.Known(35), Peak: core.Known(50)},
	}
	if v2 {
		s.Memory.Swap, s.Memory.Kernel = core.Known(3), core.Known(5)
	} else { // without swap accounting, and before Linux 5.18
		s.CPU.PerCPU = []uint64{used, 0}
	}
	return s
}

func TestMeasuredFieldsAreThoseOfTheCgroup(t *testing.T) {
	times := []nomaddriver.CPUUsage_Fields{
		nomaddriver.CPUUsage_PERCENT, nomaddriver.CPUUsage_TOTAL_TICKS, nomaddriver.CPUUsage_USER_MODE, nomaddriver.CPUUsage_SYSTEM_MODE,
		nomaddriver.CPUUsage_THROTTLED_PERIODS, nomaddriver.CPUUsage_THROTTLED_TIME,
	}
	for _, v2 := range []bool{false, true} {
		before, now := at(0, 1e9, v2), at(4*time.Second, 3e9, v2)
		wantCPU := &nomaddriver.CPUUsage{Percent: 50, TotalTicks: 1000, UserMode: 12.5, SystemMode: 37.5, ThrottledPeriods: 2, ThrottledTime: 77, MeasuredFields: times}
		if d := cmp.Diff(wantCPU, cpu(before, now, 2000), protocmp.Transform()); d != "" {
			t.Errorf("v2 %t, CPU (-want +got):\n%s", v2, d)
		}
		wantMemory := &nomaddriver.MemoryUsage{Rss: 10, Cache: 20, MaxUsage: 50, Usage: 35, MeasuredFields: []nomaddriver.MemoryUsage_Fields{
			nomaddriver.MemoryUsage_RSS, nomaddriver.MemoryUsage_CACHE, nomaddriver.MemoryUsage_MAX_USAGE, nomaddriver.MemoryUsage_USAGE,
		}}
		if v2 {
			wantMemory.Swap, wantMemory.KernelUsage = 3, 5
			wantMemory.MeasuredFields = []nomaddriver.MemoryUsage_Fields{
				nomaddriver.MemoryUsage_RSS, nomaddriver.MemoryUsage_CACHE, nomaddriver.MemoryUsage_MAX_USAGE, nomaddriver.MemoryUsage_KERNEL_USAGE,
				nomaddriver.MemoryUsage_USAGE, nomaddriver.MemoryUsage_SWAP,
			}
		}
		if d := cmp.Diff(wantMemory, memory(now.Memory), protocmp.Transform()); d != "" {
			t.Errorf("v2 %t, memory (-want +got):\n%s", v2, d)
		}
	}
	if c := cpu(core.Stats{}, core.Stats{At: time.Unix(1, 0)}, 2000); len(c.GetMeasuredFields()) != 0 {
		t.Errorf("of a cgroup that tells nothing: %v", c)
	}
}

// TestSharesAreOfTheTimeBetweenTwoLooks: there is none after one look, nor after a
// counter that has gone back.
func TestSharesAreOfTheTimeBetweenTwoLooks(t *testing.T) {
	first := at(0, 5e9, true)
	for what, now := range map[string]core.Stats{"one look": {}, "the same time": first, "a count that went back": at(time.Second, 4e9, true)} {
		before := first
		if what == "one look" {
			before, now = core.Stats{}, first
		}
		if c := cpu(before, now, 2000); c.GetPercent() != 0 || c.GetTotalTicks() != 0 || c.GetUserMode() != 0 {
			t.Errorf("%s: %v", what, c)
		}
	}
	was := sample{stats: first, pids: map[int]core.ProcessStats{7: {Pid: 7, User: 1e8, System: 2e8}}}
	now := at(2*time.Second, 6e9, true)
	p := process(was, now, core.ProcessStats{Pid: 7, User: 3e8, System: 4e8, RSS: 12, Swap: 1}, 1000)
	if p.GetCpu().GetPercent() != 20 || p.GetCpu().GetTotalTicks() != 200 || p.GetMemory().GetRss() != 12 || p.GetMemory().GetSwap() != 1 {
		t.Errorf("a process: %v", p)
	}
	if p := process(was, now, core.ProcessStats{Pid: 8, User: 3e8}, 1000); p.GetCpu().GetPercent() != 0 {
		t.Errorf("a process that was not there before: %v", p)
	}
}

func TestSpeedOfACore(t *testing.T) {
	core := func(base, top, guess uint64) *nomadbase.ClientTopologyCore {
		return &nomadbase.ClientTopologyCore{BaseSpeed: base, MaxSpeed: top, GuessSpeed: guess}
	}
	for _, c := range []struct {
		what string
		node *nomadbase.ClientTopology
		want float64
	}{
		{"nothing is told", nil, 0},
		{"the first that is known", &nomadbase.ClientTopology{Cores: []*nomadbase.ClientTopologyCore{core(2000, 4000, 1), core(0, 3000, 1), core(0, 0, 1000)}}, 2000},
		{"a total in the configuration", &nomadbase.ClientTopology{Cores: []*nomadbase.ClientTopologyCore{core(2000, 0, 0), core(2000, 0, 0)}, OverrideTotalCompute: 1000}, 500},
	} {
		if got := Speed(c.node); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
	for content, want := range map[string]float64{"": 0, "processor\t: 0\ncpu MHz\t\t: 2100.5\n\nprocessor\t: 1\ncpu MHz\t\t: 9\n": 2100.5, "cpu MHz : fast\n": 0} {
		if got := cpuinfo([]byte(content)); got != want {
			t.Errorf("%q: %v, want %v", content, got, want)
		}
	}
}
