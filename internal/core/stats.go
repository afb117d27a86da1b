package core

import (
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Value is one number read from the kernel. OK is false when this kernel or cgroup version does
// not have it: the number is then unknown, not zero.
type Value struct {
	N  uint64 `json:"n"`
	OK bool   `json:"ok"`
}

// Known returns a measured Value.
func Known(n uint64) Value { return Value{N: n, OK: true} }

// StatsFields selects which fields of a Stats are read. Reading a kernel file takes a few
// microseconds, and some are read for all containers every second.
type StatsFields uint

// The groups of fields that can be read.
const (
	// StatsUsage has the values that orchestrators read all the time: CPU.Usage; Usage, WorkingSet,
	// RSS, Limit, Swap, SwapLimit and faults of Memory; and Pressure.
	StatsUsage StatsFields = 1 << iota
	// StatsDetail is everything else of the cgroup.
	StatsDetail
	// StatsCommon is the part of StatsDetail that lists of many containers show: all but CPU.PerCPU, the Failures of
	// Huge, and the keys of Memory.Raw that no list shows.
	StatsCommon
	// StatsTasks is the part of StatsCommon about CPU and tasks: CPU, Current and Limit of Pids, and of Memory the values
	// of memory.stat.
	StatsTasks
	// StatsProcessCount is Pids.Processes.
	StatsProcessCount
	// StatsProcesses is Processes, without Files, Sockets and FileLimit.
	StatsProcesses
	// StatsProcessFiles is Processes with Files, Sockets and FileLimit; without Swap.
	StatsProcessFiles
	// StatsRootfs is Root.
	StatsRootfs
	// StatsLimits is Limits: shares, quota and period of CPU; limit, reservation and swap of memory.
	StatsLimits
	// StatsRefusals is Pids.Refused and Memory.Throttled.
	StatsRefusals
)

// Has reports whether any of kinds is selected.
func (f StatsFields) Has(kinds StatsFields) bool { return f&kinds != 0 }

// Stats is the usage of a container or sandbox at one time.
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
	// Limits are the limits in force in the kernel.
	Limits *specs.LinuxResources `json:"limits,omitempty"`
}

// CPUStats holds times in nanoseconds.
type CPUStats struct {
	Usage, User, System             Value
	Periods, Throttled, ThrottledNS Value
	PerCPU                          []uint64 `json:",omitempty"`
}

// MemoryStats holds bytes, except where a name says otherwise.
type MemoryStats struct {
	Usage, WorkingSet, RSS, Cache, Limit, Peak Value
	Swap, SwapLimit, Kernel, Mapped            Value
	Faults, MajorFaults, FailCount             Value
	OOMKills                                   Value
	Throttled                                  Value // how often memory.high has slowed it down; v2 only
	// Raw is every key of memory.stat, as the kernel names it; with StatsCommon or StatsTasks total_rss, pgfault, pgmajfault and
	// unevictable.
	Raw map[string]uint64 `json:",omitempty"`
}

// PidsStats counts tasks (threads); Processes counts processes, Refused the tasks that the kernel
// refused at the limit. OK of Limit is false when it is unlimited.
type PidsStats struct{ Current, Limit, Processes, Refused Value }

// IOStats belongs to one block device. Device is its name below /dev, or "" when it has none.
type IOStats struct {
	Device                                             string
	Major, Minor, ReadBytes, WriteBytes, Reads, Writes uint64
}

// NetStats belongs to one interface, seen from inside the sandbox.
type NetStats struct {
	Name                                    string
	RxBytes, RxPackets, RxErrors, RxDropped uint64
	TxBytes, TxPackets, TxErrors, TxDropped uint64
}

// RootStats is the usage of a container's writable layer, measured at At.
type RootStats struct {
	Bytes, Inodes Value
	At            time.Time
	Filesystem    FilesystemStats
}

// FilesystemStats describes the filesystem that a layer is on. Its values are not OK when they
// could not be read. Device is the source of the mount, "" when unknown.
type FilesystemStats struct {
	Device                    string
	Bytes, Inodes, FreeInodes Value
}

// ProcessStats belongs to one process.
type ProcessStats struct {
	Pid          int
	User, System uint64 // nanoseconds
	RSS, Swap    uint64 // bytes
	Threads      int
	Comm         string
	// Files and Sockets count its open descriptors. FileLimit is their soft limit; its OK is
	// false when it is unlimited.
	Files, Sockets, FileLimit Value
}

// HugeStats belongs to one page size, in bytes; only v1 has Max.
type HugeStats struct {
	Usage    uint64
	Max      Value
	Failures uint64
}

// PressureStat is the content of a PSI file. Averages are in percent.
type PressureStat struct{ Some, Full PressureLine }

// PressureLine is the line "some" or "full" of a PSI file. Total is in microseconds.
type PressureLine struct {
	Avg10, Avg60, Avg300 float64
	Total                uint64
}
