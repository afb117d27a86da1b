package view

import (
	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
)

// known returns nil for a value that is not known.
func known(v core.Value) *uint64 {
	if !v.OK {
		return nil
	}
	return &v.N
}

// Stats converts a container's stats. last are those of the round before, for the share of the processors; zero in the first
// round.
func Stats(c core.Container, st, last core.Stats) *longshorev1.ContainerStats {
	out := &longshorev1.ContainerStats{
		Id: string(c.ID), Owner: string(c.Owner), Key: string(c.Key), At: Time(st.At),
		CpuUsageNs: known(st.CPU.Usage), MemoryBytes: known(st.Memory.Usage), WorkingSetBytes: known(st.Memory.WorkingSet),
		MemoryLimitBytes: known(st.Memory.Limit), MemoryPeakBytes: known(st.Memory.Peak), SwapBytes: known(st.Memory.Swap),
		Pids: known(st.Pids.Current), PidsLimit: known(st.Pids.Limit), RootBytes: known(st.Root.Bytes),
	}
	for _, d := range st.IO {
		out.ReadBytes += d.ReadBytes
		out.WriteBytes += d.WriteBytes
	}
	for _, n := range st.Net {
		if n.Name != "lo" {
			out.RxBytes += n.RxBytes
			out.TxBytes += n.TxBytes
		}
	}
	if passed := st.At.Sub(last.At); st.CPU.Usage.OK && last.CPU.Usage.OK && passed > 0 && st.CPU.Usage.N >= last.CPU.Usage.N {
		percent := 100 * float64(st.CPU.Usage.N-last.CPU.Usage.N) / float64(passed.Nanoseconds())
		out.CpuPercent = &percent
	}
	return out
}
