package figures

import (
	"time"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	"github.com/longshore/longshore/internal/core"
)

// Of are a container's figures in Mesos' units; what the kernel does not tell is
// left out.
func Of(st core.Stats) *mesosv1.ResourceStatistics {
	at := float64(st.At.UnixNano()) / float64(time.Second)
	r := &mesosv1.ResourceStatistics{
		Timestamp: &at,
		Processes: count(st.Pids.Processes), Threads: count(st.Pids.Current),
		CpusUserTimeSecs: seconds(st.CPU.User), CpusSystemTimeSecs: seconds(st.CPU.System),
		CpusNrPeriods: count(st.CPU.Periods), CpusNrThrottled: count(st.CPU.Throttled), CpusThrottledTimeSecs: seconds(st.CPU.ThrottledNS),
		MemTotalBytes: number(st.Memory.Usage), MemLimitBytes: number(st.Memory.Limit), MemRssBytes: number(st.Memory.RSS),
		MemCacheBytes: number(st.Memory.Cache), MemMappedFileBytes: number(st.Memory.Mapped), MemSwapBytes: number(st.Memory.Swap),
		MemAnonBytes: number(st.Memory.RSS), MemFileBytes: number(st.Memory.Cache),
	}
	if n, ok := st.Memory.Raw["unevictable"]; ok {
		r.MemUnevictableBytes = &n
	}
	network(r, st.Net)
	return r
}

// network sums up the interfaces; one of the host's network has none.
func network(r *mesosv1.ResourceStatistics, list []core.NetStats) {
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

func number(v core.Value) *uint64 {
	if !v.OK {
		return nil
	}
	return &v.N
}

func count(v core.Value) *uint32 {
	if !v.OK {
		return nil
	}
	n := uint32(min(v.N, 1<<32-1))
	return &n
}

func seconds(v core.Value) *float64 {
	if !v.OK {
		return nil
	}
	s := float64(v.N) / float64(time.Second)
	return &s
}
