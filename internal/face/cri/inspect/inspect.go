// Package inspect builds the verbose part of status answers: one JSON document
// under the key "info", which crictl inspect, inspectp and inspecti print beside the
// status.
//
// Scripts and agents written for containerd read this document with templates, so
// keys that containerd has too have the same names, places and meanings here. They
// are stable and listed in docs/guide/kubernetes.md. The other keys are specific to
// this runtime and may change. No document contains values of environment
// variables.
//
// The package is pure: it turns records into text and must not know the engine.
package inspect

import (
	"encoding/json"
	"net/netip"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
)

// Snapshotter is the name given to what mounts a container's layers.
const Snapshotter = "overlayfs"

// document encodes v as the info map of an answer, nil if v cannot be encoded.
func document(v any) map[string]string {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return map[string]string{"info": string(b)}
}

// Container holds what a container's document is built from.
type Container struct {
	Record *core.Container
	// Config is the config of the create request, without values of environment
	// variables.
	Config *v1.ContainerConfig
	// Resources are the limits as last updated; nil if there are none.
	Resources *v1.LinuxContainerResources
	// Hostname is the sandbox's, whose UTS namespace the container shares.
	Hostname string
	// Spec is the OCI spec that the runtime received; nil if it is gone. Info
	// modifies it.
	Spec *specs.Spec
}

// containerInfo is a container's document: containerd's keys, then ours.
type containerInfo struct {
	SandboxID core.ID `json:"sandboxID"`
	// Pid is the main process in the host's pid namespace; 0 if it does not run.
	Pid      int  `json:"pid"`
	Removing bool `json:"removing"`
	// SnapshotKey names the container's own layer; "" if its root is not an image.
	SnapshotKey    string              `json:"snapshotKey"`
	Snapshotter    string              `json:"snapshotter"`
	RuntimeType    string              `json:"runtimeType"`
	RuntimeOptions *struct{}           `json:"runtimeOptions"` // always null
	Config         *v1.ContainerConfig `json:"config"`
	RuntimeSpec    *specs.Spec         `json:"runtimeSpec"`
	Privileged     bool                `json:"privileged"` // CRI-O's key

	Key      core.Key            `json:"key"`
	State    core.ContainerState `json:"state"`
	Args     []string            `json:"args"`
	Autopsy  *core.Autopsy       `json:"autopsy"`
	Bundle   string              `json:"bundle"`
	Cgroup   core.CgroupRef      `json:"cgroup"`
	Runtime  string              `json:"runtime"`
	Warnings []string            `json:"warnings"`
	// Confinement says what the kernel confines a program by that holds only its descriptors, or that has levels of Landlock.
	Confinement *core.Confinement `json:"confinement,omitempty"`
}

// Info returns the container's document.
func (c Container) Info() map[string]string {
	r := c.Record
	hideValues(c.Spec)
	if c.Spec != nil && c.Spec.Hostname == "" {
		c.Spec.Hostname = c.Hostname
	}
	limit(c.Spec, c.Config.GetLinux().GetResources(), c.Resources)
	i := containerInfo{
		SandboxID: r.Sandbox, Pid: r.Main.Pid, Removing: r.Removing, RuntimeType: r.Runtime, Config: c.Config, RuntimeSpec: c.Spec,
		Privileged: c.Config.GetLinux().GetSecurityContext().GetPrivileged(),
		Key:        r.Key, State: r.State, Args: r.Main.Args, Autopsy: r.Main.Autopsy, Bundle: r.Bundle, Cgroup: r.Cgroup, Runtime: r.Runtime, Warnings: r.Warnings,
		Confinement: r.Confinement,
	}
	if r.Image != "" {
		i.SnapshotKey, i.Snapshotter = string(r.ID), Snapshotter
	}
	return document(i)
}

// hideValues removes the values of environment variables from a spec.
func hideValues(s *specs.Spec) {
	if s == nil || s.Process == nil {
		return
	}
	for i, e := range s.Process.Env {
		name, _, _ := strings.Cut(e, "=")
		s.Process.Env[i] = name + "="
	}
}

// limit writes into a spec the limits that were updated after the container was
// created. Limits that still have the requested value are not touched, because a
// policy may have changed them in the spec.
func limit(s *specs.Spec, asked, now *v1.LinuxContainerResources) {
	if s == nil || s.Linux == nil || now == nil {
		return
	}
	if s.Linux.Resources == nil {
		s.Linux.Resources = &specs.LinuxResources{}
	}
	r := s.Linux.Resources
	if r.CPU == nil {
		r.CPU = &specs.LinuxCPU{}
	}
	if r.Memory == nil {
		r.Memory = &specs.LinuxMemory{}
	}
	if n := now.GetCpuShares(); n != asked.GetCpuShares() {
		r.CPU.Shares = new(uint64(max(n, 0)))
	}
	if n := now.GetCpuPeriod(); n != asked.GetCpuPeriod() {
		r.CPU.Period = new(uint64(max(n, 0)))
	}
	if n := now.GetCpuQuota(); n != asked.GetCpuQuota() {
		r.CPU.Quota = new(n)
	}
	if t := now.GetCpusetCpus(); t != asked.GetCpusetCpus() {
		r.CPU.Cpus = t
	}
	if t := now.GetCpusetMems(); t != asked.GetCpusetMems() {
		r.CPU.Mems = t
	}
	if n := now.GetMemoryLimitInBytes(); n != asked.GetMemoryLimitInBytes() {
		r.Memory.Limit = new(n)
	}
	if n := now.GetMemorySwapLimitInBytes(); n != asked.GetMemorySwapLimitInBytes() {
		r.Memory.Swap = new(n)
	}
}

// Sandbox holds what a sandbox's document is built from.
type Sandbox struct {
	Record *core.Sandbox
	// Request is the request that created it, with later updates applied.
	Request *v1.RunPodSandboxRequest
	// Containers are the sandbox's containers, oldest first.
	Containers []*core.Container
}

// sandboxInfo is a sandbox's document: containerd's keys, then ours.
type sandboxInfo struct {
	// Pid is a process in the sandbox's namespaces; see Sandbox.pid.
	Pid                int                    `json:"pid"`
	ProcessStatus      string                 `json:"processStatus"`
	NetNamespaceClosed bool                   `json:"netNamespaceClosed"`
	Image              string                 `json:"image"` // always "", there is no pause container
	SnapshotKey        string                 `json:"snapshotKey"`
	Snapshotter        string                 `json:"snapshotter"`
	RuntimeHandler     string                 `json:"runtimeHandler"`
	RuntimeType        string                 `json:"runtimeType"`
	RuntimeOptions     *struct{}              `json:"runtimeOptions"`
	Config             *v1.PodSandboxConfig   `json:"config"`
	RuntimeSpec        *specs.Spec            `json:"runtimeSpec"`
	CNIResult          *cniResult             `json:"cniResult"`
	Metadata           versioned              `json:"sandboxMetadata"`
	Overhead           *v1.ContainerResources `json:"overhead,omitempty"`
	Resources          *v1.ContainerResources `json:"resources,omitempty"`

	Key        core.Key           `json:"key"`
	State      core.SandboxState  `json:"state"`
	Note       string             `json:"note"`
	Network    core.NetworkStatus `json:"network"`
	Namespaces core.Namespaces    `json:"namespaces"`
	Cgroup     core.CgroupRef     `json:"cgroup"`
	Runtime    string             `json:"runtime"`
}

// versioned has the form in which containerd stores a sandbox.
type versioned struct {
	Version  string
	Metadata metadata
}

type metadata struct {
	ID, Name       string
	Config         *v1.PodSandboxConfig
	NetNSPath      string
	IP             string
	AdditionalIPs  []string
	RuntimeHandler string
	CNIResult      *cniResult
}

// cniResult is a sandbox's network configuration in the form of containerd's CNI
// library.
type cniResult struct {
	Interfaces map[string]*cniInterface
	DNS        []cniDNS
	Routes     []struct{}
}

type cniInterface struct {
	IPConfigs []cniIP
	Mac       string
	Sandbox   string // path of the network namespace
}

type cniIP struct{ IP, Gateway string }

type cniDNS struct {
	Nameservers []string `json:"nameservers,omitempty"`
	Search      []string `json:"search,omitempty"`
	Options     []string `json:"options,omitempty"`
}

// Info returns the sandbox's document.
func (s Sandbox) Info() map[string]string {
	r, cfg := s.Record, s.Request.GetConfig()
	i := sandboxInfo{
		Pid: s.pid(), ProcessStatus: "deleted", RuntimeHandler: s.Request.GetRuntimeHandler(), RuntimeType: r.Config.Runtime, Config: cfg,
		RuntimeSpec: s.spec(), CNIResult: s.cni(),
		Key: r.Key, State: r.State, Note: r.Note, Network: r.Network, Namespaces: r.Config.Namespaces, Cgroup: r.Cgroup, Runtime: r.Config.Runtime,
	}
	if r.State == core.SandboxReady {
		i.ProcessStatus = "running"
	} else {
		i.NetNamespaceClosed = r.Config.Namespaces.Net.Mode != core.Host
	}
	if o := cfg.GetLinux().GetOverhead(); o != nil {
		i.Overhead = &v1.ContainerResources{Linux: o}
	}
	if o := cfg.GetLinux().GetResources(); o != nil {
		i.Resources = &v1.ContainerResources{Linux: o}
	}
	i.Metadata = versioned{Version: "v1", Metadata: metadata{
		ID: string(r.ID), Name: string(r.Key), Config: cfg, NetNSPath: r.Config.Namespaces.Net.Path, RuntimeHandler: i.RuntimeHandler, CNIResult: i.CNIResult,
	}}
	if r.State == core.SandboxReady && r.Config.Namespaces.Net.Mode != core.Host {
		for n, a := range r.Network.Addrs {
			if n == 0 {
				i.Metadata.Metadata.IP = a.String()
				continue
			}
			i.Metadata.Metadata.AdditionalIPs = append(i.Metadata.Metadata.AdditionalIPs, a.String())
		}
	}
	return document(i)
}

// pid returns the init of a shared pid namespace. Other sandboxes have no process of
// their own; because scripts use this pid to enter a pod's network namespace, it is
// then the main process of the oldest running container, or 0 if none runs.
func (s Sandbox) pid() int {
	if s.Record.State != core.SandboxReady {
		return 0
	}
	if s.Record.Init != 0 {
		return s.Record.Init
	}
	for _, c := range s.Containers {
		if c.State.Runs() && c.Main.Pid != 0 {
			return c.Main.Pid
		}
	}
	return 0
}

// spec describes the sandbox's namespaces, cgroup and sysctls in the form of an OCI
// spec. It has no process, no root and no mounts.
func (s Sandbox) spec() *specs.Spec {
	r, m := s.Record, s.Request.GetConfig().GetMetadata()
	out := &specs.Spec{
		Version: specs.Version, Hostname: r.Config.Hostname, Domainname: r.Config.Domainname,
		Annotations: map[string]string{
			"io.kubernetes.cri.container-type":        "sandbox",
			"io.kubernetes.cri.sandbox-id":            string(r.ID),
			"io.kubernetes.cri.sandbox-name":          m.GetName(),
			"io.kubernetes.cri.sandbox-namespace":     m.GetNamespace(),
			"io.kubernetes.cri.sandbox-uid":           m.GetUid(),
			"io.kubernetes.cri.sandbox-log-directory": s.Request.GetConfig().GetLogDirectory(),
		},
		Linux: &specs.Linux{
			CgroupsPath: r.Cgroup.Path, Resources: r.Config.Resources, Sysctl: r.Config.Sysctls, UIDMappings: r.Config.UIDs, GIDMappings: r.Config.GIDs,
		},
	}
	n := &r.Config.Namespaces
	for _, of := range []struct {
		kind specs.LinuxNamespaceType
		ns   core.Namespace
	}{{specs.PIDNamespace, n.PID}, {specs.NetworkNamespace, n.Net}, {specs.IPCNamespace, n.IPC}, {specs.UTSNamespace, n.UTS}, {specs.UserNamespace, n.User}} {
		if of.ns.Path != "" && r.State == core.SandboxReady {
			out.Linux.Namespaces = append(out.Linux.Namespaces, specs.LinuxNamespace{Type: of.kind, Path: of.ns.Path})
		}
	}
	return out
}

// cni returns the network configuration, for the builtin network as for CNI; nil for
// a sandbox in the host's network.
func (s Sandbox) cni() *cniResult {
	n, path := &s.Record.Network, s.Record.Config.Namespaces.Net.Path
	if len(n.Interfaces) == 0 && len(n.Addrs) == 0 {
		return nil
	}
	out := &cniResult{Interfaces: map[string]*cniInterface{}, DNS: []cniDNS{{Nameservers: n.DNS.Servers, Search: n.DNS.Searches, Options: n.DNS.Options}}}
	for _, a := range n.Interfaces {
		i := &cniInterface{Mac: a.MAC, Sandbox: path}
		for _, addr := range a.Addrs {
			i.IPConfigs = append(i.IPConfigs, cniIP{addr.Addr().String(), gateway(n.Gateways, addr)})
		}
		out.Interfaces[a.Interface] = i
	}
	return out
}

// gateway returns the gateway in an address's network, "" if there is none.
func gateway(all []netip.Addr, of netip.Prefix) string {
	for _, g := range all {
		if of.Contains(g) {
			return g.String()
		}
	}
	return ""
}

// Image returns an image's document.
func Image(i *core.Image) map[string]string {
	return document(struct {
		ChainID   digest.Digest   `json:"chainID"` // of its layers
		ImageSpec imagespec.Image `json:"imageSpec"`

		Digest   digest.Digest `json:"digest"`
		Pulled   time.Time     `json:"pulled"`
		Unpacked int64         `json:"unpacked"`
	}{identity.ChainID(i.Config.RootFS.DiffIDs), i.Config, i.Digest, i.Pulled, i.Unpacked})
}
