package cgroup

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// CPUWeight converts v1's cpu.shares (2 to 262144, usually 1024) into v2's cpu.weight (1
// to 10000, usually 100). 0 means unset and stays 0.
func CPUWeight(shares uint64) uint64 {
	if shares == 0 {
		return 0
	}
	shares = min(max(shares, 2), 262144)
	return 1 + (shares-2)*9999/262142
}

// CPUShares is the inverse of CPUWeight, as closely as possible.
func CPUShares(weight uint64) uint64 {
	if weight == 0 {
		return 0
	}
	weight = min(max(weight, 1), 10000)
	return 2 + ((weight-1)*262142+9998)/9999
}

// ioWeight converts v1's weight (10 to 1000) into v2's (1 to 10000).
func ioWeight(w uint16) uint64 {
	v := uint64(min(max(w, 10), 1000))
	return 1 + (v-10)*9999/990
}

// keepQuota stands for the existing quota in a value for cpu.max: a period can only be
// written together with a quota.
const keepQuota = "="

// v2Settings returns the files and values to write. Those of Unified come last, so they
// win.
func v2Settings(res *specs.LinuxResources) ([]setting, error) {
	var out []setting
	add := func(controller, file, value string) {
		out = append(out, setting{controller: controller, file: file, value: value})
	}
	limit := func(controller, file string, n int64) {
		if n < 0 {
			out = append(out, setting{controller: controller, file: file, value: "max", idle: true})
		} else {
			add(controller, file, strconv.FormatInt(n, 10))
		}
	}
	if c := res.CPU; c != nil {
		if err := v2CPU(c, add); err != nil {
			return nil, err
		}
	}
	if m := res.Memory; m != nil {
		if err := v2Memory(m, limit); err != nil {
			return nil, err
		}
	}
	if p := res.Pids; p != nil && p.Limit != nil {
		n := *p.Limit
		if n == 0 {
			n = -1
		}
		limit("pids", "pids.max", n)
	}
	if b := res.BlockIO; b != nil {
		v2BlockIO(b, add)
	}
	for _, h := range res.HugepageLimits {
		out = append(out, setting{
			controller: "hugetlb", file: "hugetlb." + h.Pagesize + ".max",
			value: strconv.FormatUint(h.Limit, 10), idle: h.Limit == 0,
		})
	}
	if res.Network != nil && (res.Network.ClassID != nil && *res.Network.ClassID != 0 || len(res.Network.Priorities) > 0) {
		return nil, fmt.Errorf("net_cls and net_prio are not in cgroup v2: %w", errdefs.ErrInvalidArgument)
	}
	out = append(out, rdmaSettings(res)...)
	for _, file := range slices.Sorted(maps.Keys(res.Unified)) {
		controller, _, ok := strings.Cut(file, ".")
		if !ok || strings.ContainsAny(file, "/\x00") || controller == "cgroup" {
			return nil, fmt.Errorf("unified resource %q: %w", file, errdefs.ErrInvalidArgument)
		}
		for value := range strings.SplitSeq(strings.TrimSpace(res.Unified[file]), "\n") {
			add(controller, file, value)
		}
	}
	return out, nil
}

func v2CPU(c *specs.LinuxCPU, add func(controller, file, value string)) error {
	if c.RealtimePeriod != nil && *c.RealtimePeriod != 0 || c.RealtimeRuntime != nil && *c.RealtimeRuntime != 0 {
		return fmt.Errorf("real-time cpu limits are not in cgroup v2: %w", errdefs.ErrInvalidArgument)
	}
	if c.Idle != nil {
		add("cpu", "cpu.idle", strconv.FormatInt(*c.Idle, 10))
	}
	idle := c.Idle != nil && *c.Idle != 0 // an idle group accepts no weight
	if c.Shares != nil && *c.Shares != 0 && !idle {
		add("cpu", "cpu.weight", strconv.FormatUint(CPUWeight(*c.Shares), 10))
	}
	if c.Quota != nil && *c.Quota != 0 || c.Period != nil && *c.Period != 0 {
		value := keepQuota
		switch {
		case c.Quota == nil || *c.Quota == 0:
		case *c.Quota < 0:
			value = "max"
		default:
			value = strconv.FormatInt(*c.Quota, 10)
		}
		if c.Period != nil && *c.Period != 0 {
			value += " " + strconv.FormatUint(*c.Period, 10)
		}
		add("cpu", "cpu.max", value)
	}
	if c.Burst != nil {
		add("cpu", "cpu.max.burst", strconv.FormatUint(*c.Burst, 10))
	}
	if c.Cpus != "" {
		add("cpuset", "cpuset.cpus", c.Cpus)
	}
	if c.Mems != "" {
		add("cpuset", "cpuset.mems", c.Mems)
	}
	return nil
}

func v2Memory(m *specs.LinuxMemory, limit func(controller, file string, n int64)) error {
	if m.Swap != nil && *m.Swap != 0 {
		swap := *m.Swap
		if swap > 0 {
			if m.Limit == nil || *m.Limit <= 0 {
				return fmt.Errorf("a memory+swap limit of %d needs a memory limit: %w", swap, errdefs.ErrInvalidArgument)
			}
			if swap -= *m.Limit; swap < 0 {
				return fmt.Errorf("a memory+swap limit of %d is below the memory limit of %d: %w", *m.Swap, *m.Limit, errdefs.ErrInvalidArgument)
			}
		}
		limit("memory", "memory.swap.max", swap)
	}
	if m.Limit != nil && *m.Limit != 0 {
		limit("memory", "memory.max", *m.Limit)
	}
	if m.Reservation != nil && *m.Reservation != 0 {
		limit("memory", "memory.low", *m.Reservation)
	}
	return nil
}

func v2BlockIO(b *specs.LinuxBlockIO, add func(controller, file, value string)) {
	if b.Weight != nil && *b.Weight != 0 {
		add("io", "io.weight", "default "+strconv.FormatUint(ioWeight(*b.Weight), 10))
	}
	for _, d := range b.WeightDevice {
		if d.Weight != nil {
			add("io", "io.weight", fmt.Sprintf("%d:%d %d", d.Major, d.Minor, ioWeight(*d.Weight)))
		}
	}
	for _, k := range []struct {
		key  string
		devs []specs.LinuxThrottleDevice
	}{
		{"rbps", b.ThrottleReadBpsDevice},
		{"wbps", b.ThrottleWriteBpsDevice},
		{"riops", b.ThrottleReadIOPSDevice},
		{"wiops", b.ThrottleWriteIOPSDevice},
	} {
		for _, d := range k.devs {
			rate := strconv.FormatUint(d.Rate, 10)
			if d.Rate == 0 {
				rate = "max"
			}
			add("io", "io.max", fmt.Sprintf("%d:%d %s=%s", d.Major, d.Minor, k.key, rate))
		}
	}
}
