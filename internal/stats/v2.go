package stats

import (
	"strconv"
	"strings"

	"github.com/longshore/longshore/internal/core"
)

// V2 reads the stats of a v2 cgroup.
func (k *Kept) V2(d string, want core.StatsFields) core.Stats {
	r, done := k.reader()
	defer done()
	s := core.Stats{At: now()}
	if want.Has(core.StatsUsage | tasks) {
		const us = 1000
		cpu := r.keys(d, "cpu.stat")
		s.CPU = core.CPUStats{
			Usage: times(of(cpu, "usage_usec"), us), User: times(of(cpu, "user_usec"), us), System: times(of(cpu, "system_usec"), us),
			Periods: of(cpu, "nr_periods"), Throttled: of(cpu, "nr_throttled"), ThrottledNS: times(of(cpu, "throttled_usec"), us),
		}
		v2Memory(r, d, &s.Memory, want)
		s.Pressure = v2Pressure(r, d)
	}
	if want.Has(tasks) {
		s.Pids.Current, s.Pids.Limit = r.number(d, "pids.current"), r.limit(d, "pids.max")
	}
	if want.Has(common) {
		s.IO = v2IO(r, d)
		s.Huge = huge(r, d, hugeV2, want)
	}
	if want.Has(core.StatsRefusals) {
		s.Pids.Refused, s.Memory.Throttled = of(r.keys(d, "pids.events"), "max"), of(r.keys(d, "memory.events"), "high")
	}
	return s
}

func v2Pressure(r *reader, d string) map[string]core.PressureStat {
	var all map[string]core.PressureStat
	for _, kind := range []string{"cpu", "memory", "io"} {
		text, ok := r.read(d, kind+".pressure")
		if !ok {
			continue
		}
		if all == nil {
			all = map[string]core.PressureStat{}
		}
		all[kind] = pressure(string(text))
	}
	return all
}

func v2Memory(r *reader, d string, m *core.MemoryStats, want core.StatsFields) {
	m.Usage, m.Limit = r.number(d, "memory.current"), r.limit(d, "memory.max")
	m.Swap, m.SwapLimit = r.number(d, "memory.swap.current"), r.limit(d, "memory.swap.max")
	var inactive core.Value
	place := func(key []byte) *core.Value {
		switch string(key) {
		case "anon":
			return &m.RSS
		case "file":
			return &m.Cache
		case "file_mapped":
			return &m.Mapped
		case "kernel": // Linux 5.18
			return &m.Kernel
		case "pgfault":
			return &m.Faults
		case "pgmajfault":
			return &m.MajorFaults
		case "inactive_file":
			return &inactive
		}
		return nil
	}
	if !want.Has(tasks) {
		r.pick(d, "memory.stat", place)
		m.WorkingSet = minus(m.Usage, inactive)
		return
	}
	m.Raw = r.memory(d, place, want)
	m.WorkingSet = minus(m.Usage, inactive)
	if !want.Has(common) {
		return
	}
	m.Peak = r.number(d, "memory.peak")
	events := r.keys(d, "memory.events")
	m.OOMKills = of(events, "oom_kill")
	// How often this very limit was met; memory.events counts those below too.
	m.FailCount = of(r.keys(d, "memory.events.local"), "max")
	if !m.FailCount.OK {
		m.FailCount = of(events, "max")
	}
}

func v2IO(r *reader, d string) []core.IOStats {
	text, ok := r.read(d, "io.stat")
	if !ok {
		return nil
	}
	devices := io{blocks: blockDevices}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line) // "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0"
		if len(f) < 2 {
			continue
		}
		s := devices.device(f[0])
		if s == nil {
			continue
		}
		for _, kv := range f[1:] {
			k, v, _ := strings.Cut(kv, "=")
			n := number(v)
			switch k {
			case "rbytes":
				s.ReadBytes = n.N
			case "wbytes":
				s.WriteBytes = n.N
			case "rios":
				s.Reads = n.N
			case "wios":
				s.Writes = n.N
			}
		}
	}
	return devices.list()
}

// pressure reads "some avg10=0.00 avg60=0.00 avg300=0.00 total=0" and the same
// of "full".
func pressure(text string) core.PressureStat {
	var p core.PressureStat
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		l := &p.Some
		if f[0] == "full" {
			l = &p.Full
		}
		for _, kv := range f[1:] {
			k, v, _ := strings.Cut(kv, "=")
			switch k {
			case "avg10":
				l.Avg10, _ = strconv.ParseFloat(v, 64)
			case "avg60":
				l.Avg60, _ = strconv.ParseFloat(v, 64)
			case "avg300":
				l.Avg300, _ = strconv.ParseFloat(v, 64)
			case "total":
				l.Total, _ = strconv.ParseUint(v, 10, 64)
			}
		}
	}
	return p
}
