package translate

import (
	"github.com/opencontainers/runtime-spec/specs-go"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// maxOOMScore is the kernel's bound.
const maxOOMScore = 1000

// Limited is a request with limits: one that creates a container, or one that updates it.
type Limited interface {
	GetMemoryBytes() uint64
	GetMemorySwapBytes() int64
	GetMemoryReservationBytes() uint64
	GetCpus() float64
	GetCpuShares() uint64
	GetCpusetCpus() string
	GetCpusetMems() string
	GetPids() int64
	GetCpuQuota() int64
	GetCpuPeriod() uint64
}

// The kernel's bounds of a period for quotas of CPU time, in microseconds.
const (
	minPeriod = 1_000
	maxPeriod = 1_000_000
)

// Resources returns the limits of a request. memory is the memory limit in force when the request has
// none; 0 is none.
func Resources(req Limited, memory int64) (*specs.LinuxResources, error) {
	l := ocispec.Limits{
		Memory: bytesOf(req.GetMemoryBytes()), CPUs: req.GetCpus(), Pids: max(req.GetPids(), 0), Shares: req.GetCpuShares(), Cpuset: req.GetCpusetCpus(),
	}
	res, err := l.Resources()
	if err != nil {
		return nil, err
	}
	if err := quota(res, req); err != nil {
		return nil, err
	}
	if l.Memory > 0 {
		memory = l.Memory
	}
	if mems := req.GetCpusetMems(); mems != "" {
		if res.CPU == nil {
			res.CPU = &specs.LinuxCPU{}
		}
		res.CPU.Mems = mems
	}
	swap, reserved := req.GetMemorySwapBytes(), bytesOf(req.GetMemoryReservationBytes())
	if res.Memory == nil && (swap != 0 || reserved > 0) {
		res.Memory = &specs.LinuxMemory{}
	}
	if swap != 0 {
		switch {
		case memory == 0:
			return nil, invalid.Errorf("a swap limit needs a memory limit")
		case swap != -1 && swap < memory:
			return nil, invalid.Errorf("%d bytes of memory and swap together are less than the %d bytes of memory", swap, memory)
		}
		res.Memory.Swap = &swap
	}
	if reserved > 0 {
		if memory > 0 && reserved > memory {
			return nil, invalid.Errorf("the memory reservation of %d bytes exceeds the limit of %d", reserved, memory)
		}
		res.Memory.Reservation = &reserved
	}
	return res, nil
}

// quota puts the request's quota of CPU time and its period into res.
func quota(res *specs.LinuxResources, req Limited) error {
	q, period := req.GetCpuQuota(), req.GetCpuPeriod()
	switch {
	case q == 0 && period == 0:
		return nil
	case req.GetCpus() != 0:
		return invalid.Errorf("cpus %v cannot be combined with a quota or a period: cpus is the quota divided by the period", req.GetCpus())
	case q != 0 && q < ocispec.MinQuota && q != -1:
		return invalid.Errorf("a CPU quota of %d µs is below the least, %d µs; -1 is no limit", q, ocispec.MinQuota)
	case period != 0 && (period < minPeriod || period > maxPeriod):
		return invalid.Errorf("a CPU period of %d µs is not between %d and %d", period, minPeriod, maxPeriod)
	}
	if res.CPU == nil {
		res.CPU = &specs.LinuxCPU{}
	}
	if q != 0 {
		res.CPU.Quota = &q
	}
	if period != 0 {
		res.CPU.Period = &period
	}
	return nil
}

// maxSwappiness is the kernel's bound on cgroup v1.
const maxSwappiness = 100

// reclaim puts the settings of cgroup v1's memory into res.
func reclaim(res *specs.LinuxResources, req *longshorev1.CreateRequest) error {
	if req.MemorySwappiness == nil && !req.GetOomKillDisable() {
		return nil
	}
	if res.Memory == nil {
		res.Memory = &specs.LinuxMemory{}
	}
	if n := req.MemorySwappiness; n != nil {
		if *n > maxSwappiness {
			return invalid.Errorf("memory swappiness %d is not between 0 and %d", *n, maxSwappiness)
		}
		res.Memory.Swappiness = n
	}
	if req.GetOomKillDisable() {
		if req.GetMemoryBytes() == 0 {
			return invalid.Errorf("without a memory limit a container must not disable the OOM killer: it could stop the whole node")
		}
		res.Memory.DisableOOMKiller = &req.OomKillDisable
	}
	return nil
}

// limits puts the request's limits into s.
func limits(s *specs.Spec, req *longshorev1.CreateRequest) error {
	if req.GetPids() < 0 {
		return invalid.Errorf("the limit of %d processes is negative", req.GetPids())
	}
	res, err := Resources(req, 0)
	if err != nil {
		return err
	}
	if err := reclaim(res, req); err != nil {
		return err
	}
	if res.BlockIO, err = blockIO(req); err != nil {
		return err
	}
	rules, err := deviceRules(req)
	if err != nil {
		return err
	}
	res.Devices = append(s.Linux.Resources.Devices, rules...)
	s.Linux.Resources = res
	if score := int(req.GetOomScoreAdj()); score != 0 {
		if score < -maxOOMScore || score > maxOOMScore {
			return invalid.Errorf("oom score %d is not between -%d and %d", score, maxOOMScore, maxOOMScore)
		}
		s.Process.OOMScoreAdj = &score
	}
	for _, u := range req.GetUlimits() {
		r, err := ocispec.Rlimit(u)
		if err != nil {
			return err
		}
		s.Process.Rlimits = append(s.Process.Rlimits, r)
	}
	return nil
}

// bytesOf returns n as the int64 that specs have; larger values do not limit anything.
func bytesOf(n uint64) int64 { return int64(min(n, 1<<62)) }
