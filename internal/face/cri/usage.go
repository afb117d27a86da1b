package cri

import (
	"math"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
)

// A value that the kernel does not report stays nil in every answer: kubelet supports unknown
// values, and zero would be wrong.

func value(v core.Value) *v1.UInt64Value {
	if !v.OK {
		return nil
	}
	return &v1.UInt64Value{Value: v.N}
}

func known(n uint64) *v1.UInt64Value { return &v1.UInt64Value{Value: n} }

// psi turns the kernel's microseconds into nanoseconds.
func psi(p map[string]core.PressureStat, what string) *v1.PsiStats {
	s, ok := p[what]
	if !ok {
		return nil
	}
	line := func(l core.PressureLine) *v1.PsiData {
		total := uint64(math.MaxUint64)
		if l.Total <= math.MaxUint64/1000 {
			total = l.Total * 1000
		}
		return &v1.PsiData{Total: total, Avg10: l.Avg10, Avg60: l.Avg60, Avg300: l.Avg300}
	}
	return &v1.PsiStats{Full: line(s.Full), Some: line(s.Some)}
}

func cpuUsage(s core.Stats) *v1.CpuUsage {
	return &v1.CpuUsage{Timestamp: nanos(s.At), UsageCoreNanoSeconds: value(s.CPU.Usage), Psi: psi(s.Pressure, "cpu")}
}

func memoryUsage(s core.Stats) *v1.MemoryUsage {
	m := s.Memory
	out := &v1.MemoryUsage{
		Timestamp: nanos(s.At), WorkingSetBytes: value(m.WorkingSet), UsageBytes: value(m.Usage), RssBytes: value(m.RSS),
		PageFaults: value(m.Faults), MajorPageFaults: value(m.MajorFaults), Psi: psi(s.Pressure, "memory"),
	}
	if left, ok := less(m.Limit, m.WorkingSet); ok {
		out.AvailableBytes = known(left)
	}
	return out
}

// less is limit minus used, 0 when more is used.
func less(limit, used core.Value) (uint64, bool) {
	if !limit.OK || !used.OK {
		return 0, false
	}
	return limit.N - min(limit.N, used.N), true
}

func swapUsage(s core.Stats) *v1.SwapUsage {
	if !s.Memory.Swap.OK {
		return nil
	}
	out := &v1.SwapUsage{Timestamp: nanos(s.At), SwapUsageBytes: value(s.Memory.Swap)}
	if left, ok := less(s.Memory.SwapLimit, s.Memory.Swap); ok {
		out.SwapAvailableBytes = known(left)
	}
	return out
}

func ioUsage(s core.Stats) *v1.IoUsage {
	p := psi(s.Pressure, "io")
	if p == nil {
		return nil
	}
	return &v1.IoUsage{Timestamp: nanos(s.At), Psi: p}
}

// layerUsage is a container's own layer; mountpoint is that of the image store; kubelet finds the
// filesystem by it.
func layerUsage(s core.Stats, mountpoint string) *v1.FilesystemUsage {
	if !s.Root.Bytes.OK && !s.Root.Inodes.OK {
		return nil
	}
	at := s.Root.At
	if at.IsZero() {
		at = s.At
	}
	u := &v1.FilesystemUsage{Timestamp: nanos(at), UsedBytes: value(s.Root.Bytes), InodesUsed: value(s.Root.Inodes)}
	if mountpoint != "" {
		u.FsId = &v1.FilesystemIdentifier{Mountpoint: mountpoint}
	}
	return u
}

func containerStats(c *core.Container, r containerRecord, s core.Stats, mountpoint string) *v1.ContainerStats {
	return &v1.ContainerStats{
		Attributes: &v1.ContainerAttributes{
			Id: string(c.ID), Metadata: r.Config.GetMetadata(), Labels: r.Config.GetLabels(), Annotations: r.Config.GetAnnotations(),
		},
		Cpu: cpuUsage(s), Memory: memoryUsage(s), WritableLayer: layerUsage(s, mountpoint), Swap: swapUsage(s), Io: ioUsage(s),
	}
}

func podStats(sb *core.Sandbox, r podRecord, s core.Stats, containers []*v1.ContainerStats) *v1.PodSandboxStats {
	linux := &v1.LinuxPodSandboxStats{
		Cpu: cpuUsage(s), Memory: memoryUsage(s), Network: networkUsage(sb, s), Containers: containers, Io: ioUsage(s),
	}
	if s.Pids.Processes.OK {
		linux.Process = &v1.ProcessUsage{Timestamp: nanos(s.At), ProcessCount: value(s.Pids.Processes)}
	}
	return &v1.PodSandboxStats{
		Attributes: &v1.PodSandboxAttributes{
			Id: string(sb.ID), Metadata: r.Config.GetConfig().GetMetadata(), Labels: r.Config.GetConfig().GetLabels(), Annotations: r.Config.GetConfig().GetAnnotations(),
		},
		Linux: linux,
	}
}

// networkUsage tells of all interfaces but loopback. The default one is the
// first that the network made.
func networkUsage(sb *core.Sandbox, s core.Stats) *v1.NetworkUsage {
	if len(s.Net) == 0 {
		return nil
	}
	first := "eth0"
	if len(sb.Network.Interfaces) > 0 && sb.Network.Interfaces[0].Interface != "" {
		first = sb.Network.Interfaces[0].Interface
	}
	u := &v1.NetworkUsage{Timestamp: nanos(s.At)}
	for _, n := range s.Net {
		if n.Name == "lo" {
			continue
		}
		i := &v1.NetworkInterfaceUsage{
			Name: n.Name, RxBytes: known(n.RxBytes), RxErrors: known(n.RxErrors), TxBytes: known(n.TxBytes), TxErrors: known(n.TxErrors),
		}
		u.Interfaces = append(u.Interfaces, i)
		if n.Name == first {
			u.DefaultInterface = i
		}
	}
	return u
}
