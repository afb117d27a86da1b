package dockertypes

import (
	"fmt"
	"os"
)

// HostConfig is the part of a container's configuration that depends on the host.
type HostConfig struct {
	Binds           []string
	ContainerIDFile string
	LogConfig       LogConfig
	NetworkMode     string
	PortBindings    PortMap
	RestartPolicy   RestartPolicy
	AutoRemove      bool
	VolumeDriver    string
	VolumesFrom     []string
	ConsoleSize     [2]uint
	Annotations     map[string]string `json:",omitempty"`

	CapAdd          []string
	CapDrop         []string
	CgroupnsMode    string
	DNS             []string `json:"Dns"`
	DNSOptions      []string `json:"DnsOptions"`
	DNSSearch       []string `json:"DnsSearch"`
	ExtraHosts      []string
	GroupAdd        []string
	IpcMode         string
	Cgroup          string
	Links           []string
	OomScoreAdj     int
	PidMode         string
	Privileged      bool
	PublishAllPorts bool
	ReadonlyRootfs  bool
	SecurityOpt     []string
	StorageOpt      map[string]string `json:",omitempty"`
	Tmpfs           map[string]string `json:",omitempty"`
	UTSMode         string
	UsernsMode      string
	ShmSize         int64
	Sysctls         map[string]string `json:",omitempty"`
	Runtime         string            `json:",omitempty"`
	Isolation       string

	Resources

	Mounts        []Mount `json:",omitempty"`
	MaskedPaths   []string
	ReadonlyPaths []string
	Init          *bool `json:",omitempty"`
}

// LogConfig says where the output of a program goes.
type LogConfig struct {
	Type   string
	Config map[string]string
}

// RestartPolicy says when a container is started again.
type RestartPolicy struct {
	Name              string
	MaximumRetryCount int
}

// Resources are the limits of a container. Pointers are nil where docker's JSON has null.
type Resources struct {
	CPUShares int64 `json:"CpuShares"`
	Memory    int64
	NanoCPUs  int64 `json:"NanoCpus"`

	CgroupParent         string
	BlkioWeight          uint16
	BlkioWeightDevice    []*WeightDevice
	BlkioDeviceReadBps   []*ThrottleDevice
	BlkioDeviceWriteBps  []*ThrottleDevice
	BlkioDeviceReadIOps  []*ThrottleDevice
	BlkioDeviceWriteIOps []*ThrottleDevice
	CPUPeriod            int64 `json:"CpuPeriod"`
	CPUQuota             int64 `json:"CpuQuota"`
	CPURealtimePeriod    int64 `json:"CpuRealtimePeriod"`
	CPURealtimeRuntime   int64 `json:"CpuRealtimeRuntime"`
	CpusetCpus           string
	CpusetMems           string
	Devices              []DeviceMapping
	DeviceCgroupRules    []string
	DeviceRequests       []DeviceRequest
	KernelMemory         int64 `json:",omitempty"`
	KernelMemoryTCP      int64 `json:",omitempty"`
	MemoryReservation    int64
	MemorySwap           int64
	MemorySwappiness     *int64
	OomKillDisable       *bool
	PidsLimit            *int64
	Ulimits              []*Ulimit

	CPUCount           int64 `json:"CpuCount"`
	CPUPercent         int64 `json:"CpuPercent"`
	IOMaximumIOps      uint64
	IOMaximumBandwidth uint64
}

// WeightDevice is the weight of a container's requests to a block device.
type WeightDevice struct {
	Path   string
	Weight uint16
}

// ThrottleDevice is the limit of a container's requests to a block device.
type ThrottleDevice struct {
	Path string
	Rate uint64
}

// DeviceMapping is a device of the host in a container.
type DeviceMapping struct {
	PathOnHost        string
	PathInContainer   string
	CgroupPermissions string
}

// DeviceRequest is a request for devices of a driver.
type DeviceRequest struct {
	Driver       string
	Count        int
	DeviceIDs    []string
	Capabilities [][]string
	Options      map[string]string
}

// Ulimit is a resource limit of a container's processes.
type Ulimit struct {
	Name string
	Hard int64
	Soft int64
}

// String returns the limit as --ulimit has it.
func (u *Ulimit) String() string { return fmt.Sprintf("%s=%d:%d", u.Name, u.Soft, u.Hard) }

// Mount is a mount as --mount requests it.
type Mount struct {
	Type           string          `json:",omitempty"`
	Source         string          `json:",omitempty"`
	Target         string          `json:",omitempty"`
	ReadOnly       bool            `json:",omitempty"`
	Consistency    string          `json:",omitempty"`
	BindOptions    *BindOptions    `json:",omitempty"`
	VolumeOptions  *VolumeOptions  `json:",omitempty"`
	ImageOptions   *ImageOptions   `json:",omitempty"`
	TmpfsOptions   *TmpfsOptions   `json:",omitempty"`
	ClusterOptions *ClusterOptions `json:",omitempty"`
}

// BindOptions are the options of a bind mount.
type BindOptions struct {
	Propagation            string `json:",omitempty"`
	NonRecursive           bool   `json:",omitempty"`
	CreateMountpoint       bool   `json:",omitempty"`
	ReadOnlyNonRecursive   bool   `json:",omitempty"`
	ReadOnlyForceRecursive bool   `json:",omitempty"`
}

// VolumeOptions are the options of the mount of a volume.
type VolumeOptions struct {
	NoCopy       bool              `json:",omitempty"`
	Labels       map[string]string `json:",omitempty"`
	Subpath      string            `json:",omitempty"`
	DriverConfig *Driver           `json:",omitempty"`
}

// ImageOptions are the options of the mount of an image.
type ImageOptions struct {
	Subpath string `json:",omitempty"`
}

// Driver is a driver of volumes with its options.
type Driver struct {
	Name    string            `json:",omitempty"`
	Options map[string]string `json:",omitempty"`
}

// TmpfsOptions are the options of a tmpfs.
type TmpfsOptions struct {
	SizeBytes int64       `json:",omitempty"`
	Mode      os.FileMode `json:",omitempty"`
	Options   [][]string  `json:",omitempty"`
}

// ClusterOptions are the options of a cluster's volume. It has none.
type ClusterOptions struct{}
