// Package config composes the configuration of the agent of the parts that the
// packages own, reads it from TOML files, and says what is wrong with them.
//
// It must not know what the parts mean: their defaults and checks are their
// owners'. Start reading at Config and Load; default.toml is what users see.
package config

import (
	"errors"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/face/cri"
	"github.com/longshore/longshore/internal/face/mesos"
	"github.com/longshore/longshore/internal/face/nomad"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/network"
	"github.com/longshore/longshore/internal/obs"
)

// Config is everything that can be configured.
type Config struct {
	Agent    Agent              `toml:"agent"`
	Engine   Engine             `toml:"engine"`
	Runtimes map[string]Runtime `toml:"runtimes"`
	Images   image.Config       `toml:"images"`
	Network  network.Config     `toml:"network"`
	Face     Faces              `toml:"face"`
	Control  control.Config     `toml:"control"`
	Metrics  obs.MetricsConfig  `toml:"metrics"`
}

// Agent is the [agent] section.
type Agent struct {
	// Root holds what survives a boot, State what a boot may lose.
	Root  string `toml:"root"`
	State string `toml:"state"`
	// LogLevel is debug, info, warn or error; LogFormat json, text or auto.
	LogLevel  string `toml:"log_level"`
	LogFormat string `toml:"log_format"`
	// Keeper is the path of longshore-keeper; "" is beside longshore itself.
	Keeper string `toml:"keeper"`
}

// Engine is the [engine] section.
type Engine struct {
	// Runtime is the default one by its name, or auto: the fastest that works.
	Runtime string `toml:"runtime"`
	// CgroupRoot is the engine's own tree, below the root of each hierarchy.
	CgroupRoot string `toml:"cgroup_root"`
	// CgroupDriver is cgroupfs, systemd or auto, which is cgroupfs.
	CgroupDriver string `toml:"cgroup_driver"`
	// CDIDirs have the vendors' files of the Container Device Interface.
	CDIDirs []string `toml:"cdi_dirs"`
}

// Runtime is one [runtimes.NAME] section.
type Runtime struct {
	// Path of the program; "" looks NAME up in PATH.
	Path string `toml:"path"`
}

// Faces are the [face.NAME] sections.
type Faces struct {
	CRI   cri.Config   `toml:"cri"`
	Nomad nomad.Config `toml:"nomad"`
	Mesos mesos.Config `toml:"mesos"`
}

// CgroupDrivers are what Engine.CgroupDriver may be.
func CgroupDrivers() []string { return []string{"auto", "cgroupfs", "systemd"} }

// RuntimeAuto as Engine.Runtime takes the fastest runtime that works;
// RuntimeNative is our own, which needs no section and no program.
const (
	RuntimeAuto   = "auto"
	RuntimeNative = "native"
)

// Default is the configuration that needs no file.
func Default() Config {
	return Config{
		Agent:    Agent{Root: "/var/lib/longshore", State: "/run/longshore", LogLevel: "info", LogFormat: "auto"},
		Engine:   Engine{Runtime: RuntimeAuto, CgroupRoot: "/longshore", CgroupDriver: "auto", CDIDirs: []string{"/etc/cdi", "/var/run/cdi"}},
		Runtimes: map[string]Runtime{"crun": {}, "runc": {}},
		Images:   image.Default(),
		Network:  network.DefaultConfig(),
		Face:     Faces{CRI: cri.DefaultConfig(), Nomad: nomad.DefaultConfig(), Mesos: mesos.DefaultConfig()},
		Control:  control.DefaultConfig(),
		Metrics:  obs.DefaultMetricsConfig(),
	}
}

// Rooted returns c with other directories, "" leaving one as it is. Paths that
// stand below the old ones by default follow.
func (c Config) Rooted(root, state string) Config {
	if root != "" {
		c.Agent.Root = root
	}
	if state == "" {
		return c
	}
	for _, socket := range []*string{&c.Face.CRI.Socket, &c.Face.Nomad.Socket, &c.Face.Mesos.Socket} {
		if name := filepath.Base(*socket); *socket == filepath.Join(c.Agent.State, name) {
			*socket = filepath.Join(state, name)
		}
	}
	// Cgroups are the whole machine's: two agents on one tree would each take
	// the other's for what a predecessor left.
	if d := Default(); c.Engine.CgroupRoot == d.Engine.CgroupRoot && state != d.Agent.State {
		h := fnv.New32a()
		_, _ = h.Write([]byte(filepath.Clean(state)))
		c.Engine.CgroupRoot = fmt.Sprintf("%s-%08x", d.Engine.CgroupRoot, h.Sum32())
	}
	c.Agent.State = state
	return c
}

// Validate says what is wrong with c, all of it. InvalidArgument.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument))
	}
	for key, path := range map[string]string{"agent.root": c.Agent.Root, "agent.state": c.Agent.State, "engine.cgroup_root": c.Engine.CgroupRoot} {
		if !filepath.IsAbs(path) {
			bad("%s %q is not an absolute path", key, path)
		}
	}
	if c.Agent.Root == c.Agent.State && c.Agent.Root != "" {
		bad("agent.root and agent.state are both %q: one survives a boot, the other does not", c.Agent.Root)
	}
	if c.Agent.Keeper != "" && !filepath.IsAbs(c.Agent.Keeper) {
		bad("agent.keeper %q is not an absolute path", c.Agent.Keeper)
	}
	if _, err := obs.ParseLevel(c.Agent.LogLevel); err != nil {
		bad("agent.log_level %q is none of debug, info, warn, error", c.Agent.LogLevel)
	}
	if !slices.Contains([]string{"", "auto", "json", "text"}, c.Agent.LogFormat) {
		bad("agent.log_format %q is none of auto, json, text", c.Agent.LogFormat)
	}
	if !slices.Contains(CgroupDrivers(), c.Engine.CgroupDriver) {
		bad("engine.cgroup_driver %q is none of auto, cgroupfs, systemd", c.Engine.CgroupDriver)
	}
	if _, ok := c.Runtimes[c.Engine.Runtime]; !ok && c.Engine.Runtime != RuntimeAuto && c.Engine.Runtime != RuntimeNative {
		bad("engine.runtime %q is neither auto nor native nor a section [runtimes.%s]", c.Engine.Runtime, c.Engine.Runtime)
	}
	for name, r := range c.Runtimes {
		if r.Path != "" && !filepath.IsAbs(r.Path) {
			bad("runtimes.%s.path %q is not an absolute path", name, r.Path)
		}
	}
	return errors.Join(append(errs, c.Images.Validate(), c.Network.Check(), c.Face.CRI.Validate(), c.Face.Nomad.Validate(), c.Face.Mesos.Validate(), c.Control.Validate(), c.Metrics.Validate())...)
}
