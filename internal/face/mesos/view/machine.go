package view

import (
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
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
		return nil, fmt.Errorf("read the machine's load and memory: %w", err)
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

// MachineResources are the machine's CPUs, memory, GPUs, and the size of the file
// system at dir.
func MachineResources(dir string, gpus int) ([]*mesosv1.Resource, error) {
	var i unix.Sysinfo_t
	if err := unix.Sysinfo(&i); err != nil {
		return nil, fmt.Errorf("read the machine's memory: %w", err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil, fmt.Errorf("read the size of the file system at %s: %w", dir, err)
	}
	all := []*mesosv1.Resource{
		Scalar("cpus", float64(runtime.NumCPU())), Scalar("mem", float64(i.Totalram*uint64(i.Unit)>>20)), Scalar("disk", float64(st.Blocks*uint64(st.Bsize)>>20)),
	}
	if gpus > 0 {
		all = append(all, Scalar("gpus", float64(gpus)))
	}
	return all, nil
}
