// Package translate converts launches of Mesos into configurations of the engine: a
// sandbox, a container, an OCI spec, or a process for a session.
//
// It makes the directories of sandbox_path volumes and gives a sandbox to its user, but
// changes nothing else on the node. Start reading at Launch.
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
	"github.com/longshore/longshore/internal/logs/driver"
	"github.com/longshore/longshore/internal/ocispec"
)

// ImageSandboxDir is the path of the sandbox in a container with an image.
const ImageSandboxDir = "/mnt/mesos/sandbox"

// Launch is a launch call with all facts about it.
type Launch struct {
	ID        string // the container's id in text form
	Command   *mesosv1.CommandInfo
	Container *mesosv1.ContainerInfo
	Resources []*mesosv1.Resource
	// Dir is the container's sandbox on the host.
	Dir string
	// AgentRoot is a directory of the host that only root may search, and that Dir may
	// be below; "" for none.
	AgentRoot string
	// WorkDir is the directory above all sandboxes. It is trusted, unlike the paths below, because
	// containers own parts of them.
	WorkDir string
	// Parent is the container that a nested one is launched in, with its record.
	Parent       *core.Container
	ParentRecord Record
	ParentUser   string // the parent's user and group, by number
	// PermitUser returns an error if the call may not start a process of this user; the
	// launch fails with that error. nil permits every user.
	PermitUser func(u specs.User) error
	// GPUs are the names of the GPUs that a standalone container gets.
	GPUs []string
}

// Record is the face's record of a container.
type Record struct {
	Dir  string `json:"dir"`            // the sandbox on the host
	User string `json:"user,omitempty"` // as the call has it
	TTY  bool   `json:"tty,omitempty"`
	Disk uint64 `json:"disk,omitempty"` // limit for a standalone container and everything nested in it, in bytes; 0: none
}

// ReadRecord reads a container's record. DataLoss.
func ReadRecord(c core.Container) (r Record, err error) {
	if err := json.Unmarshal(c.Data, &r); err != nil {
		return r, fmt.Errorf("record of container %s: %w: %w", c.Key, err, errdefs.ErrDataLoss)
	}
	return r, nil
}

// notImplemented is the error for a feature of Mesos that this face does not have.
func notImplemented(what string) error { return fmt.Errorf("%s: %w", what, errdefs.ErrNotImplemented) }

// Check refuses unsupported settings, before anything is created. InvalidArgument, or
// NotImplemented for features that are missing.
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
		return nil // the image may have a command
	}
	_, err := l.args(nil)
	return err
}

// Image is the name of the image; "" for the host's root.
func (l Launch) Image() string {
	if img := l.Container.GetMesos().GetImage(); img != nil {
		return img.GetDocker().GetName()
	}
	return ""
}

// TTY reports whether the container gets a terminal.
func (l Launch) TTY() bool { return l.Container.GetTtyInfo() != nil }

// userName is the user that the process runs as; that of the parent by default.
func (l Launch) userName() string {
	if l.Command.GetUser() != "" {
		return l.Command.GetUser()
	}
	return l.ParentUser
}

// Inherit makes the parent's user and group the default of a nested container, by
// number, because its image may have other names.
func (l *Launch) Inherit() error {
	p, err := ocispec.BundleProcess(l.Parent.Bundle)
	if err == nil {
		l.ParentUser = fmt.Sprintf("%d:%d", p.User.UID, p.User.GID)
	}
	return err
}

// SandboxConfig is the sandbox of a standalone container. Without networks of its own
// it is on the host's network, as in Mesos. Nested containers share it.
func (l Launch) SandboxConfig() (core.SandboxConfig, error) {
	res, err := l.resourceLimits()
	if err != nil {
		return core.SandboxConfig{}, err
	}
	cfg := core.SandboxConfig{Key: core.Key(l.ID), Hostname: l.Container.GetHostname(), Resources: res, SELinux: &core.SELinux{}}
	cfg.Namespaces.Net.Mode, cfg.Namespaces.UTS.Mode, cfg.Namespaces.IPC.Mode = core.Host, core.Host, core.Shared
	if list, ok := l.label(core.EgressLabel); ok {
		cfg.Labels = map[string]string{core.EgressLabel: list}
	}
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
		cfg.Namespaces.PID.Mode, cfg.SELinux = core.Host, nil
	}
	return cfg, nil
}

// network configures one interface per entry: eth0, eth1 and so on. A single one may be
// the node's default network, which needs no name.
func network(nets []*mesosv1.NetworkInfo) (cfg core.NetworkConfig, err error) {
	seen := map[string]bool{}
	for i, n := range nets {
		switch name := n.GetName(); {
		case len(nets) == 1:
			cfg.Name = name
		case name == "":
			return cfg, invalid.Plainf("network_infos: with several networks each needs a name")
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

// port converts a port mapping.
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

// The minimum that Mesos gives.
const (
	minMem    = 32 << 20
	minShares = 2
	cpuShares = 1024 // of one CPU
)

// resourceAmounts are the amounts of scalar resources by name.
func (l Launch) resourceAmounts() map[string]float64 {
	amount := map[string]float64{}
	for _, r := range l.Resources {
		amount[r.GetName()] += r.GetScalar().GetValue()
	}
	return amount
}

// WantsGPUs is the number of GPUs that the launch asks for.
func (l Launch) WantsGPUs() int { return int(min(l.resourceAmounts()["gpus"], math.MaxInt32)) }

// diskLimit is the limit of disk usage in bytes; 0 for none.
func (l Launch) diskLimit() (uint64, error) {
	mib := l.resourceAmounts()["disk"]
	if mib > 1<<40 || math.IsNaN(mib) {
		return 0, invalid.Plainf("disk: %g", mib)
	}
	return uint64(max(mib, 0) * (1 << 20)), nil
}

// resourceLimits are the resources that the kernel enforces: CPUs as a weight, as in
// Mesos by default, and memory as a limit.
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

// ContainerConfig is the container itself.
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
		Key: core.Key(l.ID), Sandbox: sandbox, Data: data, Images: imageMounts(images.Volumes), CDI: l.GPUs, Labelled: true,
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
		// A bind without submounts: mounted below the host's root are the roots of
		// other containers and our own state.
		c.Root.Mounts = []core.Mount{{Type: "bind", Source: "/", Options: []string{"bind"}}}
	}
	if l.Parent != nil {
		c.Parent, c.CDI = l.Parent.ID, l.Parent.Config.CDI // nested containers share the GPUs of their root
		if l.Container.GetLinuxInfo().GetSharePidNamespace() {
			c.Join = append(c.Join, core.Join{Namespace: specs.PIDNamespace, Container: l.Parent.ID})
		}
	}
	base, err := l.baseSpec()
	if err != nil {
		return c, err
	}
	levels, _ := l.label(core.LandlockAnnotation)
	ocispec.SetLevels(base, levels)
	c.Spec, c.Users = l.specFunc(base), ocispec.UserNeeds(base)
	for _, name := range []string{core.SleepAfterLabel, core.DiskLabel} {
		if value, ok := l.label(name); ok {
			if c.Labels == nil {
				c.Labels = map[string]string{}
			}
			c.Labels[name] = value
		}
	}
	if c.LogDriver, err = l.logDriver(); err != nil {
		return c, err
	}
	doc, asked := l.label(core.GrantAnnotation)
	ocispec.Granted{
		Document: doc, Asked: asked, Image: &images.Root, Identity: core.Identity{Pod: l.Root(), Container: l.ID, Image: l.Image()},
	}.Apply(&c)
	return c, nil
}

// label returns the value of a label of the container. The labels of its networks are the only ones that the API has
// for a container.
func (l Launch) label(key string) (value string, ok bool) {
	for _, n := range l.Container.GetNetworkInfos() {
		for _, label := range n.GetLabels().GetLabels() {
			if label.GetKey() == key {
				return label.GetValue(), true
			}
		}
	}
	return "", false
}

// logDriver returns the log driver of the container's labels. One without a name is the node's default.
func (l Launch) logDriver() (*core.LogDriver, error) {
	d := &core.LogDriver{}
	name, named := l.label(core.LogDriverLabel)
	text, listed := l.label(core.LogOptionsLabel)
	if named || listed {
		var env []string
		for _, v := range l.Command.GetEnvironment().GetVariables() {
			env = append(env, v.GetName()+"="+v.GetValue())
		}
		opts, err := driver.Lines(text)
		if err == nil && name == "" {
			err = invalid.Plainf("it names no driver: use one of json-file, %s", driver.Services)
		}
		if err == nil {
			d, err = driver.Authored(name, opts, nil, env)
		}
		if err != nil {
			return nil, invalid.Plainf("label %s: %w", core.LogDriverLabel, err)
		}
	}
	d.Image, d.Command = l.Image(), l.Command.GetValue()
	return d, nil
}

// Size is the initial size of a terminal; zero if the call does not say.
func Size(t *mesosv1.TTYInfo) core.Size {
	w := t.GetWindowSize()
	return core.Size{Cols: uint16(min(w.GetColumns(), math.MaxUint16)), Rows: uint16(min(w.GetRows(), math.MaxUint16))}
}

// args is the command line. Without a shell, the arguments are the whole argv and the
// value is the program to execute. img is the command line of the image.
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

// Root is the id of the standalone container that l is or is nested in.
func (l Launch) Root() string { return api.RootOf(l.ID) }
