// Package owned writes the engine's own fields of an OCI spec: version, root, namespaces, cgroup,
// the sandbox's files and shared memory, volumes, and the tiny init. It touches no file. Start at
// Apply.
package owned

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/weaken"
)

// The paths of the tiny init: sandboxInit in its own container, containerInit in others, below
// /dev, which is a tmpfs in any usual spec, so that the container's layer is not changed. The last
// part tells a program with other kinds of init to be this one.
const (
	sandboxInit   = "/.init"
	containerInit = "/dev/.init"

	// initMode is the argument that makes the keeper's binary an init.
	initMode = "init"
)

// ShmDir is the subdirectory of a sandbox's directory that holds its shared memory.
const ShmDir = "shm"

// Spec has the engine's own fields of a container's spec: version, root, namespaces, cgroup, the
// sandbox's files and shared memory, volumes and the tiny init.
type Spec struct {
	Sandbox *core.Sandbox
	Config  *core.ContainerConfig
	Version string // the ociVersion to write
	Cgroup  core.CgroupRef
	Init    string // the path of the binary that holds the init
	// Join has the paths of namespaces taken from siblings.
	Join map[specs.LinuxNamespaceType]string
	// Files are the files of package etc that are bound read-only from the directory Etc.
	Files   []string
	Etc     string
	Volumes []specs.Mount
}

// Pinned returns the namespaces that the pinner holds. A shared pid namespace is held by its init
// instead, and a shared cgroup namespace has nothing to share.
func Pinned(ns *core.Namespaces) map[specs.LinuxNamespaceType]*core.Namespace {
	all := map[specs.LinuxNamespaceType]*core.Namespace{
		specs.NetworkNamespace: &ns.Net, specs.IPCNamespace: &ns.IPC, specs.UTSNamespace: &ns.UTS, specs.UserNamespace: &ns.User, specs.PIDNamespace: &ns.PID,
	}
	maps.DeleteFunc(all, func(kind specs.LinuxNamespaceType, n *core.Namespace) bool {
		return n.Mode != core.Joined && (n.Mode != core.Shared || kind == specs.PIDNamespace)
	})
	return all
}

// Released reports whether a stopped sandbox has given back all that it held.
func Released(sb *core.Sandbox) bool {
	for _, ns := range Pinned(&sb.Config.Namespaces) {
		if ns.Path != "" {
			return false
		}
	}
	return sb.Init == 0 && !sb.Renewing
}

// Ranges returns the mappings of a user namespace as ranges of ids.
func Ranges(maps []specs.LinuxIDMapping) (r []core.IDRange) {
	for _, m := range maps {
		r = append(r, core.IDRange{Container: m.ContainerID, Host: m.HostID, Size: m.Size})
	}
	return r
}

// RootMounts returns the mounts of a root that is not an image's.
func RootMounts(root core.Root) []core.Mount {
	if root.Dir == "" {
		return root.Mounts
	}
	options := []string{"rbind"}
	if root.Below != "" {
		options = append(options, ocispec.BelowOption(root.Below))
	}
	return []core.Mount{{Type: "bind", Source: root.Dir, Options: options}}
}

// Labelled returns mounts that give all files the SELinux label, as far as they are file systems of the
// container's own. "" is no label.
func Labelled(mounts []core.Mount, label string) []core.Mount {
	if label == "" {
		return mounts
	}
	mounts = slices.Clone(mounts)
	for i, m := range mounts {
		if m.Type == "overlay" || m.Type == "tmpfs" {
			mounts[i].Options = append(slices.Clone(m.Options), "context="+label)
		}
	}
	return mounts
}

// Init returns the whole spec of the container that is a sandbox's tiny init.
func Init(sb *core.Sandbox, program, version string, cg core.CgroupRef) *specs.Spec {
	ns := []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}}
	shared := Pinned(&sb.Config.Namespaces)
	for _, kind := range []specs.LinuxNamespaceType{specs.UserNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace} {
		if n := shared[kind]; n != nil {
			ns = append(ns, specs.LinuxNamespace{Type: kind, Path: n.Path})
		}
	}
	linux := &specs.Linux{Namespaces: ns, CgroupsPath: cg.Path}
	if shared[specs.UserNamespace] != nil {
		linux.UIDMappings, linux.GIDMappings = sb.Config.UIDs, sb.Config.GIDs // as for containers
	}
	return &specs.Spec{
		Version: version,
		Root:    &specs.Root{Path: "rootfs", Readonly: true},
		Process: &specs.Process{Args: []string{sandboxInit, initMode}, Cwd: "/", NoNewPrivileges: true, Capabilities: &specs.LinuxCapabilities{}},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			// Runtimes create the usual devices here.
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "mode=755", "size=64k"}},
			{Destination: sandboxInit, Type: "bind", Source: program, Options: []string{"bind", "ro", "nosuid", "nodev"}},
		},
		Linux: linux,
	}
}

// Apply overwrites the engine's own fields in s.
func Apply(s *specs.Spec, in Spec) {
	s.Version = in.Version
	s.Root = &specs.Root{Path: "rootfs", Readonly: in.Config.Root.ReadOnly}
	if s.Linux == nil {
		s.Linux = &specs.Linux{}
	}
	s.Linux.CgroupsPath = in.Cgroup.Path
	setNamespaces(s, in)
	addMounts(s, in)
	if in.Config.Init && s.Process != nil && len(s.Process.Args) > 0 {
		s.Process.Args = append([]string{containerInit, initMode}, s.Process.Args...)
		s.Mounts = append(s.Mounts, specs.Mount{Destination: containerInit, Type: "bind", Source: in.Init, Options: []string{"bind", "ro", "nosuid", "nodev"}})
	}
}

// setNamespaces fills the list of namespaces: the sandbox's, a sibling's, or the container's own.
// A time namespace is left as the spec has it.
func setNamespaces(s *specs.Spec, in Spec) {
	ns := in.Sandbox.Config.Namespaces
	list := []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	for _, old := range s.Linux.Namespaces {
		if old.Type == specs.TimeNamespace {
			list = append(list, old)
		}
	}
	s.Linux.UIDMappings, s.Linux.GIDMappings = nil, nil
	for _, n := range []struct {
		kind specs.LinuxNamespaceType
		ns   core.Namespace
	}{
		{specs.UserNamespace, ns.User},
		{specs.NetworkNamespace, ns.Net},
		{specs.IPCNamespace, ns.IPC},
		{specs.UTSNamespace, ns.UTS},
		{specs.PIDNamespace, ns.PID},
		{specs.CgroupNamespace, ns.Cgroup},
	} {
		if path, ok := in.Join[n.kind]; ok {
			list = append(list, specs.LinuxNamespace{Type: n.kind, Path: path})
			continue
		}
		if slices.Contains(in.Config.Own, n.kind) {
			list = append(list, specs.LinuxNamespace{Type: n.kind})
			continue
		}
		if n.kind == specs.CgroupNamespace && in.Config.HostCgroups {
			continue
		}
		switch n.ns.Mode {
		case core.Host:
			continue
		case core.Shared, core.Adopted, core.Joined:
			if n.kind == specs.UserNamespace {
				// Some runtimes need the mappings of a namespace that they join.
				s.Linux.UIDMappings, s.Linux.GIDMappings = in.Sandbox.Config.UIDs, in.Sandbox.Config.GIDs
			}
			if n.kind != specs.CgroupNamespace || n.ns.Path != "" {
				list = append(list, specs.LinuxNamespace{Type: n.kind, Path: n.ns.Path})
				continue
			}
		case core.PerContainer:
		}
		if n.kind == specs.UserNamespace {
			if len(in.Sandbox.Config.UIDs) == 0 {
				continue
			}
			s.Linux.UIDMappings, s.Linux.GIDMappings = in.Sandbox.Config.UIDs, in.Sandbox.Config.GIDs
		}
		list = append(list, specs.LinuxNamespace{Type: n.kind})
	}
	s.Linux.Namespaces = list
	setHostname(s, in)
}

// setHostname sets the hostname, which is only allowed in a UTS namespace of the container's own.
func setHostname(s *specs.Spec, in Spec) {
	own := slices.Contains(in.Config.Own, specs.UTSNamespace) || in.Sandbox.Config.Namespaces.UTS.Mode == core.PerContainer
	if in.Join[specs.UTSNamespace] != "" || !own {
		s.Hostname, s.Domainname = "", ""
		return
	}
	if s.Hostname == "" {
		s.Hostname = in.Sandbox.Config.Hostname
	}
	if s.Domainname == "" {
		s.Domainname = in.Sandbox.Config.Domainname
	}
}

// Check returns an error for namespaces that a container cannot have of its own.
func Check(own []specs.LinuxNamespaceType, join []core.Join) error {
	for i, kind := range own {
		switch kind {
		case specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.PIDNamespace, specs.CgroupNamespace:
		default:
			return fmt.Errorf("own namespaces: a container cannot have a %s namespace of its own in a sandbox: %w", kind, errdefs.ErrInvalidArgument)
		}
		if slices.Contains(own[:i], kind) || slices.ContainsFunc(join, func(j core.Join) bool { return j.Namespace == kind }) {
			return fmt.Errorf("own namespaces: the %s namespace is named twice, or joined as well: %w", kind, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// NamespaceFile returns a namespace's name below /proc/PID/ns; "" when there is none.
func NamespaceFile(kind specs.LinuxNamespaceType) string {
	switch kind {
	case specs.NetworkNamespace:
		return "net"
	case specs.MountNamespace:
		return "mnt"
	case specs.PIDNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.UserNamespace, specs.CgroupNamespace, specs.TimeNamespace:
		return string(kind)
	default:
		return ""
	}
}

// MountTaken reports whether the spec itself has a mount at dest.
func MountTaken(mounts []specs.Mount, dest string) bool {
	return slices.ContainsFunc(mounts, func(m specs.Mount) bool { return filepath.Clean(m.Destination) == dest })
}

// addMounts adds the sandbox's files, its shared memory and the volumes, where the spec has no
// mount of its own.
func addMounts(s *specs.Spec, in Spec) {
	taken := func(dest string) bool { return MountTaken(s.Mounts, dest) }
	mode := "ro"
	if weaken.Off(weaken.SharedEtc) && !in.Config.Root.ReadOnly {
		mode = "rw"
	}
	for _, name := range in.Files {
		s.Mounts = append(s.Mounts, specs.Mount{
			Destination: "/etc/" + name, Type: "bind", Source: filepath.Join(in.Etc, name), Options: []string{"bind", "rprivate", "nosuid", "nodev", "noexec", mode},
		})
	}
	shm, own := "", slices.Contains(in.Config.Own, specs.IPCNamespace)
	switch mode := in.Sandbox.Config.Namespaces.IPC.Mode; {
	case own || mode == core.PerContainer || mode == core.Adopted:
	case mode == core.Shared:
		shm = filepath.Join(in.Sandbox.Dir, ShmDir)
	case mode == core.Joined:
		shm = filepath.Join(filepath.Dir(in.Sandbox.Dir), string(in.Sandbox.Config.Namespaces.IPC.Holder), ShmDir)
	case mode == core.Host:
		shm = "/dev/shm"
	}
	if shm != "" {
		const dest = "/dev/shm"
		// A tmpfs at /dev/shm is the spec's default for a private one; any other mount is the
		// caller's and stays.
		s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == dest && m.Type == "tmpfs" })
		if !taken(dest) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: dest, Type: "bind", Source: shm, Options: []string{"rbind", "rprivate", "nosuid", "nodev", "noexec"}})
		}
	}
	for _, v := range in.Volumes {
		s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return filepath.Clean(m.Destination) == filepath.Clean(v.Destination) })
		s.Mounts = append(s.Mounts, v)
	}
}

// Identity returns the identity of a container's program.
func Identity(c *core.Container) core.Identity {
	id := c.Config.Identity
	id.Owner = c.Owner
	return id
}

// HostIDs returns the user and group of a process as the host sees them.
func HostIDs(sb *core.Sandbox, p *specs.Process) (uid, gid uint32) {
	if p == nil {
		return 0, 0
	}
	return sb.Config.HostIDs(p.User.UID, p.User.GID)
}
