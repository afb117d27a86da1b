package dockertypes

import "time"

// Event is a message of the event stream. Status, ID and From repeat parts of it for clients before Docker 25.
type Event struct {
	Status   string `json:"status,omitempty"`
	ID       string `json:"id,omitempty"`
	From     string `json:"from,omitempty"`
	Type     string
	Action   string
	Actor    Actor
	Scope    string `json:"scope,omitempty"`
	Time     int64  `json:"time,omitempty"`     // seconds since 1970
	TimeNano int64  `json:"timeNano,omitempty"` // nanoseconds since 1970
}

// Actor is the object of an event.
type Actor struct {
	ID         string
	Attributes map[string]string
}

// Stats are the usage of a container at one time, beside that of the time before. ID and Name are all that those of a
// container that does not run have.
type Stats struct {
	Name         string                  `json:"name,omitempty"`
	ID           string                  `json:"id,omitempty"`
	Read         time.Time               `json:"read"`
	PreRead      time.Time               `json:"preread"`
	PidsStats    PidsStats               `json:"pids_stats"`
	BlkioStats   BlkioStats              `json:"blkio_stats"`
	NumProcs     uint32                  `json:"num_procs"`
	StorageStats struct{}                `json:"storage_stats"`
	CPUStats     CPUStats                `json:"cpu_stats"`
	PreCPUStats  CPUStats                `json:"precpu_stats"`
	MemoryStats  MemoryStats             `json:"memory_stats"`
	Networks     map[string]NetworkStats `json:"networks,omitempty"`
}

// PidsStats counts tasks.
type PidsStats struct {
	Current uint64 `json:"current,omitempty"`
	Limit   uint64 `json:"limit,omitempty"`
}

// BlkioStats are the numbers of block devices.
type BlkioStats struct {
	IoServiceBytesRecursive []BlkioEntry `json:"io_service_bytes_recursive"`
	IoServicedRecursive     []BlkioEntry `json:"io_serviced_recursive"`
	IoQueuedRecursive       []BlkioEntry `json:"io_queue_recursive"`
	IoServiceTimeRecursive  []BlkioEntry `json:"io_service_time_recursive"`
	IoWaitTimeRecursive     []BlkioEntry `json:"io_wait_time_recursive"`
	IoMergedRecursive       []BlkioEntry `json:"io_merged_recursive"`
	IoTimeRecursive         []BlkioEntry `json:"io_time_recursive"`
	SectorsRecursive        []BlkioEntry `json:"sectors_recursive"`
}

// BlkioEntry is one number of a block device.
type BlkioEntry struct {
	Major uint64 `json:"major"`
	Minor uint64 `json:"minor"`
	Op    string `json:"op"`
	Value uint64 `json:"value"`
}

// CPUStats are times in nanoseconds.
type CPUStats struct {
	CPUUsage       CPUUsage       `json:"cpu_usage"`
	SystemUsage    uint64         `json:"system_cpu_usage,omitempty"`
	OnlineCPUs     uint32         `json:"online_cpus,omitempty"`
	ThrottlingData ThrottlingData `json:"throttling_data"`
}

// CPUUsage is a container's part of CPUStats. Only cgroups v1 have PercpuUsage.
type CPUUsage struct {
	TotalUsage        uint64   `json:"total_usage"`
	PercpuUsage       []uint64 `json:"percpu_usage,omitempty"`
	UsageInKernelmode uint64   `json:"usage_in_kernelmode"`
	UsageInUsermode   uint64   `json:"usage_in_usermode"`
}

// ThrottlingData counts the periods of the CPU limit, and the throttled ones.
type ThrottlingData struct {
	Periods          uint64 `json:"periods"`
	ThrottledPeriods uint64 `json:"throttled_periods"`
	ThrottledTime    uint64 `json:"throttled_time"`
}

// MemoryStats are bytes, but for Failcnt. Only cgroups v1 have MaxUsage.
type MemoryStats struct {
	Usage    uint64            `json:"usage,omitempty"`
	MaxUsage uint64            `json:"max_usage,omitempty"`
	Stats    map[string]uint64 `json:"stats,omitempty"`
	Failcnt  uint64            `json:"failcnt,omitempty"`
	Limit    uint64            `json:"limit,omitempty"`
}

// NetworkStats are the numbers of one interface.
type NetworkStats struct {
	RxBytes   uint64 `json:"rx_bytes"`
	RxPackets uint64 `json:"rx_packets"`
	RxErrors  uint64 `json:"rx_errors"`
	RxDropped uint64 `json:"rx_dropped"`
	TxBytes   uint64 `json:"tx_bytes"`
	TxPackets uint64 `json:"tx_packets"`
	TxErrors  uint64 `json:"tx_errors"`
	TxDropped uint64 `json:"tx_dropped"`
}

// Top is a list of processes as ps prints it.
type Top struct {
	Processes [][]string
	Titles    []string
}

// DiskUsage is the answer to system/df. Lists that were not asked for are null. Images and Containers have the documents of
// their lists.
type DiskUsage struct {
	LayersSize int64
	Images     any
	Containers any
	Volumes    []*Volume
	BuildCache []struct{}
}
