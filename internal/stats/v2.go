package stats

import (
	"strconv"
	"strings"

	"github.com/longshore/longshore/internal/core"
)

// V2 reads the figures of a v2 cgroup.
func V2(path string) core.Stats {
	d := dir(path)
	s := core.Stats{At: now()}
	const us = 1000
	cpu := d.keys("cpu.stat")
	s.CPU = core.CPUStats{
		Usage: times(of(cpu, "usage_usec"), us), User: times(of(cpu, "user_usec"), us), System: times(of(cpu, "system_usec"), us),
		Periods: of(cpu, "nr_periods"), Throttled: of(cpu, "nr_throttled"), ThrottledNS: times(of(cpu, "throttled_usec"), us),
	}
	s.Memory = v2Memory(d)
	s.Pids = core.PidsStats{Current: d.number("pids.current"), Limit: d.limit("pids.max")}
	s.IO = v2IO(d)
	s.Huge = huge(d, "current", "", "events")
	for _, kind := range []string{"cpu", "memory", "io"} {
		text, ok := d.read(kind + ".pressure")
		if !ok {
			continue
		}
		if s.Pressure == nil {
			s.Pressure = map[string]core.PressureStat{}
		}
		s.Pressure[kind] = pressure(text)
	}
	return s
}

func v2Memory(d dir) core.MemoryStats {
	var m core.MemoryStats
	m.Usage, m.Limit, m.Peak = d.number("memory.current"), d.limit("memory.max"), d.number("memory.peak")
	m.Swap, m.SwapLimit = d.number("memory.swap.current"), d.limit("memory.swap.max")
	m.Raw = d.keys("memory.stat")
	m.RSS, m.Cache, m.Mapped = of(m.Raw, "anon"), of(m.Raw, "file"), of(m.Raw, "file_mapped")
	m.Kernel = of(m.Raw, "kernel") // Linux 5.18
	m.Faults, m.MajorFaults = of(m.Raw, "pgfault"), of(m.Raw, "pgmajfault")
	m.WorkingSet = minus(m.Usage, of(m.Raw, "inactive_file"))
	events := d.keys("memory.events")
	m.OOMKills = of(events, "oom_kill")
	// How often this very limit was met; memory.events counts those below too.
	m.FailCount = of(d.keys("memory.events.local"), "max")
	if !m.FailCount.OK {
		m.FailCount = of(events, "max")
	}
	return m
}

func v2IO(d dir) []core.IOStats {
	text, ok := d.read("io.stat")
	if !ok {
		return nil
	}
	var devices io
	for line := range strings.Lines(text) {
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
