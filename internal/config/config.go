// Package config composes the agent's configuration from the parts that the packages own, reads
// it from TOML files, and checks it.
//
// It does not know the meaning of the parts: their owners have their defaults and checks. Start reading
// at Config and Load; default.toml is the file for users.
package config

import (
	"errors"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/egress/policy"
	"github.com/longshore/longshore/internal/engine/users"
	"github.com/longshore/longshore/internal/face/cri"
	"github.com/longshore/longshore/internal/face/docker"
	"github.com/longshore/longshore/internal/face/mesos"
	"github.com/longshore/longshore/internal/face/nomad"
	"github.com/longshore/longshore/internal/face/swarm"
	"github.com/longshore/longshore/internal/grant/document"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/logs/driver"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/obs"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/traces"
	"github.com/longshore/longshore/internal/trail"
	"github.com/longshore/longshore/internal/ui"
)

// Config is everything that can be configured.
type Config struct {
	Agent      Agent              `toml:"agent"`
	Engine     Engine             `toml:"engine"`
	Runtimes   map[string]Runtime `toml:"runtimes"`
	Images     image.Config       `toml:"images"`
	Network    netconf.Config     `toml:"network"`
	Egress     policy.Config      `toml:"egress"`
	Sleep      Sleep              `toml:"sleep"`
	Checkpoint Checkpoint         `toml:"checkpoint"`
	Face       Faces              `toml:"face"`
	Control    control.Config     `toml:"control"`
	Metrics    obs.MetricsConfig  `toml:"metrics"`
	Audit      trail.Config       `toml:"audit"`
	Logs       driver.Config      `toml:"logs"`
	Traces     traces.Config      `toml:"traces"`
	UI         ui.Config          `toml:"ui"`
}

// Agent is the [agent] section.
type Agent struct {
	// Root is the directory for files that survive a boot, State for others.
	Root  string `toml:"root"`
	State string `toml:"state"`
	// LogLevel is debug, info, warn or error; LogFormat json, text or auto.
	LogLevel  string `toml:"log_level"`
	LogFormat string `toml:"log_format"`
	// Keeper is the path of longshore-keeper; "" is the one beside longshore.
	Keeper string `toml:"keeper"`
	// BootParallel is how many containers are started at once by their restart policies, as after a
	// boot.
	BootParallel int `toml:"boot_parallel"`
}

// Engine is the [engine] section.
type Engine struct {
	// Runtime is the name of the default runtime, or auto: the fastest that works.
	Runtime string `toml:"runtime"`
	// CgroupRoot is the engine's own tree, below the root of each hierarchy.
	CgroupRoot string `toml:"cgroup_root"`
	// CgroupDriver is cgroupfs, systemd or auto, which is cgroupfs.
	CgroupDriver string `toml:"cgroup_driver"`
	// CDIDirs are the directories with the vendors' files of the Container Device Interface.
	CDIDirs []string `toml:"cdi_dirs"`
	// Ulimits are the resource limits of containers that ask for no other limit of the same name, as NAME=SOFT[:HARD].
	Ulimits []string `toml:"ulimits"`
	// SELinux labels the containers of all faces, unless they ask for no label. It needs a policy with their types.
	SELinux bool `toml:"selinux"`
	// GrantsPolicy is the file with the limits of programs' grants; "" limits them to the access of
	// an ordinary container of the same request.
	GrantsPolicy string `toml:"grants_policy"`
	// Users is auto, which gives each sandbox a user namespace of its own that can be in one, or off.
	Users string `toml:"userns"`
	// UsersFirstID and UsersRanges are the node's ids for user namespaces: that many ranges of 65536.
	UsersFirstID uint32 `toml:"userns_first_id"`
	UsersRanges  uint32 `toml:"userns_ranges"`
}

// Runtime is one [runtimes.NAME] section.
type Runtime struct {
	// Path is that of the program; "" looks NAME up in PATH.
	Path string `toml:"path"`
}

// Sleep is the [sleep] section.
type Sleep struct {
	// Program is the path of longshore-pages; "" is the one beside longshore.
	Program string `toml:"program"`
	// MaxBytes bounds the file with the memory of one container; 0 is no limit. MinFreeBytes stay free on
	// its file system.
	MaxBytes     uint64 `toml:"max_bytes"`
	MinFreeBytes uint64 `toml:"min_free_bytes"`
	// Swap prefers the node's swap to a file, where it has room.
	Swap bool `toml:"swap"`
}

// Checkpoint is the [checkpoint] section.
type Checkpoint struct {
	// Program is the path of criu; "" looks it up in PATH, and needs version 4 or newer.
	Program string `toml:"program"`
	// MinFreeBytes stay free on the file system of the checkpoints.
	MinFreeBytes uint64 `toml:"min_free_bytes"`
	// Images permits containers of images with a checkpoint.
	Images bool `toml:"images"`
}

// Faces are the [face.NAME] sections.
type Faces struct {
	CRI    cri.Config    `toml:"cri"`
	Nomad  nomad.Config  `toml:"nomad"`
	Docker docker.Config `toml:"docker"`
	Mesos  mesos.Config  `toml:"mesos"`
	Swarm  swarm.Config  `toml:"swarm"`
}

// CgroupDrivers returns the possible values of Engine.CgroupDriver.
func CgroupDrivers() []string { return []string{"auto", "cgroupfs", "systemd"} }

// The values of Engine.Users.
const (
	UsersOff  = "off"
	UsersAuto = "auto"
)

// RuntimeAuto, as Engine.Runtime, is the fastest runtime that works. RuntimeNative is our own,
// which needs neither a section nor a program.
const (
	RuntimeAuto   = "auto"
	RuntimeNative = "native"
)

// Default returns the configuration without a file.
func Default() Config {
	return Config{
		Agent:      Agent{Root: "/var/lib/longshore", State: "/run/longshore", LogLevel: "info", LogFormat: "auto", BootParallel: 8},
		Engine:     Engine{Runtime: RuntimeAuto, CgroupRoot: "/longshore", CgroupDriver: "auto", CDIDirs: []string{"/etc/cdi", "/var/run/cdi"}, Ulimits: []string{}, Users: UsersOff, UsersFirstID: users.DefaultFirst, UsersRanges: users.DefaultRanges},
		Runtimes:   map[string]Runtime{"crun": {}, "runc": {}},
		Images:     image.Default(),
		Network:    netconf.DefaultConfig(),
		Sleep:      Sleep{MinFreeBytes: 1 << 30},
		Checkpoint: Checkpoint{MinFreeBytes: 1 << 30},
		Face:       Faces{CRI: cri.DefaultConfig(), Nomad: nomad.DefaultConfig(), Mesos: mesos.DefaultConfig(), Swarm: swarm.DefaultConfig(), Docker: docker.DefaultConfig()},
		Control:    control.DefaultConfig(),
		Metrics:    obs.DefaultMetricsConfig(),
		Audit:      trail.DefaultConfig(),
		Logs:       driver.Config{Options: map[string]string{}},
		Traces:     traces.DefaultConfig(),
		UI:         ui.DefaultConfig(),
	}
}

// Rooted returns c with other directories; "" leaves one as it is. Paths that are below the old
// ones by default move with them.
func (c Config) Rooted(root, state string) Config {
	if root != "" {
		c.Agent.Root = root
	}
	if state == "" {
		return c
	}
	for _, socket := range []*string{&c.Face.CRI.Socket, &c.Face.Nomad.Socket, &c.Face.Mesos.Socket, &c.Face.Docker.Socket} {
		if name := filepath.Base(*socket); *socket == filepath.Join(c.Agent.State, name) {
			*socket = filepath.Join(state, name)
		}
	}
	// Cgroups belong to the whole machine: of two agents on one tree each would take the other's
	// for its predecessor's.
	if d := Default(); c.Engine.CgroupRoot == d.Engine.CgroupRoot && state != d.Agent.State {
		h := fnv.New32a()
		_, _ = h.Write([]byte(filepath.Clean(state)))
		c.Engine.CgroupRoot = fmt.Sprintf("%s-%08x", d.Engine.CgroupRoot, h.Sum32())
	}
	c.Agent.State = state
	return c
}

// MaxBootParallel bounds Agent.BootParallel.
const MaxBootParallel = 1000

// Validate returns everything that is wrong with c. InvalidArgument.
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
	for key, path := range map[string]string{"agent.keeper": c.Agent.Keeper, "engine.grants_policy": c.Engine.GrantsPolicy, "sleep.program": c.Sleep.Program, "checkpoint.program": c.Checkpoint.Program} {
		if path != "" && !filepath.IsAbs(path) {
			bad("%s %q is not an absolute path", key, path)
		}
	}
	if c.Agent.BootParallel < 1 || c.Agent.BootParallel > MaxBootParallel {
		bad("agent.boot_parallel %d is not between 1 and %d", c.Agent.BootParallel, MaxBootParallel)
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
	if _, err := c.Engine.Rlimits(); err != nil {
		errs = append(errs, err)
	}
	if c.Engine.Users != UsersOff && c.Engine.Users != UsersAuto {
		bad("engine.userns %q is neither off nor auto", c.Engine.Users)
	}
	if err := users.CheckPool(c.Engine.UsersFirstID, c.Engine.UsersRanges); err != nil {
		errs = append(errs, fmt.Errorf("engine.userns_ranges: %w", err))
	}
	if _, ok := c.Runtimes[c.Engine.Runtime]; !ok && c.Engine.Runtime != RuntimeAuto && c.Engine.Runtime != RuntimeNative {
		bad("engine.runtime %q is neither auto nor native nor a section [runtimes.%s]", c.Engine.Runtime, c.Engine.Runtime)
	}
	for name, r := range c.Runtimes {
		if r.Path != "" && !filepath.IsAbs(r.Path) {
			bad("runtimes.%s.path %q is not an absolute path", name, r.Path)
		}
	}
	for kind, devices := range c.Face.Swarm.GenericResources {
		for _, name := range devices {
			if slices.Contains(c.Face.Mesos.GPUs, name) {
				bad("device %s is in face.swarm.generic_resources.%s and in face.mesos.gpus: it would be given twice", name, kind)
			}
		}
	}
	return errors.Join(append(errs, c.Images.Validate(), c.Network.Check(), c.Egress.Check(), c.Face.CRI.Validate(), c.Face.Nomad.Validate(), c.Face.Mesos.Validate(), c.Face.Swarm.Validate(), c.Face.Docker.Validate(), c.Control.Validate(), c.Metrics.Validate(), c.Audit.Validate(), c.Logs.Validate(), c.Traces.Validate(), c.UI.Validate())...)
}

// Rlimits returns the resource limits of Ulimits.
func (e Engine) Rlimits() ([]specs.POSIXRlimit, error) {
	var all []specs.POSIXRlimit
	for _, s := range e.Ulimits {
		l, err := ocispec.Rlimit(s)
		if err != nil {
			return nil, fmt.Errorf("engine.ulimits: %w", err)
		}
		if slices.ContainsFunc(all, func(o specs.POSIXRlimit) bool { return o.Type == l.Type }) {
			return nil, fmt.Errorf("engine.ulimits: %q is the second limit of that name: %w", s, errdefs.ErrInvalidArgument)
		}
		all = append(all, l)
	}
	return all, nil
}

// CheckFiles returns everything that is wrong with the files that c names, by reading those that
// the agent reads at its start. It does not read those of disabled faces.
func (c Config) CheckFiles() error {
	errs := []error{c.Metrics.CheckFiles(), c.UI.CheckFiles(), c.Logs.CheckFiles()}
	if _, err := document.OpenPolicy(c.Engine.GrantsPolicy); err != nil {
		errs = append(errs, fmt.Errorf("engine.grants_policy: %w: %w", err, errdefs.ErrInvalidArgument))
	}
	for _, f := range []struct {
		enabled bool
		check   func() error
	}{{c.Face.CRI.Enabled, c.Face.CRI.CheckFiles}, {c.Face.Mesos.Enabled, c.Face.Mesos.CheckFiles}, {c.Face.Docker.Enabled, c.Face.Docker.CheckFiles}} {
		if f.enabled {
			errs = append(errs, f.check())
		}
	}
	return errors.Join(errs...)
}
