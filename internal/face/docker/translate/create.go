package translate

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/logs/driver"
)

// Create is the body of a request for a container. Completed, it is stored with the container.
type Create struct {
	*dockertypes.Config
	HostConfig       *dockertypes.HostConfig
	NetworkingConfig *Networking `json:",omitempty"`

	flat bool // mounts below read-only binds stay writable, as before 1.44
	// noDriver is set for a request that names no log driver: LogConfig has the default.
	noDriver bool
}

// Networking has the settings of a container on its networks, by their names or ids.
type Networking struct {
	EndpointsConfig map[string]*dockertypes.Endpoint
}

// Node has the values of the node that complete a request.
type Node struct {
	API dockerhttp.Version // of the request
	// Unified says that the node has cgroup v2.
	Unified bool
}

// The modes of a network that are not a network's name.
const (
	hostMode    = "host"
	noneMode    = "none"
	bridgeMode  = "bridge"
	defaultMode = "default"
)

const defaultShm = 64 << 20

// Complete checks a request and sets dockerd's defaults, which inspect shows.
func (c *Create) Complete(n Node) error {
	if c.Config == nil {
		return invalid.Errorf("config cannot be empty in order to create a container")
	}
	if c.Image == "" {
		return invalid.Errorf("no command specified")
	}
	if c.HostConfig == nil {
		c.HostConfig = &dockertypes.HostConfig{}
	}
	if err := c.refuse(); err != nil {
		return err
	}
	c.flat = n.API.Before("1.44")
	h := c.HostConfig
	if h.RestartPolicy.Name == "" {
		h.RestartPolicy.Name = "no"
	}
	if h.NetworkMode == "" || h.NetworkMode == defaultMode {
		h.NetworkMode = bridgeMode
	}
	if c.NetworkDisabled {
		h.NetworkMode = noneMode
	}
	if h.LogConfig.Type == "" {
		c.noDriver = true
		h.LogConfig.Type = "json-file"
	}
	if h.LogConfig.Config == nil {
		h.LogConfig.Config = map[string]string{}
	}
	if h.ShmSize == 0 {
		h.ShmSize = defaultShm
	}
	if h.IpcMode == "" || h.IpcMode == defaultMode {
		h.IpcMode = "private"
		if n.API.Before("1.40") {
			h.IpcMode = "shareable"
		}
	}
	if h.CgroupnsMode == "" {
		h.CgroupnsMode = hostMode
		if n.Unified && !n.API.Before("1.41") {
			h.CgroupnsMode = "private"
		}
	}
	if c.WorkingDir != "" {
		c.WorkingDir = path.Clean(c.WorkingDir)
	}
	if h.Memory > 0 && h.MemorySwap == 0 {
		h.MemorySwap = 2 * h.Memory
	}
	if h.PidsLimit != nil && *h.PidsLimit <= 0 {
		h.PidsLimit = nil
	}
	if h.MemorySwappiness != nil && *h.MemorySwappiness == -1 {
		h.MemorySwappiness = nil
	}
	if h.OomKillDisable == nil && !n.Unified {
		no := false
		h.OomKillDisable = &no
	}
	if ends := c.NetworkingConfig; ends != nil && len(ends.EndpointsConfig) > 1 && n.API.Before("1.44") {
		return invalid.Errorf("Container cannot be created with multiple network endpoints: %s", strings.Join(slices.Sorted(maps.Keys(ends.EndpointsConfig)), ", "))
	}
	c.endpoints()
	return c.ports(n)
}

// endpoints moves the settings of a container's networks to their present places.
func (c *Create) endpoints() {
	if c.NetworkingConfig == nil {
		c.NetworkingConfig = &Networking{}
	}
	all := map[string]*dockertypes.Endpoint{}
	for name, e := range c.NetworkingConfig.EndpointsConfig {
		if name == "" || name == defaultMode {
			name = bridgeMode
		}
		if e == nil {
			e = &dockertypes.Endpoint{}
		}
		all[name] = e
	}
	c.NetworkingConfig.EndpointsConfig = all
	mode := c.HostConfig.NetworkMode
	if strings.HasPrefix(mode, "container:") {
		return
	}
	// The mode does not add a network to those that the request names.
	if all[mode] == nil && len(all) > 0 && c.MacAddress == "" && mode != hostMode && mode != noneMode {
		return
	}
	if all[mode] == nil {
		all[mode] = &dockertypes.Endpoint{}
	}
	if all[mode].MacAddress == "" {
		all[mode].MacAddress = c.MacAddress
	}
	c.MacAddress = all[mode].MacAddress
}

// ports completes the names of ports with their protocols, and exposes those that are published.
func (c *Create) ports(n Node) error {
	h := c.HostConfig
	bound := dockertypes.PortMap{}
	for _, p := range slices.Sorted(maps.Keys(h.PortBindings)) {
		full, err := fullPort(p)
		if err != nil {
			return err
		}
		list := h.PortBindings[p]
		if len(list) == 0 && n.API.Before("1.53") {
			list = []dockertypes.PortBinding{{}}
		}
		bound[full] = append(bound[full], list...)
	}
	if h.PortBindings != nil {
		h.PortBindings = bound
	}
	exposed := map[dockertypes.Port]struct{}{}
	for p := range c.ExposedPorts {
		list, err := portRange(p)
		if err != nil {
			return err
		}
		for _, one := range list {
			exposed[one] = struct{}{}
		}
	}
	for p := range bound {
		exposed[p] = struct{}{}
	}
	if len(exposed) > 0 {
		c.ExposedPorts = exposed
	}
	return nil
}

// logDrivers are the values of LogConfig.Type that dockerd knows, but for those of our own.
var logDrivers = []string{"gelf", "awslogs", "splunk", "gcplogs", "etwlogs"} //nolint:gochecknoglobals // a constant list

// hasVolumes reports whether the request itself makes volumes. Only then its VolumeDriver matters.
func (c *Create) hasVolumes() bool {
	return len(c.Volumes) > 0 || slices.ContainsFunc(c.HostConfig.Binds, func(b string) bool { return !strings.HasPrefix(b, "/") })
}

// refuse returns InvalidArgument for a setting that no container here can have.
func (c *Create) refuse() error {
	h := c.HostConfig
	for _, r := range []struct {
		set  bool
		text string
	}{
		{h.Isolation != "" && h.Isolation != defaultMode, "invalid isolation (" + h.Isolation + "): linux only supports 'default'"},
		{h.VolumeDriver != "" && h.VolumeDriver != "local" && c.hasVolumes(), "VolumeDriver \"" + h.VolumeDriver + "\" not found: a node has the driver local only"},
		{h.CPURealtimePeriod != 0 || h.CPURealtimeRuntime != 0, "CpuRealtimePeriod and CpuRealtimeRuntime are not possible: use CpuQuota and CpuPeriod"},
		{!driver.Known(h.LogConfig.Type) && !slices.Contains(logDrivers, h.LogConfig.Type), "logger: no log driver named '" + h.LogConfig.Type + "' is registered"},
		{!driver.Known(h.LogConfig.Type), "LogConfig.Type \"" + h.LogConfig.Type + "\" is not possible: use one of " + driver.Supported},
		{h.AutoRemove && h.RestartPolicy.Name != "" && h.RestartPolicy.Name != "no", "can't create 'AutoRemove' container with restart policy"},
		{c.WorkingDir != "" && c.WorkingDir[0] != '/', "the working directory '" + c.WorkingDir + "' is invalid, it needs to be an absolute path"},
		{h.OomScoreAdj < -1000 || h.OomScoreAdj > 1000, fmt.Sprintf("Invalid value %d, range for oom score adj is [-1000, 1000]", h.OomScoreAdj)},
		{!validMode(h.PidMode), "invalid PID mode: " + h.PidMode},
		{!validMode(h.IpcMode, "private", "shareable", "none", defaultMode), "invalid IPC mode: " + h.IpcMode},
		{h.Privileged && h.UsernsMode == "private", "UsernsMode private cannot be combined with Privileged"},
		{h.UsernsMode != "" && h.UsernsMode != hostMode && h.UsernsMode != "private", "invalid user namespace mode: " + h.UsernsMode},
		{h.UTSMode != "" && h.UTSMode != hostMode, "invalid UTS mode: " + h.UTSMode},
		{h.CgroupnsMode != "" && h.CgroupnsMode != hostMode && h.CgroupnsMode != "private", "invalid cgroup namespace mode: " + h.CgroupnsMode},
		{h.ShmSize < 0, "SHM size can not be less than 0"},
		{h.CPUShares < 0, fmt.Sprintf("invalid CPU shares (%d): value must be a positive integer", h.CPUShares)},
		{slices.Contains(slices.Collect(maps.Keys(h.Annotations)), ""), "invalid Annotations: the empty string is not permitted as an annotation key"},
	} {
		if r.set {
			return invalid.Errorf("%s", r.text)
		}
	}
	for _, e := range c.Env {
		if e == "" || e[0] == '=' {
			return invalid.Errorf("invalid environment variable: %s", e)
		}
	}
	for _, m := range h.Mounts {
		if o := m.VolumeOptions; o != nil && o.DriverConfig != nil && o.DriverConfig.Name != "" && o.DriverConfig.Name != "local" {
			return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("error looking up volume plugin %s: plugin %q not found", o.DriverConfig.Name, o.DriverConfig.Name))
		}
	}
	for _, e := range h.ExtraHosts {
		if !strings.ContainsAny(e, ":=") {
			return invalid.Errorf("bad format for add-host: %q", e)
		}
	}
	if err := limits(&h.Resources); err != nil {
		return err
	}
	if err := restarts(h.RestartPolicy); err != nil {
		return err
	}
	return c.refuseJoined()
}

// validMode reports whether a mode of namespaces is the host's, that of a container, or one of others.
func validMode(mode string, others ...string) bool {
	return mode == "" || mode == hostMode || strings.HasPrefix(mode, "container:") || slices.Contains(others, mode)
}

// refuseJoined refuses settings of a network that the container shares with another one.
func (c *Create) refuseJoined() error {
	h := c.HostConfig
	joins := strings.HasPrefix(h.NetworkMode, "container:")
	for _, r := range []struct {
		set  bool
		text string
	}{
		{joins && c.Hostname != "", "hostname and the network mode"},
		{joins && len(h.Links) > 0, "container type network can't be used with links. This would result in undefined behavior"},
		{h.NetworkMode == hostMode && len(h.Links) > 0, "host type networking can't be used with links. This would result in undefined behavior"},
		{joins && len(h.DNS) > 0, "dns and the network mode"},
		{joins && len(h.ExtraHosts) > 0, "custom host-to-IP mapping and the network mode"},
		{joins && (len(h.PortBindings) > 0 || h.PublishAllPorts), "port publishing and the container type network mode"},
		{joins && len(c.ExposedPorts) > 0, "port exposing and the container type network mode"},
	} {
		if r.set {
			return invalid.Errorf("conflicting options: %s", r.text)
		}
	}
	return nil
}
