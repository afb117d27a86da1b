package core

import "time"

// Value is one figure read from the kernel. OK is false when this kernel or
// this cgroup version does not have it: it is then unknown, not zero.
type Value struct {
	N  uint64 `json:"n"`
	OK bool   `json:"ok"`
}

// Known returns a measured Value.
func Known(n uint64) Value { return Value{N: n, OK: true} }

// Stats are the figures of a container or sandbox at one time.
type Stats struct {
	At     time.Time   `json:"at"`
	CPU    CPUStats    `json:"cpu"`
	Memory MemoryStats `json:"memory"`
	Pids   PidsStats   `json:"pids"`
	IO     []IOStats   `json:"io,omitempty"`
	Net    []NetStats  `json:"net,omitempty"`
	Root   RootStats   `json:"root"`
	// Processes is filled only when asked for.
	Processes []ProcessStats          `json:"processes,omitempty"`
	Huge      map[string]HugeStats    `json:"huge,omitempty"`     // by page size, "2MB"
	Pressure  map[string]PressureStat `json:"pressure,omitempty"` // "cpu", "memory", "io"; v2 only
}

// CPUStats are times in nanoseconds.
type CPUStats struct {
	Usage, User, System             Value
	Periods, Throttled, ThrottledNS Value
	PerCPU                          []uint64 `json:",omitempty"`
}

// MemoryStats are bytes unless named otherwise.
type MemoryStats struct {
	Usage, WorkingSet, RSS, Cache, Limit, Peak Value
	Swap, SwapLimit, Kernel, Mapped            Value
	Faults, MajorFaults, FailCount             Value
	OOMKills                                   Value
	// Raw is every key of memory.stat, as the kernel names it.
	Raw map[string]uint64 `json:",omitempty"`
}

// PidsStats count tasks. An unlimited Limit is not OK.
type PidsStats struct{ Current, Limit Value }

// IOStats are one block device's.
type IOStats struct{ Major, Minor, ReadBytes, WriteBytes, Reads, Writes uint64 }

// NetStats are one interface's, as seen from inside the sandbox.
type NetStats struct {
	Name                                    string
	RxBytes, RxPackets, RxErrors, RxDropped uint64
	TxBytes, TxPackets, TxErrors, TxDropped uint64
}

// RootStats are the container's own writable layer.
type RootStats struct{ Bytes, Inodes Value }

// ProcessStats are one process's.
type ProcessStats struct {
	Pid          int
	User, System uint64 // nanoseconds
	RSS, Swap    uint64 // bytes
	Threads      int
	Comm         string
}

// HugeStats are one page size's, in bytes.
type HugeStats struct{ Usage, Max, Failures uint64 }

// PressureStat is one line pair of a PSI file. Averages are percent.
type PressureStat struct{ Some, Full PressureLine }

// PressureLine is "some" or "full" of a PSI file; Total is microseconds.
type PressureLine struct {
	Avg10, Avg60, Avg300 float64
	Total                uint64
}
