package translate

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// cgroupRoot is where cgroups are mounted, for Nomad as for us.
const cgroupRoot = "/sys/fs/cgroup"

// Adopt names Nomad's cgroups of a task: Nomad changes their cpusets when it assigns cores, and
// kills their processes in the end. Without any the task's are ours.
func Adopt(t *nomaddriver.TaskConfig) core.Cgroup {
	dir := filepath.Clean(t.GetResources().GetLinuxResources().GetCpusetCgroup())
	if !strings.HasPrefix(dir, cgroupRoot+"/") || !isDir(dir) {
		return core.Cgroup{}
	}
	rest, v1 := strings.CutPrefix(dir, cgroupRoot+"/cpuset/")
	if !v1 {
		return core.Cgroup{Adopt: map[string]string{"": dir}}
	}
	// PARENT/share, which all tasks share, or PARENT/reserve/TASK.
	parent, ok := strings.CutSuffix(rest, "/share")
	if !ok {
		parent, _, ok = strings.Cut(rest, "/reserve/")
	}
	adopted := map[string]string{"cpuset": dir}
	if ok {
		for _, c := range []string{"freezer", "cpu", "memory"} {
			if own := filepath.Join(cgroupRoot, c, parent, t.GetAllocId()+"."+t.GetName()); isDir(own) {
				adopted[c] = own
			}
		}
	}
	return core.Cgroup{Adopt: adopted}
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

// The bounds of CPU shares in the kernel.
const (
	minShares = 2
	maxShares = 262144
)

// cgroup is Adopt's, without a cpuset that all tasks share when this one names its
// CPUs itself.
func (a Task) cgroup() core.Cgroup {
	c := Adopt(a.Nomad)
	if strings.HasSuffix(c.Adopt["cpuset"], "/share") && a.Conf.Cpuset != "" {
		delete(c.Adopt, "cpuset")
	}
	return c
}

// resources are the task's limits. A task with cores of its own has a cpuset of
// its own, which is ours to fill; that of the others is Nomad's to change.
func (a Task) resources() (*specs.LinuxResources, error) {
	linux, mem := a.Nomad.GetResources().GetLinuxResources(), a.Nomad.GetResources().GetAllocatedResources().GetMemory()
	r := &specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: linux.GetCpusetCpus()}}
	if r.CPU.Cpus == "" {
		r.CPU.Cpus = a.Conf.Cpuset
	}
	hard, soft := memory(mem.GetMemoryMb(), mem.GetMemoryMaxMb(), a.Conf.HardMemoryMB)
	if hard > 0 {
		r.Memory = &specs.LinuxMemory{Limit: &hard}
	}
	if soft > 0 {
		if r.Memory == nil {
			r.Memory = &specs.LinuxMemory{}
		}
		r.Memory.Reservation = &soft
	}
	if err := a.podmanMemory(r); err != nil {
		return nil, err
	}
	if n := linux.GetCpuShares(); n > 0 {
		shares := uint64(min(max(n, minShares), maxShares))
		r.CPU.Shares = &shares
	}
	if a.Conf.HardCPU {
		if linux.GetPercentTicks() <= 0 {
			return nil, invalid.Errorf("config.cpu_hard_limit: Nomad does not tell the task's share of the node's CPU")
		}
		period := uint64(a.Conf.CPUPeriod)
		if period == 0 {
			period = ocispec.CPUPeriod
		}
		quota := max(int64(math.Round(linux.GetPercentTicks()*float64(runtime.NumCPU())*float64(period))), ocispec.MinQuota)
		r.CPU.Period, r.CPU.Quota = &period, &quota
	}
	pids := a.Conf.Pids
	if limit := a.Session.PidsLimit; pids == 0 || limit > 0 && (pids < 0 || pids > limit) {
		if pids != 0 {
			return nil, invalid.Errorf("config.pids_limit %d is above the node's of %d: pids_limit of the plugin", pids, limit)
		}
		pids = limit
	}
	if pids > 0 {
		r.Pids = &specs.LinuxPids{Limit: &pids}
	}
	return r, nil
}

// podmanMemory adds the limits that jobs of podman's driver have beside Nomad's.
func (a Task) podmanMemory(r *specs.LinuxResources) error {
	c := a.Conf
	if c.ReservedMemory == 0 && c.Swap == 0 && c.Swappiness == nil {
		return nil
	}
	if r.Memory == nil {
		r.Memory = &specs.LinuxMemory{}
	}
	limit := r.Memory.Limit
	switch {
	case limit != nil && c.ReservedMemory > *limit:
		return invalid.Errorf("config.memory_reservation of %d bytes is above the task's limit of %d", c.ReservedMemory, *limit)
	case c.Swap != 0 && limit == nil, limit != nil && c.Swap > 0 && c.Swap < *limit:
		return invalid.Errorf("config.memory_swap of %d bytes is memory and swap together, and must not be below the task's memory limit", c.Swap)
	}
	if c.ReservedMemory > 0 {
		r.Memory.Reservation = &c.ReservedMemory
	}
	if c.Swap != 0 {
		r.Memory.Swap = &c.Swap
	}
	r.Memory.Swappiness = c.Swappiness
	return nil
}

// memory is the limit that kills and the one that is reclaimed down to, bytes; 0
// is none. Nomad tells megabytes, and a most of -1 for no limit.
func memory(mb, mostMB, hardMB int64) (hard, soft int64) {
	switch {
	case hardMB > 0: // docker's way of saying memory_max
		return hardMB << 20, mb << 20
	case mostMB < 0:
		return 0, mb << 20
	case mostMB > 0:
		return mostMB << 20, mb << 20
	}
	return mb << 20, 0
}
