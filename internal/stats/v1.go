package stats

import (
	"bytes"
	"strings"

	"github.com/longshore/longshore/internal/core"
)

// V1 reads the stats of a v1 cgroup; dir tells its directory in each
// controller's hierarchy, "" is none.
func (k *Kept) V1(dir func(controller string) string, want core.StatsFields) core.Stats {
	r, done := k.reader()
	defer done()
	s := core.Stats{At: now()}
	if want.Has(core.StatsUsage | tasks) {
		s.CPU.Usage = r.number(dir("cpuacct"), "cpuacct.usage")
		v1Memory(r, dir("memory"), &s.Memory, want)
	}
	if want.Has(tasks) {
		v1CPU(r, dir("cpu"), dir("cpuacct"), &s.CPU, want)
		pids := dir("pids")
		s.Pids.Current, s.Pids.Limit = r.number(pids, "pids.current"), r.limit(pids, "pids.max")
	}
	if want.Has(common) {
		s.IO = v1IO(r, dir("blkio"))
		s.Huge = huge(r, dir("hugetlb"), hugeV1, want)
	}
	if want.Has(core.StatsRefusals) {
		s.Pids.Refused = of(r.keys(dir("pids"), "pids.events"), "max")
	}
	return s
}

func v1CPU(r *reader, cpu, acct string, c *core.CPUStats, want core.StatsFields) {
	c.User, c.System = r.number(acct, "cpuacct.usage_user"), r.number(acct, "cpuacct.usage_sys")
	if !c.User.OK {
		const tick = 1e9 / 100 // USER_HZ is 100 on every architecture that matters here
		stat := r.keys(acct, "cpuacct.stat")
		c.User, c.System = times(of(stat, "user"), tick), times(of(stat, "system"), tick)
	}
	if per, ok := r.readIf(want.Has(core.StatsDetail), acct, "cpuacct.usage_percpu"); ok {
		for f := range bytes.FieldsSeq(per) {
			if n := numberOf(f); n.OK {
				c.PerCPU = append(c.PerCPU, n.N)
			}
		}
	}
	r.pick(cpu, "cpu.stat", places(map[string]*core.Value{"nr_periods": &c.Periods, "nr_throttled": &c.Throttled, "throttled_time": &c.ThrottledNS}))
}

func v1Memory(r *reader, d string, m *core.MemoryStats, want core.StatsFields) {
	m.Usage = r.number(d, "memory.usage_in_bytes")
	// Memory and swap together are never limited below memory alone.
	if m.Limit = r.limit(d, "memory.limit_in_bytes"); m.Limit.OK {
		m.SwapLimit = minus(r.limit(d, "memory.memsw.limit_in_bytes"), m.Limit)
	}
	// The total_ numbers are those of the whole subtree, as is the usage. Swap exists if the kernel
	// accounts it.
	var inactive core.Value
	place := func(key []byte) *core.Value {
		switch string(key) {
		case "total_rss":
			return &m.RSS
		case "total_cache":
			return &m.Cache
		case "total_mapped_file":
			return &m.Mapped
		case "total_pgfault":
			return &m.Faults
		case "total_pgmajfault":
			return &m.MajorFaults
		case "total_swap":
			return &m.Swap
		case "total_inactive_file":
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
	m.Peak = r.number(d, "memory.max_usage_in_bytes")
	// With a limit of memory+swap too, that one is met first and counts alone.
	m.FailCount = r.number(d, "memory.failcnt")
	m.FailCount.N += r.number(d, "memory.memsw.failcnt").N
	m.Kernel = r.number(d, "memory.kmem.usage_in_bytes")
	r.pick(d, "memory.oom_control", places(map[string]*core.Value{"oom_kill": &m.OOMKills}))
}

// throttle is the prefix of the files that count requests above the schedulers.
const throttle = "blkio.throttle."

func v1IO(r *reader, d string) []core.IOStats {
	devices := io{blocks: blockDevices}
	read := func(files []string, set func(s *core.IOStats, op string, n uint64)) {
		throttled := false
		for _, file := range files {
			if throttled && strings.HasPrefix(file, throttle) {
				continue // the same numbers, without those of the cgroups below
			}
			text, ok := r.read(d, file)
			if !ok {
				continue
			}
			met := false
			for line := range bytes.Lines(text) {
				device, rest, _ := bytes.Cut(bytes.TrimSpace(line), []byte{' '}) // "8:0 Read 4096"
				op, value, ok := bytes.Cut(rest, []byte{' '})
				if !ok {
					continue
				}
				n, s := numberOf(value), devices.device(string(device))
				if n.OK && s != nil {
					set(s, string(op), n.N)
					met = true
				}
			}
			if met {
				return
			}
			throttled = throttled || strings.HasPrefix(file, throttle)
		}
	}
	read([]string{"blkio.throttle.io_service_bytes_recursive", "blkio.bfq.io_service_bytes_recursive", "blkio.throttle.io_service_bytes"},
		func(s *core.IOStats, op string, n uint64) {
			switch op {
			case "Read":
				s.ReadBytes = n
			case "Write":
				s.WriteBytes = n
			}
		})
	read([]string{"blkio.throttle.io_serviced_recursive", "blkio.bfq.io_serviced_recursive", "blkio.throttle.io_serviced"},
		func(s *core.IOStats, op string, n uint64) {
			switch op {
			case "Read":
				s.Reads = n
			case "Write":
				s.Writes = n
			}
		})
	return devices.list()
}
