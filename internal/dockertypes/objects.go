package dockertypes

import "time"

// Image is the document of inspect for an image.
type Image struct {
	ID              string `json:"Id"`
	RepoTags        []string
	RepoDigests     []string
	Parent          string
	Comment         string
	Created         string  `json:",omitempty"`
	Container       string  `json:",omitempty"`
	ContainerConfig *Config `json:",omitempty"`
	DockerVersion   string
	Author          string
	Config          *ImageConfig
	Architecture    string
	Variant         string `json:",omitempty"`
	Os              string
	OsVersion       string `json:",omitempty"`
	Size            int64
	VirtualSize     int64 `json:",omitempty"`
	GraphDriver     GraphDriver
	RootFS          RootFS
	Metadata        ImageMetadata
	Descriptor      *Descriptor     `json:",omitempty"`
	Manifests       []ImageManifest `json:",omitempty"`
}

// ImageConfig is the configuration that an image gives to its containers.
type ImageConfig struct {
	OCIConfig
	OCIConfigExt
}

// OCIConfig is the part of an image's configuration that OCI's specification has.
type OCIConfig struct {
	User         string              `json:",omitempty"`
	ExposedPorts map[string]struct{} `json:",omitempty"`
	Env          []string            `json:",omitempty"`
	Entrypoint   []string            `json:",omitempty"`
	Cmd          []string            `json:",omitempty"`
	Volumes      map[string]struct{} `json:",omitempty"`
	WorkingDir   string              `json:",omitempty"`
	Labels       map[string]string   `json:",omitempty"`
	StopSignal   string              `json:",omitempty"`
	ArgsEscaped  bool                `json:",omitempty"`
}

// OCIConfigExt is docker's addition to OCI's configuration of an image.
type OCIConfigExt struct {
	Healthcheck *HealthConfig `json:",omitempty"`
	OnBuild     []string      `json:",omitempty"`
	Shell       []string      `json:",omitempty"`
}

// RootFS has the layers of an image.
type RootFS struct {
	Type   string   `json:",omitempty"`
	Layers []string `json:",omitempty"`
}

// ImageMetadata has the engine's own data about an image.
type ImageMetadata struct {
	LastTagTime time.Time `json:",omitzero"`
}

// ImageManifest is one image of an index.
type ImageManifest struct {
	ID         string
	Descriptor Descriptor
	Available  bool
	Kind       string
}

// Network is the document of inspect for a network.
type Network struct {
	Name       string
	ID         string `json:"Id"`
	Created    time.Time
	Scope      string
	Driver     string
	EnableIPv4 bool
	EnableIPv6 bool
	IPAM       IPAM
	Internal   bool
	Attachable bool
	Ingress    bool
	ConfigFrom ConfigReference
	ConfigOnly bool
	Containers map[string]EndpointResource
	Options    map[string]string
	Labels     map[string]string
	Peers      []PeerInfo             `json:",omitempty"`
	Services   map[string]ServiceInfo `json:",omitempty"`
}

// IPAM has the ranges of addresses of a network.
type IPAM struct {
	Driver  string
	Options map[string]string
	Config  []IPAMConfig
}

// IPAMConfig is a range of addresses.
type IPAMConfig struct {
	Subnet     string            `json:",omitempty"`
	IPRange    string            `json:",omitempty"`
	Gateway    string            `json:",omitempty"`
	AuxAddress map[string]string `json:"AuxiliaryAddresses,omitempty"`
}

// ConfigReference names the network that has the configuration of another one.
type ConfigReference struct{ Network string }

// EndpointResource is a container on a network.
type EndpointResource struct {
	Name        string
	EndpointID  string
	MacAddress  string
	IPv4Address string
	IPv6Address string
}

// PeerInfo is another node of an overlay network.
type PeerInfo struct {
	Name string
	IP   string
}

// ServiceInfo is a service of a Swarm on a network.
type ServiceInfo struct {
	VIP          string
	Ports        []string
	LocalLBIndex int
	Tasks        []Task
}

// Task is a task of a service on a network.
type Task struct {
	Name       string
	EndpointID string
	EndpointIP string
	Info       map[string]string
}

// Volume is the document of inspect for a volume.
type Volume struct {
	ClusterVolume *ClusterVolume `json:",omitempty"`
	CreatedAt     string         `json:",omitempty"`
	Driver        string
	Labels        map[string]string
	Mountpoint    string
	Name          string
	Options       map[string]string
	Scope         string
	Status        map[string]any `json:",omitempty"`
	UsageData     *UsageData     `json:",omitempty"`
}

// ClusterVolume is the part of a cluster's volume that names it.
type ClusterVolume struct{ ID string }

// UsageData is the use of a volume.
type UsageData struct {
	RefCount int64
	Size     int64
}
