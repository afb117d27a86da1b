package ocispec

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

const (
	// CPUPeriod is the default period of quotas, in microseconds.
	CPUPeriod = 100_000
	// MinQuota is the least quota that the kernel takes, microseconds.
	MinQuota = 1_000
)

// Limits are the limits that people ask for; 0 is none.
type Limits struct {
	Memory int64   // bytes
	Swap   int64   // bytes of swap beside Memory; -1 is unlimited
	CPUs   float64 // 1.5 is one and a half
	Shares uint64
	Cpuset string
	Pids   int64
}

// Resources are l as the OCI spec has them.
func (l Limits) Resources() (*specs.LinuxResources, error) {
	r := &specs.LinuxResources{}
	bad := func(format string, args ...any) (*specs.LinuxResources, error) {
		return nil, fmt.Errorf("limits: "+format+": %w", append(args, errdefs.ErrInvalidArgument)...)
	}
	switch {
	case l.Memory < 0 || l.Pids < 0 || l.CPUs < 0 || math.IsNaN(l.CPUs) || math.IsInf(l.CPUs, 0):
		return bad("negative")
	case l.Swap != 0 && l.Memory == 0:
		return bad("swap of %d bytes without a memory limit", l.Swap)
	case l.Swap > math.MaxInt64-l.Memory || l.CPUs > 1<<20:
		return bad("out of range")
	}
	if l.Memory > 0 {
		r.Memory = &specs.LinuxMemory{Limit: &l.Memory}
		switch {
		case l.Swap > 0:
			both := l.Memory + l.Swap
			r.Memory.Swap = &both
		case l.Swap < 0:
			unlimited := int64(-1)
			r.Memory.Swap = &unlimited
		}
	}
	if l.CPUs > 0 || l.Shares > 0 || l.Cpuset != "" {
		r.CPU = &specs.LinuxCPU{Cpus: l.Cpuset}
		if l.CPUs > 0 {
			period, quota := uint64(CPUPeriod), max(int64(math.Round(l.CPUs*CPUPeriod)), MinQuota)
			r.CPU.Period, r.CPU.Quota = &period, &quota
		}
		if l.Shares > 0 {
			r.CPU.Shares = &l.Shares
		}
	}
	if l.Pids > 0 {
		r.Pids = &specs.LinuxPids{Limit: &l.Pids}
	}
	return r, nil
}

// Bytes reads "512m", "1.5GiB", "100k", "42": powers of 1024 in both cases of the letters, and an i
// or b after the letter changes nothing.
func Bytes(s string) (int64, error) {
	bad := fmt.Errorf("no amount of bytes %q: %w", s, errdefs.ErrInvalidArgument)
	t := strings.ToLower(strings.TrimSpace(s))
	digits := strings.TrimRight(t, "kmgtpeib ")
	shift := 0
	switch unit := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSpace(t[len(digits):]), "b"), "i"); unit {
	case "":
	case "k", "m", "g", "t", "p", "e":
		shift = 10 * (1 + strings.Index("kmgtpe", unit))
	default:
		return 0, bad
	}
	if n, err := strconv.ParseInt(digits, 10, 64); err == nil {
		if n < 0 || n > math.MaxInt64>>shift {
			return 0, bad
		}
		return n << shift, nil
	}
	f, err := strconv.ParseFloat(digits, 64)
	if err != nil || strings.Trim(digits, "0123456789.") != "" {
		return 0, bad
	}
	if f = math.Round(f * math.Exp2(float64(shift))); f >= math.MaxInt64 {
		return 0, bad
	}
	return int64(f), nil
}

// Rlimit reads "nofile=1024:2048", or "nofile=1024" for both; unlimited and -1
// are no limit.
func Rlimit(s string) (specs.POSIXRlimit, error) {
	bad := fmt.Errorf("no resource limit %q, want NAME=SOFT[:HARD]: %w", s, errdefs.ErrInvalidArgument)
	name, values, ok := strings.Cut(s, "=")
	kind := "RLIMIT_" + strings.TrimPrefix(strings.ToUpper(name), "RLIMIT_")
	if _, known := rlimitNumbers()[kind]; !ok || !known {
		return specs.POSIXRlimit{}, bad
	}
	softText, hardText, both := strings.Cut(values, ":")
	if !both {
		hardText = softText
	}
	soft, err := limitNumber(softText)
	if err != nil {
		return specs.POSIXRlimit{}, bad
	}
	hard, err := limitNumber(hardText)
	if err != nil || soft > hard {
		return specs.POSIXRlimit{}, bad
	}
	return specs.POSIXRlimit{Type: kind, Soft: soft, Hard: hard}, nil
}

func limitNumber(s string) (uint64, error) {
	if s == "unlimited" || s == "-1" {
		return math.MaxUint64, nil
	}
	return strconv.ParseUint(s, 10, 64)
}
