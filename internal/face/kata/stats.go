package kata

import (
	"context"
	"maps"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/core"
)

// StatsContainer implements katav1.AgentServiceService.
func (s *service) StatsContainer(ctx context.Context, req *katav1.StatsContainerRequest) (*katav1.StatsContainerResponse, error) {
	ct, err := s.face.container(ctx, req.GetContainerId())
	if err != nil {
		return nil, unknown(req.GetContainerId(), err)
	}
	st, err := s.face.o.Engine.Stats.Container(ctx, ct.ID, core.StatsUsage|core.StatsDetail)
	if err != nil {
		return nil, err
	}
	links, err := s.face.o.Machine.LinkStats(ctx)
	if err != nil {
		return nil, err
	}
	answer := &katav1.StatsContainerResponse{CgroupStats: toCgroupStats(&st), NetworkStats: toNetStats(links)}
	answer.CgroupStats.BlkioStats = toIOStats(st.IO, s.face.o.Unified != nil && s.face.o.Unified())
	return answer, nil
}

// toCgroupStats has 0 for values that this kernel does not report, because the protocol has no
// other form for it.
func toCgroupStats(st *core.Stats) *katav1.CgroupStats {
	c, m := &st.CPU, &st.Memory
	out := &katav1.CgroupStats{
		CpuStats: &katav1.CpuStats{
			CpuUsage:       &katav1.CpuUsage{TotalUsage: c.Usage.N, PercpuUsage: c.PerCPU, UsageInKernelmode: c.System.N, UsageInUsermode: c.User.N},
			ThrottlingData: &katav1.ThrottlingData{Periods: c.Periods.N, ThrottledPeriods: c.Throttled.N, ThrottledTime: c.ThrottledNS.N},
		},
		MemoryStats: &katav1.MemoryStats{
			Cache: m.Cache.N, Usage: &katav1.MemoryData{Usage: m.Usage.N, MaxUsage: m.Peak.N, Failcnt: m.FailCount.N, Limit: m.Limit.N},
			SwapUsage: &katav1.MemoryData{Usage: m.Swap.N, Limit: m.SwapLimit.N}, KernelUsage: &katav1.MemoryData{Usage: m.Kernel.N},
			UseHierarchy: true, Stats: memoryStats(m),
		},
		PidsStats: &katav1.PidsStats{Current: st.Pids.Current.N, Limit: st.Pids.Limit.N},
	}
	for size, h := range st.Huge {
		if out.HugetlbStats == nil {
			out.HugetlbStats = map[string]*katav1.HugetlbStats{}
		}
		out.HugetlbStats[size] = &katav1.HugetlbStats{Usage: h.Usage, MaxUsage: h.Max.N, Failcnt: h.Failures}
	}
	return out
}

// toIOStats has the names that shims know: on a machine with cgroup v2 all figures of a
// disk are in one list, under the names of io.stat.
func toIOStats(list []core.IOStats, unified bool) *katav1.BlkioStats {
	out := &katav1.BlkioStats{}
	for _, d := range list {
		entry := func(op string, n uint64) *katav1.BlkioStatsEntry {
			return &katav1.BlkioStatsEntry{Major: d.Major, Minor: d.Minor, Op: op, Value: n}
		}
		if unified {
			out.IoServiceBytesRecursive = append(out.IoServiceBytesRecursive, entry("read", d.ReadBytes), entry("write", d.WriteBytes), entry("rios", d.Reads), entry("wios", d.Writes))
			continue
		}
		out.IoServiceBytesRecursive = append(out.IoServiceBytesRecursive, entry("Read", d.ReadBytes), entry("Write", d.WriteBytes))
		out.IoServicedRecursive = append(out.IoServicedRecursive, entry("Read", d.Reads), entry("Write", d.Writes))
	}
	return out
}

// memoryStats is memory.stat with the figures that the shim of a host with cgroup v2
// looks for there.
func memoryStats(m *core.MemoryStats) map[string]uint64 {
	all := maps.Clone(m.Raw)
	if all == nil {
		all = map[string]uint64{}
	}
	for name, v := range map[string]core.Value{"usage": m.Usage, "usage_limit": m.Limit, "swap_usage": m.Swap, "swap_limit": m.SwapLimit} {
		if v.OK {
			all[name] = v.N
		}
	}
	return all
}

func toNetStats(list []core.NetStats) (out []*katav1.NetworkStats) {
	for _, n := range list {
		out = append(out, &katav1.NetworkStats{
			Name: n.Name, RxBytes: n.RxBytes, RxPackets: n.RxPackets, RxErrors: n.RxErrors, RxDropped: n.RxDropped,
			TxBytes: n.TxBytes, TxPackets: n.TxPackets, TxErrors: n.TxErrors, TxDropped: n.TxDropped,
		})
	}
	return out
}
