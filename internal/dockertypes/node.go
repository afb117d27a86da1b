package dockertypes

// Info is the document of info. Members that docker's JSON omits have their zero values.
type Info struct {
	*SystemInfo
	ClientInfo   *ClientInfo
	ServerErrors []string `json:",omitempty"`
	UserName     string   `json:"-"`
	ClientErrors []string `json:",omitempty"`
}

// SystemInfo describes a node and its engine.
type SystemInfo struct {
	ID                  string
	Containers          int
	ContainersRunning   int
	ContainersPaused    int
	ContainersStopped   int
	Images              int
	Driver              string
	DriverStatus        [][2]string
	SystemStatus        [][2]string `json:",omitempty"`
	Plugins             PluginsInfo
	MemoryLimit         bool
	SwapLimit           bool
	KernelMemory        bool `json:",omitempty"`
	KernelMemoryTCP     bool `json:",omitempty"`
	CPUCfsPeriod        bool `json:"CpuCfsPeriod"`
	CPUCfsQuota         bool `json:"CpuCfsQuota"`
	CPUShares           bool
	CPUSet              bool
	PidsLimit           bool
	IPv4Forwarding      bool
	Debug               bool
	NFd                 int
	OomKillDisable      bool
	NGoroutines         int
	SystemTime          string
	LoggingDriver       string
	CgroupDriver        string
	CgroupVersion       string `json:",omitempty"`
	NEventsListener     int
	KernelVersion       string
	OperatingSystem     string
	OSVersion           string
	OSType              string
	Architecture        string
	IndexServerAddress  string
	RegistryConfig      *RegistryConfig
	NCPU                int
	MemTotal            int64
	GenericResources    []GenericResource
	DockerRootDir       string
	HTTPProxy           string `json:"HttpProxy"`
	HTTPSProxy          string `json:"HttpsProxy"`
	NoProxy             string
	Name                string
	Labels              []string
	ExperimentalBuild   bool
	ServerVersion       string
	Runtimes            map[string]Runtime
	DefaultRuntime      string
	Swarm               Swarm
	LiveRestoreEnabled  bool
	Isolation           string
	InitBinary          string
	ContainerdCommit    Commit
	RuncCommit          Commit
	InitCommit          Commit
	SecurityOptions     []string
	ProductLicense      string        `json:",omitempty"`
	DefaultAddressPools []AddressPool `json:",omitempty"`
	FirewallBackend     *Firewall     `json:",omitempty"`
	CDISpecDirs         []string
	DiscoveredDevices   []Device    `json:",omitempty"`
	Containerd          *Containerd `json:",omitempty"`
	Warnings            []string
}

// PluginsInfo has the names of the drivers of an engine.
type PluginsInfo struct {
	Volume        []string
	Network       []string
	Authorization []string
	Log           []string
}

// RegistryConfig has the settings for registries.
type RegistryConfig struct {
	InsecureRegistryCIDRs []string
	IndexConfigs          map[string]*Registry
	Mirrors               []string
}

// Registry has the settings for one registry.
type Registry struct {
	Name     string
	Mirrors  []string
	Secure   bool
	Official bool
}

// GenericResource is a resource of a node in a Swarm.
type GenericResource struct {
	NamedResourceSpec    *NamedResource    `json:",omitempty"`
	DiscreteResourceSpec *DiscreteResource `json:",omitempty"`
}

// NamedResource is a resource with a name.
type NamedResource struct {
	Kind  string `json:",omitempty"`
	Value string `json:",omitempty"`
}

// DiscreteResource is a number of equal resources.
type DiscreteResource struct {
	Kind  string `json:",omitempty"`
	Value int64  `json:",omitempty"`
}

// Runtime is a starter of containers.
type Runtime struct {
	Path    string            `json:"path,omitempty"`
	Args    []string          `json:"runtimeArgs,omitempty"`
	Type    string            `json:"runtimeType,omitempty"`
	Options map[string]any    `json:"options,omitempty"`
	Status  map[string]string `json:"status,omitempty"`
}

// Swarm is the place of a node in a Swarm.
type Swarm struct {
	NodeID           string
	NodeAddr         string
	LocalNodeState   string
	ControlAvailable bool
	Error            string
	RemoteManagers   []Manager
	Nodes            int      `json:",omitempty"`
	Managers         int      `json:",omitempty"`
	Cluster          *Cluster `json:",omitempty"`
	Warnings         []string `json:",omitempty"`
}

// Manager is a manager of a Swarm.
type Manager struct {
	NodeID string
	Addr   string
}

// Cluster names a Swarm.
type Cluster struct{ ID string }

// Commit is the version of a program.
type Commit struct {
	ID       string
	Expected string `json:",omitempty"`
}

// AddressPool is a range of addresses for the subnets of new networks.
type AddressPool struct {
	Base string
	Size int
}

// Firewall names the program or library that writes an engine's rules.
type Firewall struct {
	Driver string
	Info   [][2]string `json:",omitempty"`
}

// Device is a device that an engine has found.
type Device struct {
	Source string
	ID     string
}

// Containerd has the address and the namespaces of an engine's containerd.
type Containerd struct {
	Address    string `json:",omitempty"`
	Namespaces ContainerdNamespaces
}

// ContainerdNamespaces are the namespaces of an engine in containerd.
type ContainerdNamespaces struct {
	Containers string
	Plugins    string
}

// ClientInfo describes the command line.
type ClientInfo struct {
	Debug bool
	ClientVersion
	Plugins  []Plugin
	Warnings []string
}

// Plugin is a program that adds commands to docker's command line.
type Plugin struct{ Name string }

// Version is the document of version. Server is nil while the agent does not answer.
type Version struct {
	Client ClientVersion
	Server *ServerVersion
}

// ClientVersion is the version of the command line.
type ClientVersion struct {
	Platform          *PlatformInfo `json:",omitempty"`
	Version           string
	APIVersion        string `json:"ApiVersion,omitempty"`
	DefaultAPIVersion string `json:",omitempty"`
	GitCommit         string
	GoVersion         string
	Os                string
	Arch              string
	BuildTime         string `json:",omitempty"`
	Context           string
}

// PlatformInfo is the name of a product.
type PlatformInfo struct{ Name string }

// ServerVersion is the version of an engine.
type ServerVersion struct {
	Platform      PlatformInfo
	Components    []Component `json:",omitempty"`
	Version       string
	APIVersion    string `json:"ApiVersion"`
	MinAPIVersion string `json:",omitempty"`
	GitCommit     string
	GoVersion     string
	Os            string
	Arch          string
	KernelVersion string `json:",omitempty"`
	Experimental  bool   `json:",omitempty"`
	BuildTime     string `json:",omitempty"`
}

// Component is a program of an engine.
type Component struct {
	Name    string
	Version string
	Details map[string]string `json:",omitempty"`
}
