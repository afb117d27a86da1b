package stats

import (
	"strconv"
	"strings"

	"github.com/longshore/longshore/internal/core"
)

// V1 reads the figures of a v1 cgroup, whose directory in each controller's
// hierarchy dirs tells.
func V1(dirs map[string]string) core.Stats {
	d := func(controller string) dir { return dir(dirs[controller]) }
	s := core.Stats{At: now()}
	s.CPU = v1CPU(d("cpu"), d("cpuacct"))
	s.Memory = v1Memory(d("memory"))
	s.Pids = core.PidsStats{Current: d("pids").number("pids.current"), Limit: d("pids").limit("pids.max")}
	s.IO = v1IO(d("blkio"))
	s.Huge = huge(d("hugetlb"), "usage_in_bytes", "max_usage_in_bytes", "failcnt")
	return s
}

func v1CPU(cpu, acct dir) core.CPUStats {
	var c core.CPUStats
	c.Usage = acct.number("cpuacct.usage")
	c.User, c.System = acct.number("cpuacct.usage_user"), acct.number("cpuacct.usage_sys")
	if !c.User.OK {
		const tick = 1e9 / 100 // USER_HZ is 100 on every architecture that matters here
		stat := acct.keys("cpuacct.stat")
		c.User, c.System = times(of(stat, "user"), tick), times(of(stat, "system"), tick)
	}
	if per, ok := acct.read("cpuacct.usage_percpu"); ok {
		for f := range strings.FieldsSeq(per) {
			if n, err := strconv.ParseUint(f, 10, 64); err == nil {
				c.PerCPU = append(c.PerCPU, n)
			}
		}
	}
	stat := cpu.keys("cpu.stat")
	c.Periods, c.Throttled, c.ThrottledNS = of(stat, "nr_periods"), of(stat, "nr_throttled"), of(stat, "throttled_time")
	return c
}

func v1Memory(d dir) core.MemoryStats {
	var m core.MemoryStats
	m.Usage = d.number("memory.usage_in_bytes")
	m.Limit = d.limit("memory.limit_in_bytes")
	m.Peak = d.number("memory.max_usage_in_bytes")
	// With a limit of memory+swap too, that one is met first and counts alone.
	m.FailCount = d.number("memory.failcnt")
	m.FailCount.N += d.number("memory.memsw.failcnt").N
	m.Kernel = d.number("memory.kmem.usage_in_bytes")
	m.Swap = minus(d.number("memory.memsw.usage_in_bytes"), m.Usage)
	m.SwapLimit = d.limit("memory.memsw.limit_in_bytes")
	if m.SwapLimit.OK && m.Limit.OK {
		m.SwapLimit = minus(m.SwapLimit, m.Limit)
	} else {
		m.SwapLimit = core.Value{}
	}
	m.Raw = d.keys("memory.stat")
	// The total_ figures are those of the whole subtree, as is the usage.
	m.RSS, m.Cache = of(m.Raw, "total_rss"), of(m.Raw, "total_cache")
	m.Mapped = of(m.Raw, "total_mapped_file")
	m.Faults, m.MajorFaults = of(m.Raw, "total_pgfault"), of(m.Raw, "total_pgmajfault")
	m.WorkingSet = minus(m.Usage, of(m.Raw, "total_inactive_file"))
	m.OOMKills = of(d.keys("memory.oom_control"), "oom_kill")
	return m
}

func v1IO(d dir) []core.IOStats {
	var devices io
	read := func(files []string, set func(s *core.IOStats, op string, n uint64)) {
		for _, file := range files {
			text, ok := d.read(file)
			if !ok {
				continue
			}
			met := false
			for line := range strings.Lines(text) {
				f := strings.Fields(line) // "8:0 Read 4096"
				if len(f) != 3 {
					continue
				}
				n, s := number(f[2]), devices.device(f[0])
				if n.OK && s != nil {
					set(s, f[1], n.N)
					met = true
				}
			}
			if met {
				return
			}
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
