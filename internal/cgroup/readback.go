package cgroup

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/stats"
)

// Resources reads the limits that the kernel enforces. A field without a file in this
// kernel is nil; no limit is -1, as in the OCI spec. On v2, CPU.Shares is computed from
// the weight, which is coarser; Unified has the weight itself.
func (t *Tree) Resources(_ context.Context, ref core.CgroupRef) (*specs.LinuxResources, error) {
	if err := t.valid(ref); err != nil {
		return nil, fmt.Errorf("read limits: %w", err)
	}
	if t.layout.mode == core.CgroupV2 {
		dir := t.layout.v2Dir(ref)
		if !exists(dir) {
			return nil, fmt.Errorf("read limits of %s: %w", dir, errdefs.ErrNotFound)
		}
		return v2Resources(dir), nil
	}
	return t.v1Resources(ref)
}

// MemoryLimit reads how many bytes ref may use; 0 means no limit.
func (t *Tree) MemoryLimit(_ context.Context, ref core.CgroupRef) (uint64, error) {
	if err := t.valid(ref); err != nil {
		return 0, fmt.Errorf("read memory limit: %w", err)
	}
	dir, file := t.layout.v2Dir(ref), "memory.max"
	if t.layout.mode != core.CgroupV2 {
		dir, _ = t.layout.v1Dir(ref, "memory")
		file = "memory.limit_in_bytes"
	}
	text, ok := "", false
	if dir != "" {
		text, ok = readText(filepath.Join(dir, file))
	}
	if !ok {
		return 0, fmt.Errorf("read memory limit of cgroup %s: %w", ref.Path, errdefs.ErrNotFound)
	}
	if limit := signed(text); limit != nil && *limit > 0 {
		return uint64(*limit), nil
	}
	return 0, nil
}

func (t *Tree) v1Resources(ref core.CgroupRef) (*specs.LinuxResources, error) {
	found := false
	file := func(controller, name string) string {
		dir, ok := t.layout.v1Dir(ref, controller)
		if !ok {
			return ""
		}
		s, ok := readText(filepath.Join(dir, name))
		found = found || ok
		return s
	}
	res := &specs.LinuxResources{CPU: &specs.LinuxCPU{}, Memory: &specs.LinuxMemory{}, Pids: &specs.LinuxPids{}}
	res.CPU.Shares = unsigned(file("cpu", "cpu.shares"))
	res.CPU.Period = unsigned(file("cpu", "cpu.cfs_period_us"))
	res.CPU.Quota = signed(file("cpu", "cpu.cfs_quota_us"))
	res.CPU.Burst = unsigned(file("cpu", "cpu.cfs_burst_us"))
	res.CPU.Idle = signed(file("cpu", "cpu.idle"))
	res.CPU.Cpus = file("cpuset", "cpuset.cpus")
	res.CPU.Mems = file("cpuset", "cpuset.mems")
	res.Memory.Limit = signed(file("memory", "memory.limit_in_bytes"))
	res.Memory.Swap = signed(file("memory", "memory.memsw.limit_in_bytes"))
	res.Memory.Reservation = signed(file("memory", "memory.soft_limit_in_bytes"))
	res.Memory.Swappiness = unsigned(file("memory", "memory.swappiness"))
	res.Pids.Limit = signed(file("pids", "pids.max"))
	if dir, ok := t.layout.v1Dir(ref, "hugetlb"); ok {
		res.HugepageLimits = hugepages(dir, ".limit_in_bytes")
	}
	if !found {
		return nil, fmt.Errorf("read limits of cgroup %s: %w", ref.Path, errdefs.ErrNotFound)
	}
	return res, nil
}

func v2Resources(dir string) *specs.LinuxResources {
	file := func(name string) string {
		s, _ := readText(filepath.Join(dir, name))
		return s
	}
	res := &specs.LinuxResources{CPU: &specs.LinuxCPU{}, Memory: &specs.LinuxMemory{}, Pids: &specs.LinuxPids{}}
	readV2CPU(res, file)
	res.CPU.Burst = unsigned(file("cpu.max.burst"))
	res.CPU.Idle = signed(file("cpu.idle"))
	res.CPU.Cpus, res.CPU.Mems = file("cpuset.cpus"), file("cpuset.mems")
	readV2Memory(res, file)
	res.Pids.Limit = signed(file("pids.max"))
	res.HugepageLimits = hugepages(dir, ".max")
	return res
}

func readV2CPU(res *specs.LinuxResources, file func(name string) string) {
	if w := unsigned(file("cpu.weight")); w != nil {
		shares := CPUShares(*w)
		res.CPU.Shares = &shares
		res.Unified = map[string]string{"cpu.weight": strconv.FormatUint(*w, 10)}
	}
	if quota, period, ok := strings.Cut(file("cpu.max"), " "); ok {
		res.CPU.Quota, res.CPU.Period = signed(quota), unsigned(period)
	}
}

func readV2Memory(res *specs.LinuxResources, file func(name string) string) {
	res.Memory.Limit = signed(file("memory.max"))
	res.Memory.Reservation = signed(file("memory.low"))
	if swap := signed(file("memory.swap.max")); swap != nil {
		// The OCI value is memory and swap together.
		if l := res.Memory.Limit; *swap >= 0 && l != nil && *l >= 0 {
			*swap += *l
		} else {
			*swap = -1
		}
		res.Memory.Swap = swap
	}
}

// limits reads the limits that StatsLimits selects, by files of directories that stay open.
func (t *Tree) limits(ref core.CgroupRef, member string) *specs.LinuxResources {
	if t.layout.mode == core.CgroupV2 {
		file := func(name string) string { return t.text(member, name) }
		res := &specs.LinuxResources{CPU: &specs.LinuxCPU{}, Memory: &specs.LinuxMemory{}}
		readV2CPU(res, file)
		readV2Memory(res, file)
		return res
	}
	cpu, _ := t.layout.v1Dir(ref, "cpu")
	memory, _ := t.layout.v1Dir(ref, "memory")
	return &specs.LinuxResources{
		CPU: &specs.LinuxCPU{
			Shares: unsigned(t.text(cpu, "cpu.shares")), Period: unsigned(t.text(cpu, "cpu.cfs_period_us")), Quota: signed(t.text(cpu, "cpu.cfs_quota_us")),
		},
		Memory: &specs.LinuxMemory{
			Limit: signed(t.text(memory, "memory.limit_in_bytes")), Swap: signed(t.text(memory, "memory.memsw.limit_in_bytes")),
			Reservation: signed(t.text(memory, "memory.soft_limit_in_bytes")),
		},
	}
}

func (t *Tree) text(dir, name string) string {
	s, _ := t.kept.Text(dir, name)
	return s
}

// hugepages reads the limits of all page sizes that have one.
func hugepages(dir, ending string) (limits []specs.LinuxHugepageLimit) {
	files, err := filepath.Glob(filepath.Join(dir, "hugetlb.*"+ending))
	if err != nil {
		return nil
	}
	for _, path := range files {
		size := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "hugetlb."), ending)
		text, _ := readText(path)
		if n := unsigned(text); n != nil && *n < math.MaxInt64-1<<31 && !strings.HasSuffix(size, ".rsvd") {
			limits = append(limits, specs.LinuxHugepageLimit{Pagesize: size, Limit: *n})
		}
	}
	return limits
}

func readText(path string) (string, bool) {
	b, err := stats.File(path)
	return strings.TrimSpace(string(b)), err == nil
}

func unsigned(s string) *uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return nil
	}
	return &n
}

// signed reads a limit; "max", and v1's infinity rounded to pages, become -1.
func signed(s string) *int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case s == "max":
		n = -1
	case err != nil:
		return nil
	case n >= math.MaxInt64-1<<20:
		n = -1
	}
	return &n
}
