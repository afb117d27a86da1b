// Package dockertypes has the types of the documents of Docker's API, which docker's command line gives to templates too: of inspect, info and
// version, as docker 28 (API 1.51) has them. A template of text/template reads Go fields, and prints numbers, lists,
// structures and nil pointers by their types. So names, order and types of the fields are docker's.
//
// The package knows nothing of our objects: the command line and the face of Docker fill the documents.
package dockertypes

import (
	"encoding/json"
	"time"
)

// Container is the document of inspect for a container.
type Container struct {
	*ContainerJSONBase
	Mounts                  []MountPoint
	Config                  *Config
	NetworkSettings         *NetworkSettings
	ImageManifestDescriptor *Descriptor `json:",omitempty"`
}

// ContainerJSONBase has the members of a container that docker's API also has for Windows.
type ContainerJSONBase struct {
	ID              string `json:"Id"`
	Created         string
	Path            string
	Args            []string
	State           *State
	Image           string
	ResolvConfPath  string
	HostnamePath    string
	HostsPath       string
	LogPath         string
	Name            string
	RestartCount    int
	Driver          string
	Platform        string
	MountLabel      string
	ProcessLabel    string
	AppArmorProfile string
	ExecIDs         []string
	HostConfig      *HostConfig
	GraphDriver     GraphDriver
	SizeRw          *int64 `json:",omitempty"`
	SizeRootFs      *int64 `json:",omitempty"`
}

// State is the state of a container's program.
type State struct {
	Status     string
	Running    bool
	Paused     bool
	Restarting bool
	OOMKilled  bool
	Dead       bool
	Pid        int
	ExitCode   int
	Error      string
	StartedAt  string
	FinishedAt string
	Health     *Health `json:",omitempty"`
}

// Health is the result of the health checks of a program.
type Health struct {
	Status        string
	FailingStreak int
	Log           []*Probe
}

// Probe is one health check.
type Probe struct {
	Start    time.Time
	End      time.Time
	ExitCode int
	Output   string
}

// GraphDriver describes the storage of a container's or an image's files.
type GraphDriver struct {
	Data map[string]string
	Name string
}

// Descriptor describes a blob of an image, as OCI's image specification has it.
type Descriptor struct {
	MediaType    string            `json:"mediaType"`
	Digest       string            `json:"digest"`
	Size         int64             `json:"size"`
	URLs         []string          `json:"urls,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
	Data         []byte            `json:"data,omitempty"`
	Platform     *Platform         `json:"platform,omitempty"`
	ArtifactType string            `json:"artifactType,omitempty"`
}

// Platform names the operating system and the processor of an image.
type Platform struct {
	Architecture string   `json:"architecture"`
	OS           string   `json:"os"`
	OSVersion    string   `json:"os.version,omitempty"`
	OSFeatures   []string `json:"os.features,omitempty"`
	Variant      string   `json:"variant,omitempty"`
}

// MountPoint is a mount of a container.
type MountPoint struct {
	Type        string `json:",omitempty"`
	Name        string `json:",omitempty"`
	Source      string
	Destination string
	Driver      string `json:",omitempty"`
	Mode        string
	RW          bool
	Propagation string
}

// Config is the part of a container's configuration that does not depend on the host.
type Config struct {
	Hostname        string
	Domainname      string
	User            string
	AttachStdin     bool
	AttachStdout    bool
	AttachStderr    bool
	ExposedPorts    map[Port]struct{} `json:",omitempty"`
	Tty             bool
	OpenStdin       bool
	StdinOnce       bool
	Env             []string
	Cmd             Words
	Healthcheck     *HealthConfig `json:",omitempty"`
	ArgsEscaped     bool          `json:",omitempty"`
	Image           string
	Volumes         map[string]struct{}
	WorkingDir      string
	Entrypoint      Words
	NetworkDisabled bool   `json:",omitempty"`
	MacAddress      string `json:",omitempty"`
	OnBuild         []string
	Labels          map[string]string
	StopSignal      string `json:",omitempty"`
	StopTimeout     *int   `json:",omitempty"`
	Shell           Words  `json:",omitempty"`
}

// Words is a command. Clients may send a single word as a string.
type Words []string

// UnmarshalJSON implements json.Unmarshaler.
func (w *Words) UnmarshalJSON(data []byte) error {
	var one string
	if len(data) > 0 && data[0] == '"' {
		if err := json.Unmarshal(data, &one); err != nil {
			return err
		}
		*w = Words{one}
		return nil
	}
	var list []string
	err := json.Unmarshal(data, &list)
	*w = list
	return err
}

// HealthConfig is a health check. A duration and the number of retries are 0 for docker's default.
type HealthConfig struct {
	Test          []string      `json:",omitempty"`
	Interval      time.Duration `json:",omitempty"`
	Timeout       time.Duration `json:",omitempty"`
	StartPeriod   time.Duration `json:",omitempty"`
	StartInterval time.Duration `json:",omitempty"`
	Retries       int           `json:",omitempty"`
}

// Port is a port with its protocol, such as 80/tcp. It is a type of its own, as in docker: index with a string finds it
// in the JSON of the document only.
type Port string

// PortBinding is an address and a port of the host.
type PortBinding struct {
	HostIP   string `json:"HostIp"`
	HostPort string
}

// PortMap has the host's ports of a container's ports.
type PortMap map[Port][]PortBinding

// NetworkSettings is the network of a container.
type NetworkSettings struct {
	NetworkSettingsBase
	DefaultNetworkSettings
	Networks map[string]*Endpoint
}

// NetworkSettingsBase has the members of a container's network that are not those of one network.
type NetworkSettingsBase struct {
	Bridge                 string
	SandboxID              string
	SandboxKey             string
	Ports                  PortMap
	HairpinMode            bool
	LinkLocalIPv6Address   string
	LinkLocalIPv6PrefixLen int
	SecondaryIPAddresses   []Address
	SecondaryIPv6Addresses []Address
}

// DefaultNetworkSettings is the place of a container on the network bridge.
type DefaultNetworkSettings struct {
	EndpointID          string
	Gateway             string
	GlobalIPv6Address   string
	GlobalIPv6PrefixLen int
	IPAddress           string
	IPPrefixLen         int
	IPv6Gateway         string
	MacAddress          string
}

// Address is an address with the length of its network's prefix.
type Address struct {
	Addr      string
	PrefixLen int
}

// Endpoint is the place of a container on a network.
type Endpoint struct {
	IPAMConfig          *EndpointIPAM
	Links               []string
	Aliases             []string
	MacAddress          string
	DriverOpts          map[string]string
	GwPriority          int
	NetworkID           string
	EndpointID          string
	Gateway             string
	IPAddress           string
	IPPrefixLen         int
	IPv6Gateway         string
	GlobalIPv6Address   string
	GlobalIPv6PrefixLen int
	DNSNames            []string
}

// EndpointInterface is the driver option of an endpoint that names the container's interface.
const EndpointInterface = "com.docker.network.endpoint.ifname"

// EndpointIPAM has the addresses that were requested for an endpoint.
type EndpointIPAM struct {
	IPv4Address  string   `json:",omitempty"`
	IPv6Address  string   `json:",omitempty"`
	LinkLocalIPs []string `json:",omitempty"`
}
