package metric

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
)

// table lists all metrics.
func table() []metric {
	return slices.Concat(cpu(), memory(), pressure(), disk(), network(), tasks(), limits(), times())
}

func counter(name, help string, labels []string, samples func(o *Object) []sample) metric {
	return metric{name: name, help: help, kind: v1.MetricType_COUNTER, labels: labels, samples: samples}
}

func gauge(name, help string, labels []string, samples func(o *Object) []sample) metric {
	return metric{name: name, help: help, kind: v1.MetricType_GAUGE, labels: labels, samples: samples}
}

// single makes the samples of a metric with one value and no labels of its own.
func single(value func(s *core.Stats) core.Value) func(o *Object) []sample {
	return func(o *Object) []sample { return []sample{{value: value(&o.Stats)}} }
}

// The units of the kernel's times, by their number in a second.
const (
	nanos  = uint64(time.Second)
	micros = uint64(time.Second / time.Microsecond)
)

// seconds returns m as a metric in seconds whose samples are in a smaller unit; unit
// is their number in a second.
func seconds(unit uint64, m metric) metric {
	m.unit = unit
	return m
}

func cpu() []metric {
	return []metric{
		seconds(nanos, counter("container_cpu_usage_seconds_total", "CPU time used, in seconds.", []string{"cpu"},
			func(o *Object) []sample {
				return []sample{{value: o.Stats.CPU.Usage, labels: []string{"total"}}}
			})),
		seconds(nanos, counter("container_cpu_user_seconds_total", "CPU time used outside the kernel, in seconds.", nil,
			single(func(s *core.Stats) core.Value { return s.CPU.User }))),
		seconds(nanos, counter("container_cpu_system_seconds_total", "CPU time used in the kernel, in seconds.", nil,
			single(func(s *core.Stats) core.Value { return s.CPU.System }))),
		counter("container_cpu_cfs_periods_total", "Periods of the CPU quota that have passed.", nil,
			single(func(s *core.Stats) core.Value { return s.CPU.Periods })),
		counter("container_cpu_cfs_throttled_periods_total", "Periods in which the CPU quota was used up.", nil,
			single(func(s *core.Stats) core.Value { return s.CPU.Throttled })),
		seconds(nanos, counter("container_cpu_cfs_throttled_seconds_total", "Time spent waiting for the next period of the CPU quota, in seconds.", nil,
			single(func(s *core.Stats) core.Value { return s.CPU.ThrottledNS }))),
	}
}

func memory() []metric {
	return []metric{
		gauge("container_memory_usage_bytes", "Memory in use, whatever for, in bytes.", nil,
			single(func(s *core.Stats) core.Value { return s.Memory.Usage })),
		gauge("container_memory_working_set_bytes", "Memory in use without inactive file pages, in bytes.", nil,
			single(func(s *core.Stats) core.Value { return s.Memory.WorkingSet })),
		gauge("container_memory_rss", "Anonymous memory, in bytes.", nil,
			single(func(s *core.Stats) core.Value { return s.Memory.RSS })),
		gauge("container_memory_cache", "Memory of the page cache, in bytes.", nil,
			single(func(s *core.Stats) core.Value { return s.Memory.Cache })),
		gauge("container_memory_mapped_file", "Memory of mapped files, in bytes.", nil,
			single(func(s *core.Stats) core.Value { return s.Memory.Mapped })),
		gauge("container_memory_swap", "Swap in use, in bytes.", nil,
			single(func(s *core.Stats) core.Value { return s.Memory.Swap })),
		gauge("container_memory_kernel_usage", "Memory that the kernel uses on behalf, in bytes.", nil,
			single(func(s *core.Stats) core.Value { return s.Memory.Kernel })),
		gauge("container_memory_max_usage_bytes", "The most memory that was ever in use, in bytes.", nil,
			single(func(s *core.Stats) core.Value { return s.Memory.Peak })),
		counter("container_memory_failcnt", "How often the memory limit was met.", nil,
			single(func(s *core.Stats) core.Value { return s.Memory.FailCount })),
		counter("container_memory_failures_total", "Page faults: pgfault are all, pgmajfault those that had to read.", []string{"failure_type", "scope"}, faults),
		counter("container_oom_events_total", "Processes killed because memory ran out.", nil,
			single(func(s *core.Stats) core.Value { return s.Memory.OOMKills })),
		gauge("container_hugetlb_usage_bytes", "Huge pages in use, in bytes.", []string{"pagesize"},
			hugePages(func(h core.HugeStats) core.Value { return core.Known(h.Usage) })),
		gauge("container_hugetlb_max_usage_bytes", "The most huge pages that were ever in use, in bytes.", []string{"pagesize"},
			hugePages(func(h core.HugeStats) core.Value { return h.Max })),
	}
}

// faults are told of the whole hierarchy, and of the cgroup alone where the
// kernel counts that too: v1 does.
func faults(o *Object) []sample {
	m := &o.Stats.Memory
	out := []sample{
		{value: m.Faults, labels: []string{"pgfault", "hierarchy"}},
		{value: m.MajorFaults, labels: []string{"pgmajfault", "hierarchy"}},
	}
	if !countsAlone(m) {
		return out
	}
	for _, key := range []string{"pgfault", "pgmajfault"} {
		n, ok := m.Raw[key]
		out = append(out, sample{value: core.Value{N: n, OK: ok}, labels: []string{key, "container"}})
	}
	return out
}

// countsAlone reports whether memory.stat tells of the cgroup with and without
// those below it: that is cgroup v1.
func countsAlone(m *core.MemoryStats) bool {
	_, ok := m.Raw["total_rss"]
	return ok
}

func hugePages(value func(core.HugeStats) core.Value) func(o *Object) []sample {
	return func(o *Object) []sample {
		var out []sample
		for _, size := range slices.Sorted(maps.Keys(o.Stats.Huge)) {
			out = append(out, sample{value: value(o.Stats.Huge[size]), labels: []string{size}})
		}
		return out
	}
}

func pressure() []metric {
	var out []metric
	for _, what := range []string{"cpu", "io", "memory"} {
		of := func(line func(core.PressureStat) core.PressureLine) func(o *Object) []sample {
			return single(func(s *core.Stats) core.Value {
				p, ok := s.Pressure[what]
				return core.Value{N: line(p).Total, OK: ok}
			})
		}
		out = append(out,
			seconds(micros, counter("container_pressure_"+what+"_waiting_seconds_total", "Time in which some task waited for "+what+", in seconds.", nil,
				of(func(p core.PressureStat) core.PressureLine { return p.Some }))),
			seconds(micros, counter("container_pressure_"+what+"_stalled_seconds_total", "Time in which every task waited for "+what+", in seconds.", nil,
				of(func(p core.PressureStat) core.PressureLine { return p.Full }))))
	}
	return out
}

func disk() []metric {
	device := []string{"device"}
	perDevice := func(value func(core.IOStats) uint64) func(o *Object) []sample {
		return func(o *Object) []sample {
			var out []sample
			for _, d := range o.Stats.IO {
				out = append(out, sample{value: core.Known(value(d)), labels: []string{path(d.Device)}})
			}
			return out
		}
	}
	layer := func(value func(*core.RootStats) core.Value) func(o *Object) []sample {
		return func(o *Object) []sample {
			r := &o.Stats.Root
			return []sample{{value: value(r), labels: []string{r.Filesystem.Device}, at: r.At}}
		}
	}
	return []metric{
		counter("container_blkio_device_usage_total", "Bytes read from and written to a block device.",
			[]string{"device", "major", "minor", "operation"}, blocks),
		counter("container_fs_reads_bytes_total", "Bytes read from a block device.", device, perDevice(func(d core.IOStats) uint64 { return d.ReadBytes })),
		counter("container_fs_reads_total", "Reads from a block device.", device, perDevice(func(d core.IOStats) uint64 { return d.Reads })),
		counter("container_fs_writes_bytes_total", "Bytes written to a block device.", device, perDevice(func(d core.IOStats) uint64 { return d.WriteBytes })),
		counter("container_fs_writes_total", "Writes to a block device.", device, perDevice(func(d core.IOStats) uint64 { return d.Writes })),
		gauge("container_fs_usage_bytes", "Size of the container's own layer, in bytes.", device,
			layer(func(r *core.RootStats) core.Value { return r.Bytes })),
		gauge("container_fs_limit_bytes", "Size of the filesystem with the container's own layer, in bytes.", device,
			layer(func(r *core.RootStats) core.Value { return r.Filesystem.Bytes })),
		gauge("container_fs_inodes_total", "Inodes of the filesystem with the container's own layer.", device,
			layer(func(r *core.RootStats) core.Value { return r.Filesystem.Inodes })),
		gauge("container_fs_inodes_free", "Free inodes of the filesystem with the container's own layer.", device,
			layer(func(r *core.RootStats) core.Value { return r.Filesystem.FreeInodes })),
	}
}

func path(device string) string {
	if device == "" {
		return ""
	}
	return "/dev/" + device
}

func blocks(o *Object) []sample {
	var out []sample
	for _, d := range o.Stats.IO {
		major, minor := strconv.FormatUint(d.Major, 10), strconv.FormatUint(d.Minor, 10)
		out = append(out,
			sample{value: core.Known(d.ReadBytes), labels: []string{path(d.Device), major, minor, "Read"}},
			sample{value: core.Known(d.WriteBytes), labels: []string{path(d.Device), major, minor, "Write"}})
	}
	return out
}

func network() []metric {
	one := func(name, help string, value func(core.NetStats) uint64) metric {
		return counter("container_network_"+name+"_total", help, []string{"interface"}, func(o *Object) []sample {
			var out []sample
			for _, n := range o.Stats.Net {
				out = append(out, sample{value: core.Known(value(n)), labels: []string{n.Name}})
			}
			return out
		})
	}
	return []metric{
		one("receive_bytes", "Bytes received.", func(n core.NetStats) uint64 { return n.RxBytes }),
		one("receive_packets", "Packets received.", func(n core.NetStats) uint64 { return n.RxPackets }),
		one("receive_errors", "Errors while receiving.", func(n core.NetStats) uint64 { return n.RxErrors }),
		one("receive_packets_dropped", "Packets dropped while receiving.", func(n core.NetStats) uint64 { return n.RxDropped }),
		one("transmit_bytes", "Bytes sent.", func(n core.NetStats) uint64 { return n.TxBytes }),
		one("transmit_packets", "Packets sent.", func(n core.NetStats) uint64 { return n.TxPackets }),
		one("transmit_errors", "Errors while sending.", func(n core.NetStats) uint64 { return n.TxErrors }),
		one("transmit_packets_dropped", "Packets dropped while sending.", func(n core.NetStats) uint64 { return n.TxDropped }),
	}
}

func tasks() []metric {
	sum := func(value func(p *core.ProcessStats) core.Value) func(o *Object) []sample {
		return single(func(s *core.Stats) core.Value {
			var total core.Value
			for i := range s.Processes {
				if v := value(&s.Processes[i]); v.OK {
					total = core.Known(total.N + v.N)
				}
			}
			return total
		})
	}
	return []metric{
		gauge("container_processes", "Processes that run.", nil, single(func(s *core.Stats) core.Value { return s.Pids.Processes })),
		gauge("container_threads", "Threads that run.", nil, single(threads)),
		gauge("container_threads_max", "The most threads that may run; 0 is no limit.", nil, single(func(s *core.Stats) core.Value {
			return core.Value{N: s.Pids.Limit.N, OK: s.Pids.Current.OK}
		})),
		gauge("container_file_descriptors", "Open files of all processes.", nil, sum(func(p *core.ProcessStats) core.Value { return p.Files })),
		gauge("container_sockets", "Open sockets of all processes.", nil, sum(func(p *core.ProcessStats) core.Value { return p.Sockets })),
		gauge("container_ulimits_soft", "Soft limits of the main process.", []string{"ulimit"}, func(o *Object) []sample {
			for _, p := range o.Stats.Processes {
				if p.Pid == o.Main {
					return []sample{{value: p.FileLimit, labels: []string{"max_open_files"}}}
				}
			}
			return nil
		}),
	}
}

// threads are counted by the kernel, or else by looking at each process.
func threads(s *core.Stats) core.Value {
	v := s.Pids.Current
	if !v.OK {
		for _, p := range s.Processes {
			v = core.Known(v.N + uint64(p.Threads))
		}
	}
	return v
}

func limits() []metric {
	cpu := func(value func(*specs.LinuxCPU) core.Value) func(o *Object) []sample {
		return single(func(s *core.Stats) core.Value {
			if s.Limits == nil || s.Limits.CPU == nil {
				return core.Value{}
			}
			return value(s.Limits.CPU)
		})
	}
	memory := func(value func(*core.MemoryStats, *specs.LinuxMemory) core.Value) func(o *Object) []sample {
		return single(func(s *core.Stats) core.Value {
			if s.Limits == nil || s.Limits.Memory == nil {
				return core.Value{}
			}
			return value(&s.Memory, s.Limits.Memory)
		})
	}
	return []metric{
		gauge("container_spec_cpu_period", "Period of the CPU quota, in microseconds.", nil,
			cpu(func(c *specs.LinuxCPU) core.Value { return unsigned(c.Period) })),
		gauge("container_spec_cpu_quota", "CPU time allowed in each period, in microseconds; absent without a limit.", nil,
			cpu(func(c *specs.LinuxCPU) core.Value {
				if c.Quota == nil || *c.Quota <= 0 {
					return core.Value{}
				}
				return core.Known(uint64(*c.Quota))
			})),
		gauge("container_spec_cpu_shares", "Share of the CPU against others.", nil,
			cpu(func(c *specs.LinuxCPU) core.Value { return unsigned(c.Shares) })),
		gauge("container_spec_memory_limit_bytes", "Memory limit, in bytes; 0 is none.", nil,
			memory(func(_ *core.MemoryStats, m *specs.LinuxMemory) core.Value { return limit(m.Limit) })),
		gauge("container_spec_memory_reservation_limit_bytes", "Memory that is protected or wanted, in bytes; 0 is none.", nil,
			memory(func(_ *core.MemoryStats, m *specs.LinuxMemory) core.Value { return limit(m.Reservation) })),
		gauge("container_spec_memory_swap_limit_bytes", "Swap limit, in bytes, on cgroup v1 together with memory; 0 is none.", nil, memory(swapLimit)),
	}
}

func unsigned(n *uint64) core.Value {
	if n == nil {
		return core.Value{}
	}
	return core.Known(*n)
}

// limit is 0 when there is none.
func limit(n *int64) core.Value {
	if n == nil {
		return core.Value{}
	}
	return core.Known(uint64(max(*n, 0)))
}

// swapLimit is as the kernel counts it: with memory on v1, without on v2.
func swapLimit(m *core.MemoryStats, l *specs.LinuxMemory) core.Value {
	if l.Swap == nil || *l.Swap < 0 || countsAlone(m) || l.Limit == nil || *l.Limit < 0 {
		return limit(l.Swap)
	}
	return core.Known(uint64(max(*l.Swap-*l.Limit, 0)))
}

func times() []metric {
	at := func(t time.Time) core.Value { return core.Value{N: uint64(max(t.Unix(), 0)), OK: !t.IsZero()} }
	return []metric{
		gauge("container_start_time_seconds", "When it was started, in seconds since 1970.", nil,
			func(o *Object) []sample { return []sample{{value: at(o.Started)}} }),
		gauge("container_last_seen", "When these figures were read, in seconds since 1970.", nil,
			func(o *Object) []sample { return []sample{{value: at(o.Stats.At)}} }),
	}
}
