package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// setting is a value for one file in one controller's directory.
type setting struct {
	controller string
	file       string
	value      string
	// idle settings mean "no limit". They are dropped if the controller is missing; for
	// other settings that is an error.
	idle bool
}

// limit writes the limits that res names.
func (t *Tree) limit(ref core.CgroupRef, res *specs.LinuxResources) error {
	if res == nil {
		return nil
	}
	if t.layout.mode == core.CgroupV2 {
		settings, err := v2Settings(res)
		if err != nil {
			return err
		}
		dir := t.layout.v2Dir(ref)
		for _, s := range settings {
			if rest, ok := strings.CutPrefix(s.value, keepQuota); ok {
				now, _ := readText(filepath.Join(dir, s.file))
				quota, _, _ := strings.Cut(now, " ")
				s.value = quota + rest
			}
			if err := apply(dir, s); err != nil {
				return err
			}
		}
		return nil
	}
	if len(res.Unified) > 0 {
		return fmt.Errorf("unified resources on a v1 machine: %w", errdefs.ErrInvalidArgument)
	}
	settings := v1Settings(res)
	if dir, ok := t.layout.v1Dir(ref, "memory"); ok {
		settings = orderMemory(dir, settings)
	}
	for _, s := range settings {
		dir, ok := t.layout.v1Dir(ref, s.controller)
		if !ok {
			dir = ""
		}
		if err := apply(dir, s); err != nil {
			return err
		}
	}
	return nil
}

// walks are files that make the kernel walk all groups of the machine at a write, even if the value
// does not change.
var walks = map[string]bool{
	"cpu.cfs_period_us": true, "cpu.cfs_quota_us": true, "cpu.max": true, "cpuset.cpus": true, "cpuset.mems": true,
}

func apply(dir string, s setting) error {
	path := filepath.Join(dir, s.file)
	if dir != "" && walks[s.file] {
		if now, err := readShort(path); err == nil && now == s.value {
			return nil
		}
	}
	err := os.ErrNotExist
	if dir != "" {
		err = writeFile(path, s.value)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrNotExist):
		if s.idle {
			return nil
		}
		if dir != "" && !exists(dir) {
			return fmt.Errorf("cgroup %s is not there: %w", dir, errdefs.ErrNotFound)
		}
		return fmt.Errorf("limit %s=%s: this node has no %s for it: %w", s.file, s.value, s.controller, errdefs.ErrFailedPrecondition)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE), errors.Is(err, unix.ENODEV):
		return fmt.Errorf("limit %s=%s: %w: %w", s.file, s.value, err, errdefs.ErrInvalidArgument)
	case errors.Is(err, unix.EBUSY):
		// v1 cannot reclaim memory below the new limit.
		now, _ := os.ReadFile(filepath.Join(dir, "memory.usage_in_bytes"))
		return fmt.Errorf("limit %s=%s: %s bytes are in use and cannot be reclaimed: %w: %w", s.file, s.value, strings.TrimSpace(string(now)), err, errdefs.ErrFailedPrecondition)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("limit %s=%s: %w: %w", s.file, s.value, err, errdefs.ErrPermissionDenied)
	default:
		return fmt.Errorf("limit %s=%s: %w", s.file, s.value, err)
	}
}

// orderMemory orders the two v1 memory limits as the kernel demands: memory+swap may
// never be below memory.
func orderMemory(dir string, settings []setting) []setting {
	limit, swap := -1, -1
	for i, s := range settings {
		switch s.file {
		case "memory.limit_in_bytes":
			limit = i
		case "memory.memsw.limit_in_bytes":
			swap = i
		}
	}
	if limit < 0 || swap < 0 {
		return settings
	}
	b, err := os.ReadFile(filepath.Join(dir, "memory.memsw.limit_in_bytes"))
	if err != nil {
		return settings
	}
	now, _ := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	want, err := strconv.ParseInt(settings[limit].value, 10, 64)
	if err == nil && (want < 0 || uint64(want) > now) {
		settings[limit], settings[swap] = settings[swap], settings[limit]
	}
	return settings
}

func v1Settings(res *specs.LinuxResources) []setting {
	var out []setting
	add := func(controller, file, value string) {
		out = append(out, setting{controller: controller, file: file, value: value})
	}
	free := func(controller, file, value string) {
		out = append(out, setting{controller: controller, file: file, value: value, idle: true})
	}
	limit := func(controller, file string, n int64) {
		if n <= 0 {
			free(controller, file, "-1")
		} else {
			add(controller, file, strconv.FormatInt(n, 10))
		}
	}
	if c := res.CPU; c != nil {
		v1CPU(c, add, limit)
	}
	if m := res.Memory; m != nil {
		// Memory comes first; orderMemory handles the case that memory+swap must rise
		// before it.
		if m.Limit != nil && *m.Limit != 0 {
			limit("memory", "memory.limit_in_bytes", *m.Limit)
		}
		if m.Swap != nil && *m.Swap != 0 {
			limit("memory", "memory.memsw.limit_in_bytes", *m.Swap)
		}
		if m.Reservation != nil && *m.Reservation != 0 {
			limit("memory", "memory.soft_limit_in_bytes", *m.Reservation)
		}
		if m.KernelTCP != nil && *m.KernelTCP != 0 {
			limit("memory", "memory.kmem.tcp.limit_in_bytes", *m.KernelTCP)
		}
		if m.Swappiness != nil {
			add("memory", "memory.swappiness", strconv.FormatUint(*m.Swappiness, 10))
		}
		if m.DisableOOMKiller != nil && *m.DisableOOMKiller {
			add("memory", "memory.oom_control", "1")
		}
	}
	if p := res.Pids; p != nil && p.Limit != nil {
		if *p.Limit > 0 {
			add("pids", "pids.max", strconv.FormatInt(*p.Limit, 10))
		} else {
			free("pids", "pids.max", "max")
		}
	}
	if b := res.BlockIO; b != nil {
		v1BlockIO(b, add)
	}
	for _, h := range res.HugepageLimits {
		s := setting{controller: "hugetlb", file: "hugetlb." + h.Pagesize + ".limit_in_bytes", value: strconv.FormatUint(h.Limit, 10)}
		s.idle = h.Limit == 0 // kubelet sets a limit of 0 for every size
		out = append(out, s)
	}
	if n := res.Network; n != nil {
		if n.ClassID != nil && *n.ClassID != 0 {
			add("net_cls", "net_cls.classid", strconv.FormatUint(uint64(*n.ClassID), 10))
		}
		for _, p := range n.Priorities {
			add("net_prio", "net_prio.ifpriomap", p.Name+" "+strconv.FormatUint(uint64(p.Priority), 10))
		}
	}
	return append(out, rdmaSettings(res)...)
}

func v1CPU(c *specs.LinuxCPU, add func(controller, file, value string), limit func(controller, file string, n int64)) {
	if c.Shares != nil && *c.Shares != 0 {
		add("cpu", "cpu.shares", strconv.FormatUint(*c.Shares, 10))
	}
	if c.Period != nil && *c.Period != 0 {
		add("cpu", "cpu.cfs_period_us", strconv.FormatUint(*c.Period, 10))
	}
	if c.Quota != nil && *c.Quota != 0 {
		limit("cpu", "cpu.cfs_quota_us", *c.Quota)
	}
	if c.Burst != nil {
		add("cpu", "cpu.cfs_burst_us", strconv.FormatUint(*c.Burst, 10))
	}
	if c.RealtimePeriod != nil && *c.RealtimePeriod != 0 {
		add("cpu", "cpu.rt_period_us", strconv.FormatUint(*c.RealtimePeriod, 10))
	}
	if c.RealtimeRuntime != nil && *c.RealtimeRuntime != 0 {
		add("cpu", "cpu.rt_runtime_us", strconv.FormatInt(*c.RealtimeRuntime, 10))
	}
	if c.Idle != nil {
		add("cpu", "cpu.idle", strconv.FormatInt(*c.Idle, 10))
	}
	if c.Cpus != "" {
		add("cpuset", "cpuset.cpus", c.Cpus)
	}
	if c.Mems != "" {
		add("cpuset", "cpuset.mems", c.Mems)
	}
}

func v1BlockIO(b *specs.LinuxBlockIO, add func(controller, file, value string)) {
	if b.Weight != nil && *b.Weight != 0 {
		add("blkio", "blkio.bfq.weight", strconv.FormatUint(uint64(*b.Weight), 10))
	}
	for _, d := range b.WeightDevice {
		if d.Weight != nil {
			add("blkio", "blkio.bfq.weight_device", fmt.Sprintf("%d:%d %d", d.Major, d.Minor, *d.Weight))
		}
	}
	for _, k := range []struct {
		file string
		devs []specs.LinuxThrottleDevice
	}{
		{"blkio.throttle.read_bps_device", b.ThrottleReadBpsDevice},
		{"blkio.throttle.write_bps_device", b.ThrottleWriteBpsDevice},
		{"blkio.throttle.read_iops_device", b.ThrottleReadIOPSDevice},
		{"blkio.throttle.write_iops_device", b.ThrottleWriteIOPSDevice},
	} {
		for _, d := range k.devs {
			add("blkio", k.file, fmt.Sprintf("%d:%d %d", d.Major, d.Minor, d.Rate))
		}
	}
}

func rdmaSettings(res *specs.LinuxResources) []setting {
	var out []setting
	for dev, r := range res.Rdma {
		value := dev
		if r.HcaHandles != nil {
			value += " hca_handle=" + strconv.FormatUint(uint64(*r.HcaHandles), 10)
		}
		if r.HcaObjects != nil {
			value += " hca_object=" + strconv.FormatUint(uint64(*r.HcaObjects), 10)
		}
		out = append(out, setting{controller: "rdma", file: "rdma.max", value: value})
	}
	return out
}
