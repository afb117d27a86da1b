package convert

import (
	"math"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/invalid"
)

// The kernel's bounds of oom_score_adj.
const (
	oomScoreMin = -1000
	oomScoreMax = 1000
)

// Resources translates limits. Zero means no wish in this API; -1 is unlimited
// for quota and swap.
func Resources(r *v1.LinuxContainerResources) (*specs.LinuxResources, error) {
	out := &specs.LinuxResources{}
	if r == nil {
		return out, nil
	}
	if r.GetCpuPeriod() < 0 || r.GetCpuShares() < 0 || r.GetCpuQuota() < -1 || r.GetMemoryLimitInBytes() < -1 || r.GetMemorySwapLimitInBytes() < -1 {
		return nil, invalid.Errorf("resources: a negative limit: cpu period %d, shares %d, quota %d, memory %d, swap %d",
			r.GetCpuPeriod(), r.GetCpuShares(), r.GetCpuQuota(), r.GetMemoryLimitInBytes(), r.GetMemorySwapLimitInBytes())
	}
	cpu := &specs.LinuxCPU{Cpus: r.GetCpusetCpus(), Mems: r.GetCpusetMems()}
	if v := r.GetCpuPeriod(); v != 0 {
		cpu.Period = proto.Uint64(uint64(v))
	}
	if v := r.GetCpuShares(); v != 0 {
		cpu.Shares = proto.Uint64(uint64(v))
	}
	if v := r.GetCpuQuota(); v != 0 {
		cpu.Quota = proto.Int64(v)
	}
	for _, set := range []string{cpu.Cpus, cpu.Mems} {
		if strings.Trim(set, "0123456789,-") != "" {
			return nil, invalid.Errorf("resources: cpuset %q", set)
		}
	}
	if *cpu != (specs.LinuxCPU{}) {
		out.CPU = cpu
	}
	if err := memory(r, out); err != nil {
		return nil, err
	}
	for _, h := range r.GetHugepageLimits() {
		if strings.ContainsAny(h.GetPageSize(), "/\x00. ") || h.GetPageSize() == "" {
			return nil, invalid.Errorf("resources: huge page size %q", h.GetPageSize())
		}
		out.HugepageLimits = append(out.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: h.GetPageSize(), Limit: h.GetLimit()})
	}
	for k, v := range r.GetUnified() {
		if k == "" || strings.ContainsAny(k, "/\x00") || strings.HasPrefix(k, ".") {
			return nil, invalid.Errorf("resources: cgroup file %q", k)
		}
		if out.Unified == nil {
			out.Unified = map[string]string{}
		}
		out.Unified[k] = v
	}
	return out, nil
}

func memory(r *v1.LinuxContainerResources, out *specs.LinuxResources) error {
	limit, swap := r.GetMemoryLimitInBytes(), r.GetMemorySwapLimitInBytes()
	if limit == 0 && swap == 0 {
		return nil
	}
	if limit > 0 && swap > 0 && swap < limit {
		return invalid.Errorf("resources: memory and swap limit %d is below the memory limit %d", swap, limit)
	}
	out.Memory = &specs.LinuxMemory{}
	if limit != 0 {
		out.Memory.Limit = proto.Int64(limit)
	}
	if swap != 0 {
		out.Memory.Swap = proto.Int64(swap)
	}
	return nil
}

// OOMScore is never left out: a program would inherit the keeper's.
func OOMScore(r *v1.LinuxContainerResources) (*int, error) {
	v := r.GetOomScoreAdj()
	if v < oomScoreMin || v > oomScoreMax {
		return nil, invalid.Errorf("resources: oom_score_adj %d", v)
	}
	n := int(v)
	return &n, nil
}

// UpdatedResources returns the resources of a status after an update: the requested values over the
// former ones, and the kernel's values if they were read.
func UpdatedResources(before *v1.ContainerResources, asked *v1.LinuxContainerResources, enforced *specs.LinuxResources) *v1.ContainerResources {
	l := before.GetLinux()
	if l == nil {
		l = &v1.LinuxContainerResources{}
	}
	l = proto.CloneOf(l)
	set := func(to *int64, v int64) {
		if v != 0 {
			*to = v
		}
	}
	set(&l.CpuPeriod, asked.GetCpuPeriod())
	set(&l.CpuQuota, asked.GetCpuQuota())
	set(&l.CpuShares, asked.GetCpuShares())
	set(&l.MemoryLimitInBytes, asked.GetMemoryLimitInBytes())
	set(&l.MemorySwapLimitInBytes, asked.GetMemorySwapLimitInBytes())
	if v := asked.GetCpusetCpus(); v != "" {
		l.CpusetCpus = v
	}
	if v := asked.GetCpusetMems(); v != "" {
		l.CpusetMems = v
	}
	for _, h := range asked.GetHugepageLimits() {
		l.HugepageLimits = slices.DeleteFunc(l.HugepageLimits, func(o *v1.HugepageLimit) bool { return o.GetPageSize() == h.GetPageSize() })
		l.HugepageLimits = append(l.HugepageLimits, proto.CloneOf(h))
	}
	for k, v := range asked.GetUnified() {
		if l.Unified == nil {
			l.Unified = map[string]string{}
		}
		l.Unified[k] = v
	}
	readBack(l, enforced)
	return &v1.ContainerResources{Linux: l}
}

// readBack takes the kernel's values of existing limits: the kernel rounds memory to pages and has
// no "unlimited" of this API. On cgroup v2, shares keep their requested value, because the kernel
// has a coarser weight, which runtimes compute in different ways.
func readBack(l *v1.LinuxContainerResources, enforced *specs.LinuxResources) {
	if enforced == nil {
		return
	}
	if c := enforced.CPU; c != nil {
		if _, weight := enforced.Unified["cpu.weight"]; !weight && c.Shares != nil && l.GetCpuShares() != 0 && *c.Shares <= math.MaxInt64 {
			l.CpuShares = int64(*c.Shares)
		}
		if c.Period != nil && l.GetCpuPeriod() != 0 && *c.Period <= math.MaxInt64 {
			l.CpuPeriod = int64(*c.Period)
		}
		if c.Quota != nil && l.GetCpuQuota() > 0 {
			l.CpuQuota = *c.Quota
		}
		if c.Cpus != "" && l.GetCpusetCpus() != "" {
			l.CpusetCpus = c.Cpus
		}
		if c.Mems != "" && l.GetCpusetMems() != "" {
			l.CpusetMems = c.Mems
		}
	}
	for _, h := range l.GetHugepageLimits() {
		for _, is := range enforced.HugepageLimits {
			if is.Pagesize == h.GetPageSize() {
				h.Limit = is.Limit
			}
		}
	}
	if m := enforced.Memory; m != nil {
		if m.Limit != nil && l.GetMemoryLimitInBytes() > 0 {
			l.MemoryLimitInBytes = *m.Limit
		}
		if m.Swap != nil && l.GetMemorySwapLimitInBytes() > 0 {
			l.MemorySwapLimitInBytes = *m.Swap
		}
	}
}
