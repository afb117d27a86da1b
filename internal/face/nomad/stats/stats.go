// Package stats reads a container's usage and translates it to Nomad's task stats.
//
// Nomad wants shares of the CPU, which are measured between two reads, so a Reader
// remembers the last one. The package does not know tasks. Start at Reader.
package stats

import (
	"context"
	"strconv"
	"sync"

	"google.golang.org/protobuf/types/known/timestamppb"

	nomadbase "github.com/longshore/longshore/api/nomad/base"
	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// Reader reads usage.
type Reader struct {
	engine *engine.Client

	mu   sync.Mutex // guards last
	last map[core.ID]sample
}

// sample is the start of an interval for shares.
type sample struct {
	stats core.Stats
	pids  map[int]core.ProcessStats
}

// New returns a Reader without any earlier read.
func New(e *engine.Client) *Reader { return &Reader{engine: e, last: map[core.ID]sample{}} }

// Forget drops the sample of a container.
func (r *Reader) Forget(id core.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, id)
}

// Read reads the usage of a container from a fresh record. Mhz is a core's speed; 0 is unknown.
func (r *Reader) Read(ctx context.Context, c core.Container, task string, mhz float64) (*nomaddriver.TaskStats, error) {
	st, err := r.engine.Stats.OfContainer(ctx, &c, core.StatsUsage|core.StatsDetail|core.StatsProcesses)
	if err != nil {
		return nil, err
	}
	now := sample{stats: st, pids: make(map[int]core.ProcessStats, len(st.Processes))}
	for _, p := range st.Processes {
		now.pids[p.Pid] = p
	}
	r.mu.Lock()
	before := r.last[c.ID]
	r.last[c.ID] = now
	r.mu.Unlock()
	out := &nomaddriver.TaskStats{
		Id: task, Timestamp: timestamppb.New(st.At),
		AggResourceUsage:   &nomaddriver.TaskResourceUsage{Cpu: cpu(before.stats, st, mhz), Memory: memory(st.Memory)},
		ResourceUsageByPid: make(map[string]*nomaddriver.TaskResourceUsage, len(now.pids)),
	}
	for pid, p := range now.pids {
		out.ResourceUsageByPid[strconv.Itoa(pid)] = process(before, st, p, mhz)
	}
	return out, nil
}

// share is how much of one core went between two counts, in percent; 0 when there
// is only one.
func share(before, now core.Stats, was, is uint64) float64 {
	if before.At.IsZero() || !now.At.After(before.At) || is < was {
		return 0
	}
	return 100 * float64(is-was) / float64(now.At.Sub(before.At).Nanoseconds())
}

func cpu(before, now core.Stats, mhz float64) *nomaddriver.CPUUsage {
	out := &nomaddriver.CPUUsage{}
	measured := func(f nomaddriver.CPUUsage_Fields) { out.MeasuredFields = append(out.MeasuredFields, f) }
	if now.CPU.Usage.OK {
		out.Percent = share(before, now, before.CPU.Usage.N, now.CPU.Usage.N)
		measured(nomaddriver.CPUUsage_PERCENT)
		if mhz > 0 {
			out.TotalTicks = out.Percent / 100 * mhz
			measured(nomaddriver.CPUUsage_TOTAL_TICKS)
		}
	}
	if now.CPU.User.OK && now.CPU.System.OK {
		out.UserMode = share(before, now, before.CPU.User.N, now.CPU.User.N)
		out.SystemMode = share(before, now, before.CPU.System.N, now.CPU.System.N)
		measured(nomaddriver.CPUUsage_USER_MODE)
		measured(nomaddriver.CPUUsage_SYSTEM_MODE)
	}
	if now.CPU.Throttled.OK {
		out.ThrottledPeriods = now.CPU.Throttled.N
		measured(nomaddriver.CPUUsage_THROTTLED_PERIODS)
	}
	if now.CPU.ThrottledNS.OK {
		out.ThrottledTime = now.CPU.ThrottledNS.N
		measured(nomaddriver.CPUUsage_THROTTLED_TIME)
	}
	return out
}

func memory(m core.MemoryStats) *nomaddriver.MemoryUsage {
	out := &nomaddriver.MemoryUsage{}
	for _, v := range []struct {
		from  core.Value
		to    *uint64
		field nomaddriver.MemoryUsage_Fields
	}{
		{m.RSS, &out.Rss, nomaddriver.MemoryUsage_RSS},
		{m.Cache, &out.Cache, nomaddriver.MemoryUsage_CACHE},
		{m.Peak, &out.MaxUsage, nomaddriver.MemoryUsage_MAX_USAGE},
		{m.Kernel, &out.KernelUsage, nomaddriver.MemoryUsage_KERNEL_USAGE},
		{m.Usage, &out.Usage, nomaddriver.MemoryUsage_USAGE},
		{m.Swap, &out.Swap, nomaddriver.MemoryUsage_SWAP},
	} {
		if v.from.OK {
			*v.to = v.from.N
			out.MeasuredFields = append(out.MeasuredFields, v.field)
		}
	}
	return out
}

func process(before sample, now core.Stats, p core.ProcessStats, mhz float64) *nomaddriver.TaskResourceUsage {
	out := &nomaddriver.TaskResourceUsage{
		Memory: &nomaddriver.MemoryUsage{
			Rss: p.RSS, Swap: p.Swap, MeasuredFields: []nomaddriver.MemoryUsage_Fields{nomaddriver.MemoryUsage_RSS, nomaddriver.MemoryUsage_SWAP},
		},
		Cpu: &nomaddriver.CPUUsage{MeasuredFields: []nomaddriver.CPUUsage_Fields{
			nomaddriver.CPUUsage_SYSTEM_MODE, nomaddriver.CPUUsage_USER_MODE, nomaddriver.CPUUsage_PERCENT,
		}},
	}
	was, ok := before.pids[p.Pid]
	if !ok {
		return out
	}
	out.Cpu.UserMode, out.Cpu.SystemMode = share(before.stats, now, was.User, p.User), share(before.stats, now, was.System, p.System)
	out.Cpu.Percent = out.Cpu.UserMode + out.Cpu.SystemMode
	if mhz > 0 {
		out.Cpu.TotalTicks = out.Cpu.Percent / 100 * mhz
		out.Cpu.MeasuredFields = append(out.Cpu.MeasuredFields, nomaddriver.CPUUsage_TOTAL_TICKS)
	}
	return out
}

// Speed is a core's speed in MHz by Nomad's topology of the node, the mean of all; 0 if it has
// none.
func Speed(t *nomadbase.ClientTopology) float64 {
	cores := t.GetCores()
	if len(cores) == 0 {
		return 0
	}
	var sum uint64
	for _, c := range cores {
		// The first known one counts, in Nomad's order.
		for _, s := range []uint64{c.GetBaseSpeed(), c.GetMaxSpeed(), c.GetGuessSpeed()} {
			if s > 0 {
				sum += s
				break
			}
		}
	}
	if total := t.GetOverrideTotalCompute(); total > 0 {
		sum = total
	}
	return float64(sum) / float64(len(cores))
}
