package view

import (
	"time"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	"github.com/longshore/longshore/internal/core"
)

// Statistics converts a container's stats. Values that the kernel does not provide are
// left out.
func Statistics(st core.Stats) *mesosv1.ResourceStatistics {
	at := float64(st.At.UnixNano()) / float64(time.Second)
	r := &mesosv1.ResourceStatistics{
		Timestamp: &at,
		Processes: uint32Of(st.Pids.Processes), Threads: uint32Of(st.Pids.Current),
		CpusUserTimeSecs: secondsOf(st.CPU.User), CpusSystemTimeSecs: secondsOf(st.CPU.System),
		CpusNrPeriods: uint32Of(st.CPU.Periods), CpusNrThrottled: uint32Of(st.CPU.Throttled), CpusThrottledTimeSecs: secondsOf(st.CPU.ThrottledNS),
		MemTotalBytes: uint64Of(st.Memory.Usage), MemLimitBytes: uint64Of(st.Memory.Limit), MemRssBytes: uint64Of(st.Memory.RSS),
		MemCacheBytes: uint64Of(st.Memory.Cache), MemMappedFileBytes: uint64Of(st.Memory.Mapped), MemSwapBytes: uint64Of(st.Memory.Swap),
		MemAnonBytes: uint64Of(st.Memory.RSS), MemFileBytes: uint64Of(st.Memory.Cache),
	}
	if n, ok := st.Memory.Raw["unevictable"]; ok {
		r.MemUnevictableBytes = &n
	}
	addNetwork(r, st.Net)
	return r
}

// addNetwork adds the sum over all interfaces. A container on the host's network has
// none.
func addNetwork(r *mesosv1.ResourceStatistics, list []core.NetStats) {
	if len(list) == 0 {
		return
	}
	var sum core.NetStats
	for _, n := range list {
		sum.RxBytes, sum.RxPackets, sum.RxErrors, sum.RxDropped = sum.RxBytes+n.RxBytes, sum.RxPackets+n.RxPackets, sum.RxErrors+n.RxErrors, sum.RxDropped+n.RxDropped
		sum.TxBytes, sum.TxPackets, sum.TxErrors, sum.TxDropped = sum.TxBytes+n.TxBytes, sum.TxPackets+n.TxPackets, sum.TxErrors+n.TxErrors, sum.TxDropped+n.TxDropped
	}
	r.NetRxBytes, r.NetRxPackets, r.NetRxErrors, r.NetRxDropped = &sum.RxBytes, &sum.RxPackets, &sum.RxErrors, &sum.RxDropped
	r.NetTxBytes, r.NetTxPackets, r.NetTxErrors, r.NetTxDropped = &sum.TxBytes, &sum.TxPackets, &sum.TxErrors, &sum.TxDropped
}

func uint64Of(v core.Value) *uint64 {
	if !v.OK {
		return nil
	}
	return &v.N
}

func uint32Of(v core.Value) *uint32 {
	if !v.OK {
		return nil
	}
	n := uint32(min(v.N, 1<<32-1))
	return &n
}

func secondsOf(v core.Value) *float64 {
	if !v.OK {
		return nil
	}
	s := float64(v.N) / float64(time.Second)
	return &s
}
