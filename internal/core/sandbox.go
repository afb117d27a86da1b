package core

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// SandboxState is a step in a sandbox's life; NextSandbox says which may follow.
type SandboxState string

// The states of a sandbox, in their order.
const (
	SandboxCreating SandboxState = "creating"
	SandboxReady    SandboxState = "ready"
	SandboxStopped  SandboxState = "stopped"
)

// NamespaceMode is the kind of owner of a namespace.
type NamespaceMode string

// The zero NamespaceMode is PerContainer.
const (
	PerContainer NamespaceMode = ""       // every container has its own
	Shared       NamespaceMode = "shared" // the sandbox has one, which is pinned until the sandbox stops
	Host         NamespaceMode = "host"   // the host's
	Adopted      NamespaceMode = "adopted"
	Joined       NamespaceMode = "joined" // the one that another container has when the sandbox becomes ready; network, ipc and pid
)

// Namespace is one namespace of a sandbox. For an Adopted one, which the engine uses and never
// destroys, Path names it. For a Shared or Joined one, Path is the pinned file once the sandbox is
// ready.
type Namespace struct {
	Mode NamespaceMode `json:"mode,omitempty"`
	Path string        `json:"path,omitempty"`
	// Container is the holder of a Joined one. If that container has joined another one itself, the
	// engine puts the other one here. Holder is the holder's sandbox; the engine sets it.
	Container ID `json:"container,omitempty"`
	Holder    ID `json:"holder,omitempty"`
}

// Namespaces are a sandbox's namespaces. The mount namespace is always the
// container's own; Time is PerContainer only when a spec asks for one.
type Namespaces struct {
	Net    Namespace `json:"net"`
	IPC    Namespace `json:"ipc"`
	UTS    Namespace `json:"uts"`
	PID    Namespace `json:"pid"`
	User   Namespace `json:"user"`
	Cgroup Namespace `json:"cgroup"`
}

// Joinable returns the namespaces that can be Joined.
func (n *Namespaces) Joinable() map[specs.LinuxNamespaceType]*Namespace {
	return map[specs.LinuxNamespaceType]*Namespace{specs.NetworkNamespace: &n.Net, specs.IPCNamespace: &n.IPC, specs.PIDNamespace: &n.PID}
}

// Joined returns those that are Joined.
func (n *Namespaces) Joined() map[specs.LinuxNamespaceType]*Namespace {
	list := n.Joinable()
	maps.DeleteFunc(list, func(_ specs.LinuxNamespaceType, one *Namespace) bool { return one.Mode != Joined })
	return list
}

// Holders returns the containers that hold the Joined ones, sorted.
func (n *Namespaces) Holders() (list []ID) {
	for _, one := range n.Joined() {
		list = append(list, one.Container)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// SandboxConfig is a face's request for a sandbox. The zero value of every field but Key is a
// usable default.
type SandboxConfig struct {
	Key        Key                    `json:"-"`
	Labels     map[string]string      `json:"-"`
	Data       []byte                 `json:"-"`
	Runtime    string                 `json:"runtime,omitempty"` // handler name; "" is the agent's default
	Hostname   string                 `json:"hostname,omitempty"`
	Domainname string                 `json:"domainname,omitempty"`
	Namespaces Namespaces             `json:"namespaces"`
	UIDs       []specs.LinuxIDMapping `json:"uids,omitempty"` // a user namespace, when not empty and User is Shared or PerContainer
	GIDs       []specs.LinuxIDMapping `json:"gids,omitempty"`
	Users      Users                  `json:"users,omitzero"` // completes UIDs and GIDs
	Network    NetworkConfig          `json:"network"`
	Cgroup     Cgroup                 `json:"cgroup"`
	Resources  *specs.LinuxResources  `json:"resources,omitempty"`   // of the sandbox's own cgroup; nil leaves it unlimited
	Sysctls    map[string]string      `json:"sysctls,omitempty"`     // set in the Shared namespaces
	ShmBytes   int64                  `json:"shm_bytes,omitempty"`   // size of the shared /dev/shm; 0 is 64 MiB
	SELinux    *SELinux               `json:"selinux,omitempty"`     // asks for labels; LabelTable completes FileLabel. nil: none
	FileLabel  string                 `json:"file_label,omitempty"`  // the SELinux label of the files that its containers share
	SleepAfter time.Duration          `json:"sleep_after,omitempty"` // of its containers that have no value of their own
	Durable    bool                   `json:"durable,omitempty"`     // its record outlives a boot; its containers are durable too
}

// Needs returns the containers that must run before those of the sandbox are started: the holders of its
// Joined namespaces, and those of its links.
func (c *SandboxConfig) Needs() []ID {
	list := c.Namespaces.Holders()
	for _, l := range c.Network.Links {
		list = append(list, l.Container)
	}
	return list
}

// Cgroup says where the cgroup of a sandbox or container is: below Parent (a cgroupfs path, or
// systemd's slice:prefix:name), or the existing directories in Adopt. When both are empty the
// engine chooses.
type Cgroup struct {
	Parent string `json:"parent,omitempty"`
	// Adopt maps a v1 controller, or "" for the v2 tree, to the absolute path of a directory that
	// someone else made. The engine joins and limits adopted cgroups and never removes them.
	Adopt map[string]string `json:"adopt,omitempty"`
}

// CgroupRef names the cgroups of an object. Path is relative to the root of each controller's
// hierarchy. Adopted overrides it for single controllers with absolute paths.
type CgroupRef struct {
	Path    string            `json:"path,omitempty"`
	Adopted map[string]string `json:"adopted,omitempty"`
}

// DelegatedSuffix ends the path of a delegated cgroup.
const DelegatedSuffix = ".delegated"

// Delegated reports whether the processes may make and remove cgroups. On v2 they are in a cgroup
// below this one, which has all limits and which they cannot reach. On v1 they write to systemd's
// own hierarchy only, which has no limits.
func (r CgroupRef) Delegated() bool {
	return len(r.Adopted) == 0 && strings.HasSuffix(r.Path, DelegatedSuffix)
}

// IsZero reports whether r names no cgroup at all.
func (r CgroupRef) IsZero() bool { return r.Path == "" && len(r.Adopted) == 0 }

// Sandbox is a set of shared namespaces, a network identity and a parent cgroup.
type Sandbox struct {
	Meta
	Config  SandboxConfig `json:"config"`
	State   SandboxState  `json:"state"`
	Network NetworkStatus `json:"network"`
	Cgroup  CgroupRef     `json:"cgroup"`
	// Dir is the sandbox's private directory with resolv.conf, hosts, hostname and shm.
	Dir string `json:"dir,omitempty"`
	// Init is the pid of the tiny init that holds a Shared pid namespace; 0
	// when there is none.
	Init int `json:"init,omitempty"`
	// AnyRuntime says that Config.Runtime was chosen by the node: another runtime may run a
	// container if that one lacks a feature.
	AnyRuntime bool `json:"anyRuntime,omitempty"`
	// Pair says that the sandbox was created together with its one container and is useless without
	// it. Recovery removes a pair if its container was never completed or no longer exists.
	Pair bool `json:"pair,omitempty"`
	// Note says why a sandbox stopped when nobody asked for it.
	Note string `json:"note,omitempty"`
	// Renewing says that a stopped sandbox is getting namespaces and network again. Recovery
	// takes them back when a crash has interrupted that.
	Renewing bool `json:"renewing,omitempty"`
	// Trace says where the time of its creation went.
	Trace Trace `json:"trace,omitempty"`
}

// NetworkRequest names the sandbox to a Network.
func (s *Sandbox) NetworkRequest() NetworkRequest {
	return NetworkRequest{
		Sandbox: s.ID, Owner: s.Owner, Namespace: s.Config.Namespaces.Net.Path, Config: s.Config.Network, Labels: s.Labels, Last: s.Network,
	}
}

// HostIDs returns the host's ids for uid and gid inside the sandbox's user namespace. Without a
// user namespace they are the same.
func (c *SandboxConfig) HostIDs(uid, gid uint32) (hostUID, hostGID uint32) {
	return hostID(c.UIDs, uid), hostID(c.GIDs, gid)
}

func hostID(maps []specs.LinuxIDMapping, id uint32) uint32 {
	for _, m := range maps {
		if id >= m.ContainerID && id-m.ContainerID < m.Size {
			return m.HostID + id - m.ContainerID
		}
	}
	return id
}

// Joiner gives sandboxes their namespaces, and those of other sandboxes' containers: Joined ones.
type Joiner interface {
	// Resolve completes the Joined namespaces of a new sandbox with the records of their holders. A
	// holder that has joined another container's namespace is replaced by that container, and one with
	// the host's namespace by the host. The host name is that of the network's holder. InvalidArgument
	// if a namespace cannot be joined; NotFound.
	Resolve(owner Owner, cfg *SandboxConfig) error
	// Pin pins the namespaces of a sandbox: those of req, and the Joined ones. At its creation the
	// holders may be created ones; later they must run. Unavailable for a holder that does not run;
	// FailedPrecondition for one that is gone. The caller unpins after an error.
	Pin(ctx context.Context, sb *Sandbox, req PinRequest) error
	// Stop records that a ready sandbox with Joined namespaces has stopped, because its container is to
	// be started again: the holders may have other namespaces now. It returns other sandboxes as they are.
	Stop(sb Sandbox) (Sandbox, error)
	// Held reports whether a sandbox that has not stopped uses the network or the IPC namespace of
	// another one.
	Held(holder ID) (bool, error)
	// Shown returns a sandbox as its files in /etc show it: with the network that it has joined, and the
	// addresses of its links in Hosts.
	Shown(sb Sandbox) (Sandbox, error)
}
