// Package translate turns what Mesos asks for into the engine's nouns.
//
// It looks at the node where a call names something of it, and must not change
// anything but the owner of a sandbox. Start reading at Launch.
package translate

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// Inside is where a container with an image finds its sandbox.
const ImageSandboxDir = "/mnt/mesos/sandbox"

// Launch is one launch with everything read.
type Launch struct {
	ID        string // as text
	Command   *mesosv1.CommandInfo
	Container *mesosv1.ContainerInfo
	Resources []*mesosv1.Resource
	// Dir is the container's sandbox on the host.
	Dir string
	// Closed is a directory of the host that Dir may be below and that nobody but
	// root may search; "" is none.
	AgentRoot string
	// Work is the directory above all sandboxes, which is trusted: containers own
	// parts of the paths below.
	WorkDir string
	// Parent is the container that a nested one is in, with its record.
	Parent       *core.Container
	ParentRecord Record
	ParentUser   string // the parent's user and group, by number
	// Permit refuses what a call may not start: a process of this user. What it says
	// is the error of the launch. nil permits all.
	PermitUser func(u specs.User) error
	// GPUs are the names of those that a standalone container gets.
	GPUs []string
}

// Record is what the face keeps with a container.
type Record struct {
	Dir  string `json:"dir"`            // its sandbox on the host
	User string `json:"user,omitempty"` // as it was asked for
	TTY  bool   `json:"tty,omitempty"`
	Disk uint64 `json:"disk,omitempty"` // how much of it a standalone one and all in it may take, bytes; 0: any
}

// ReadRecord reads a container's record. DataLoss.
func ReadRecord(c core.Container) (r Record, err error) {
	if err := json.Unmarshal(c.Data, &r); err != nil {
		return r, fmt.Errorf("record of container %s: %w: %w", c.Key, err, errdefs.ErrDataLoss)
	}
	return r, nil
}

func notImplemented(what string) error { return fmt.Errorf("%s: %w", what, errdefs.ErrNotImplemented) }

// Check refuses what this node does not do, before anything is made.
// InvalidArgument, or NotImplemented for what is not built.
func (l Launch) Check() error {
	if l.Container != nil && l.Container.GetType() != mesosv1.ContainerInfo_MESOS {
		return invalid.Plainf("The provided ContainerInfo is not supported")
	}
	if err := l.checkImages(); err != nil {
		return err
	}
	if l.Parent != nil && len(l.Container.GetNetworkInfos()) > 0 {
		return notImplemented("a network of a nested container's own")
	}
	if shell := l.Command != nil && l.Command.Shell != nil && l.Command.GetShell(); l.Image() != "" && l.Command.GetValue() == "" && !shell {
		return nil // the image may know
	}
	_, err := l.args(nil)
	return err
}

// Image is the name of the image asked for, "" for the host's root.
func (l Launch) Image() string {
	if img := l.Container.GetMesos().GetImage(); img != nil {
		return img.GetDocker().GetName()
	}
	return ""
}

// TTY reports whether the container gets a terminal.
func (l Launch) TTY() bool { return l.Container.GetTtyInfo() != nil }

// user is who it runs as; a nested one is its parent's unless it says.
func (l Launch) userName() string {
	if l.Command.GetUser() != "" {
		return l.Command.GetUser()
	}
	return l.ParentUser
}

// Inherit has the parent's ids as what a nested container runs as, unless it says
// more. Its root may know no names.
func (l *Launch) Inherit() error {
	p, err := ocispec.BundleProcess(l.Parent.Bundle)
	if err == nil {
		l.ParentUser = fmt.Sprintf("%d:%d", p.User.UID, p.User.GID)
	}
	return err
}

// Sandbox is a standalone container's surroundings. Without a network of its own
// it is on the host's, as Mesos has it; what is nested shares them.
func (l Launch) SandboxConfig() (core.SandboxConfig, error) {
	res, err := l.resourceLimits()
	if err != nil {
		return core.SandboxConfig{}, err
	}
	cfg := core.SandboxConfig{Key: core.Key(l.ID), Hostname: l.Container.GetHostname(), Resources: res}
	cfg.Namespaces.Net.Mode, cfg.Namespaces.UTS.Mode, cfg.Namespaces.IPC.Mode = core.Host, core.Host, core.Shared
	if cfg.Hostname != "" {
		cfg.Namespaces.UTS.Mode = core.Shared
	}
	if nets := l.Container.GetNetworkInfos(); len(nets) > 0 {
		cfg.Namespaces.Net.Mode = core.Shared
		if cfg.Network, err = network(nets); err != nil {
			return cfg, err
		}
	}
	if l.Container.GetLinuxInfo().GetSharePidNamespace() {
		cfg.Namespaces.PID.Mode = core.Host
	}
	return cfg, nil
}

// network is one interface for each of nets: eth0, eth1 and so on. One alone may be the
// node's own, which needs no name.
func network(nets []*mesosv1.NetworkInfo) (cfg core.NetworkConfig, err error) {
	seen := map[string]bool{}
	for i, n := range nets {
		switch name := n.GetName(); {
		case len(nets) == 1:
			cfg.Name = name
		case name == "":
			return cfg, invalid.Plainf("network_infos: of several networks each has to be named")
		case seen[name]:
			return cfg, invalid.Plainf("Attempted to join CNI network '%s' multiple times", name)
		default:
			seen[name] = true
			cfg.Attach = append(cfg.Attach, core.Attachment{Network: name, Interface: fmt.Sprintf("eth%d", i)})
		}
		for _, p := range n.GetPortMappings() {
			if i > 0 {
				return cfg, invalid.Plainf("network_infos: ports are mapped to the first network only")
			}
			port, err := port(p)
			if err != nil {
				return cfg, err
			}
			cfg.Ports = append(cfg.Ports, port)
		}
	}
	return cfg, nil
}

func port(p *mesosv1.NetworkInfo_PortMapping) (core.Port, error) {
	proto := strings.ToLower(p.GetProtocol())
	if proto == "" {
		proto = "tcp"
	}
	if p.GetHostPort() < 1 || p.GetHostPort() > math.MaxUint16 || p.GetContainerPort() < 1 || p.GetContainerPort() > math.MaxUint16 ||
		!slices.Contains([]string{"tcp", "udp", "sctp"}, proto) {
		return core.Port{}, invalid.Plainf("port mapping of %d to %d/%s", p.GetHostPort(), p.GetContainerPort(), proto)
	}
	return core.Port{Proto: proto, Host: uint16(p.GetHostPort()), Container: uint16(p.GetContainerPort())}, nil
}

// What Mesos gives at least, whatever was asked for.
const (
	minMem    = 32 << 20
	minShares = 2
	cpuShares = 1024 // of one CPU
)

// amounts are the resources by their names.
func (l Launch) resourceAmounts() map[string]float64 {
	amount := map[string]float64{}
	for _, r := range l.Resources {
		amount[r.GetName()] += r.GetScalar().GetValue()
	}
	return amount
}

// WantsGPUs is how many GPUs are asked for.
func (l Launch) WantsGPUs() int { return int(min(l.resourceAmounts()["gpus"], math.MaxInt32)) }

// disk is the limit of what is taken of the disk, in bytes; 0 for none.
func (l Launch) diskLimit() (uint64, error) {
	mib := l.resourceAmounts()["disk"]
	if mib > 1<<40 || math.IsNaN(mib) {
		return 0, invalid.Plainf("disk: %g", mib)
	}
	return uint64(max(mib, 0) * (1 << 20)), nil
}

// limits are the resources as the kernel enforces them: CPUs by weight, as Mesos
// has it unless it is told otherwise, and memory as a limit.
func (l Launch) resourceLimits() (*specs.LinuxResources, error) {
	amount := l.resourceAmounts()
	res := &specs.LinuxResources{}
	if cpus := amount["cpus"]; cpus > 0 {
		if cpus > 1<<20 {
			return nil, invalid.Plainf("cpus: %g", cpus)
		}
		shares := max(uint64(cpus*cpuShares), minShares)
		res.CPU = &specs.LinuxCPU{Shares: &shares}
	}
	if mem := amount["mem"]; mem > 0 {
		if mem > 1<<40 {
			return nil, invalid.Plainf("mem: %g", mem)
		}
		limit := max(int64(mem*(1<<20)), minMem)
		res.Memory = &specs.LinuxMemory{Limit: &limit}
	}
	return res, nil
}

// ContainerOf is the container itself.
func (l Launch) ContainerConfig(sandbox core.ID, images Images) (core.ContainerConfig, error) {
	limit, err := l.diskLimit()
	if err != nil {
		return core.ContainerConfig{}, err
	}
	data, err := json.Marshal(Record{Dir: l.Dir, User: l.Command.GetUser(), TTY: l.TTY(), Disk: limit})
	if err != nil {
		return core.ContainerConfig{}, err
	}
	c := core.ContainerConfig{
		Key: core.Key(l.ID), Sandbox: sandbox, Data: data, Images: imageMounts(images.Volumes), CDI: l.GPUs,
		IO: core.IO{TTY: l.TTY(), Sinks: []core.Sink{{Format: core.FormatRaw, Stdout: true, Path: l.Dir + "/stdout", Below: l.WorkDir}}},
	}
	if c.IO.TTY {
		c.IO.Stdin, c.IO.Size = core.StdinOpen, Size(l.Container.GetTtyInfo())
	} else {
		c.IO.Sinks = append(c.IO.Sinks, core.Sink{Format: core.FormatRaw, Stderr: true, Path: l.Dir + "/stderr", Below: l.WorkDir})
	}
	if images.Root.ID != "" {
		c.Root.Image = images.Root.ID
	} else {
		// What is mounted below the host's root stays out: other containers'
		// roots and our own state are among it.
		c.Root.Mounts = []core.Mount{{Type: "bind", Source: "/", Options: []string{"bind"}}}
	}
	if l.Parent != nil {
		c.Parent, c.CDI = l.Parent.ID, l.Parent.Config.CDI // what is nested has its root's
		if l.Container.GetLinuxInfo().GetSharePidNamespace() {
			c.Join = append(c.Join, core.Join{Namespace: specs.PIDNamespace, Container: l.Parent.ID})
		}
	}
	base, err := l.baseSpec()
	if err != nil {
		return c, err
	}
	c.Spec = l.specFunc(base)
	return c, nil
}

// Size is a terminal's first size; zero when it is not said.
func Size(t *mesosv1.TTYInfo) core.Size {
	w := t.GetWindowSize()
	return core.Size{Cols: uint16(min(w.GetColumns(), math.MaxUint16)), Rows: uint16(min(w.GetRows(), math.MaxUint16))}
}

// args is the command line. Without a shell arguments has all of argv, its first
// one too; the program is value then.
func (l Launch) args(img []string) ([]string, error) {
	c := l.Command
	args := slices.Clone(c.GetArguments())
	switch shell := c != nil && c.GetShell(); {
	case shell && c.Value != nil:
		args = []string{"/bin/sh", "-c", c.GetValue()}
	case shell && c.Shell != nil:
		return nil, invalid.Plainf("Shell specified but no command value provided")
	case c.GetValue() != "":
		args = append([]string{c.GetValue()}, args[min(1, len(args)):]...)
	case len(args) > 0 && len(img) > 0:
		args = append(slices.Clone(img), args...)
	case len(args) == 0:
		args = slices.Clone(img)
	default:
		args = nil
	}
	for _, a := range args {
		if strings.ContainsRune(a, 0) {
			return nil, invalid.Plainf("NUL in the command")
		}
	}
	if len(args) == 0 {
		return nil, invalid.Plainf("No executable specified to run and no default in the image")
	}
	return args, nil
}

// Root is the standalone container that l's is, or is below.
func (l Launch) Root() string { return api.RootOf(l.ID) }
