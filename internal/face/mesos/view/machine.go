package view

import (
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Metric is one value under Mesos' name for it.
type Metric struct {
	Name  string
	Value float64
}

// loadScale is the factor of the kernel's load averages.
const loadScale = 1 << 16

// MachineMetrics are the machine's metrics, and the agent's uptime.
func MachineMetrics(began time.Time) ([]Metric, error) {
	var i unix.Sysinfo_t
	if err := unix.Sysinfo(&i); err != nil {
		return nil, fmt.Errorf("read the machine's figures: %w", err)
	}
	unit := float64(i.Unit)
	return []Metric{
		{"slave/registered", 0},
		{"slave/uptime_secs", time.Since(began).Seconds()},
		{"system/cpus_total", float64(runtime.NumCPU())},
		{"system/load_15min", float64(i.Loads[2]) / loadScale},
		{"system/load_1min", float64(i.Loads[0]) / loadScale},
		{"system/load_5min", float64(i.Loads[1]) / loadScale},
		{"system/mem_free_bytes", float64(i.Freeram) * unit},
		{"system/mem_total_bytes", float64(i.Totalram) * unit},
	}, nil
}

// MachineMemory is the size of the machine's memory, in bytes.
func MachineMemory() (uint64, error) {
	var i unix.Sysinfo_t
	if err := unix.Sysinfo(&i); err != nil {
		return 0, fmt.Errorf("read the machine's memory: %w", err)
	}
	return i.Totalram * uint64(i.Unit), nil
}
