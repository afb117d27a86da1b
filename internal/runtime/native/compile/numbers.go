package compile

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// maxNumber bounds the numbers in a list of CPUs or memory nodes. No kernel has as many.
const maxNumber = 8192

// bitmap parses a list in the kernel's format ("0-3,7") into a mask.
func bitmap(list string) ([]uint64, error) {
	var mask []uint64
	for _, part := range strings.Split(list, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		lo, err := strconv.ParseUint(first, 10, 16)
		hi := lo
		if err == nil && isRange {
			hi, err = strconv.ParseUint(last, 10, 16)
		}
		if err != nil || hi < lo || hi >= maxNumber {
			return nil, fmt.Errorf("%q: no list of numbers below %d: %w", list, maxNumber, errdefs.ErrInvalidArgument)
		}
		for n := lo; n <= hi; n++ {
			for uint64(len(mask)) <= n/64 {
				mask = append(mask, 0)
			}
			mask[n/64] |= 1 << (n % 64)
		}
	}
	return mask, nil
}

// affinity binds the process to CPUs; an empty list changes nothing.
func (c *compiler) affinity(field, list string) error {
	if list == "" {
		return nil
	}
	mask, err := bitmap(list)
	if err != nil {
		return fmt.Errorf("process.execCPUAffinity.%s: %w", field, err)
	}
	c.plan.Add(field+" CPUs "+list, unix.SYS_SCHED_SETAFFINITY, plan.V(0), plan.V(8*len(mask)), plan.P(c.plan.Words(mask...)))
	return nil
}

// memoryPolicy sets the NUMA policy, which is inherited by fork and execve.
func (c *compiler) memoryPolicy(m *specs.LinuxMemoryPolicy) error {
	if m == nil {
		return nil
	}
	mode, ok := map[specs.MemoryPolicyModeType]uint64{
		specs.MpolDefault: 0, specs.MpolPreferred: 1, specs.MpolBind: 2, specs.MpolInterleave: 3, specs.MpolLocal: 4,
		specs.MpolPreferredMany: 5, specs.MpolWeightedInterleave: 6,
	}[m.Mode]
	if !ok {
		return fmt.Errorf("linux.memoryPolicy.mode: %q: unknown: %w", m.Mode, errdefs.ErrInvalidArgument)
	}
	for _, f := range m.Flags {
		bit, ok := map[specs.MemoryPolicyFlagType]uint64{specs.MpolFStaticNodes: 1 << 15, specs.MpolFRelativeNodes: 1 << 14, specs.MpolFNumaBalancing: 1 << 13}[f]
		if !ok {
			return fmt.Errorf("linux.memoryPolicy.flags: %q: unknown: %w", f, errdefs.ErrInvalidArgument)
		}
		mode |= bit
	}
	nodes, count := plan.V(0), 0
	if m.Nodes != "" {
		mask, err := bitmap(m.Nodes)
		if err != nil {
			return fmt.Errorf("linux.memoryPolicy.nodes: %w", err)
		}
		nodes, count = plan.P(c.plan.Words(mask...)), 64*len(mask)+1 // the kernel subtracts one
	}
	c.plan.Add("memory policy "+string(m.Mode), unix.SYS_SET_MEMPOLICY, plan.V(mode), nodes, plan.V(count))
	return nil
}
