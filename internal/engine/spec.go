package engine

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// Where the tiny init lies inside: below /dev, which is a tmpfs in any usual
// spec, so that the container's own layer stays as it was.
const (
	sandboxInit   = "/init"
	containerInit = "/dev/.init"

	// initMode is what makes the small binary an init.
	initMode = "init"
)

// version is the ociVersion to write for a runtime.
func (e *Engine) version(ctx context.Context, rt core.Runtime) string {
	f, err := e.featuresOf(ctx, rt)
	if err != nil || f.OCIVersionMax == "" {
		return specs.Version
	}
	return f.OCIVersionMax
}

// featuresOf asks a runtime once.
func (e *Engine) featuresOf(ctx context.Context, rt core.Runtime) (core.RuntimeFeatures, error) {
	if f, ok := e.features.Load(rt.Name()); ok {
		return f.(core.RuntimeFeatures), nil //nolint:forcetypeassert // stored below
	}
	f, err := rt.Features(ctx)
	if err == nil {
		e.features.Store(rt.Name(), f)
	}
	return f, err
}

// initSpec is the whole container of a sandbox's tiny init.
func initSpec(sb *core.Sandbox, program, version string, cg core.CgroupRef) *specs.Spec {
	ns := []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}}
	shared := sharedKinds(&sb.Config.Namespaces)
	for _, kind := range []specs.LinuxNamespaceType{specs.UserNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace} {
		if n := shared[kind]; n != nil {
			ns = append(ns, specs.LinuxNamespace{Type: kind, Path: n.Path})
		}
	}
	return &specs.Spec{
		Version: version,
		Root:    &specs.Root{Path: "rootfs", Readonly: true},
		Process: &specs.Process{Args: []string{sandboxInit, initMode}, Cwd: "/", NoNewPrivileges: true, Capabilities: &specs.LinuxCapabilities{}},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			// Runtimes want to make the usual devices.
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "mode=755", "size=64k"}},
			{Destination: sandboxInit, Type: "bind", Source: program, Options: []string{"bind", "ro", "nosuid", "nodev"}},
		},
		Linux: &specs.Linux{Namespaces: ns, CgroupsPath: cg.Path},
	}
}

// own overwrites what the engine owns in a container's spec.
func (b *build) own(ctx context.Context) error {
	s := b.spec
	s.Version = b.e.version(ctx, b.rt)
	s.Root = &specs.Root{Path: "rootfs", Readonly: b.cfg.Root.ReadOnly}
	if s.Linux == nil {
		s.Linux = &specs.Linux{}
	}
	s.Linux.CgroupsPath = b.c.Cgroup.Path
	if err := b.namespaces(); err != nil {
		return err
	}
	b.mounts()
	if b.cfg.Init {
		if s.Process == nil || len(s.Process.Args) == 0 {
			return nil // the runtime says what is missing
		}
		s.Process.Args = append([]string{containerInit, initMode}, s.Process.Args...)
		s.Mounts = append(s.Mounts, specs.Mount{Destination: containerInit, Type: "bind", Source: b.e.o.Init, Options: []string{"bind", "ro", "nosuid", "nodev"}})
	}
	return nil
}

// namespaces fills the list: the sandbox's, a sibling's, or its own. A time
// namespace stays as the spec has it.
func (b *build) namespaces() error {
	ns := b.sb.Config.Namespaces
	list := []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	for _, old := range b.spec.Linux.Namespaces {
		if old.Type == specs.TimeNamespace {
			list = append(list, old)
		}
	}
	join := map[specs.LinuxNamespaceType]string{}
	for _, j := range b.cfg.Join {
		path, err := b.joinPath(j)
		if err != nil {
			return err
		}
		join[j.Namespace] = path
	}
	b.spec.Linux.UIDMappings, b.spec.Linux.GIDMappings = nil, nil
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
		if path, ok := join[n.kind]; ok {
			list = append(list, specs.LinuxNamespace{Type: n.kind, Path: path})
			continue
		}
		switch n.ns.Mode {
		case core.Host:
			continue
		case core.Shared, core.Adopted:
			if n.kind != specs.CgroupNamespace || n.ns.Path != "" {
				list = append(list, specs.LinuxNamespace{Type: n.kind, Path: n.ns.Path})
				continue
			}
		case core.PerContainer:
		}
		if n.kind == specs.UserNamespace {
			if len(b.sb.Config.UIDs) == 0 {
				continue
			}
			b.spec.Linux.UIDMappings, b.spec.Linux.GIDMappings = b.sb.Config.UIDs, b.sb.Config.GIDs
		}
		list = append(list, specs.LinuxNamespace{Type: n.kind})
	}
	b.spec.Linux.Namespaces = list
	b.hostname(join[specs.UTSNamespace] != "")
	return nil
}

// hostname may only be set in a UTS namespace of the container's own.
func (b *build) hostname(joined bool) {
	if joined || b.sb.Config.Namespaces.UTS.Mode != core.PerContainer {
		b.spec.Hostname, b.spec.Domainname = "", ""
		return
	}
	if b.spec.Hostname == "" {
		b.spec.Hostname = b.sb.Config.Hostname
	}
	if b.spec.Domainname == "" {
		b.spec.Domainname = b.sb.Config.Domainname
	}
}

var namespaceFile = map[specs.LinuxNamespaceType]string{ //nolint:gochecknoglobals // constant
	specs.PIDNamespace: "pid", specs.NetworkNamespace: "net", specs.IPCNamespace: "ipc", specs.UTSNamespace: "uts",
	specs.UserNamespace: "user", specs.CgroupNamespace: "cgroup", specs.MountNamespace: "mnt", specs.TimeNamespace: "time",
}

// mounts adds the sandbox's files and shared memory and the volumes, wherever
// the spec has nothing of its own.
func (b *build) mounts() {
	s := b.spec
	taken := func(dest string) bool {
		return slices.ContainsFunc(s.Mounts, func(m specs.Mount) bool { return filepath.Clean(m.Destination) == dest })
	}
	mode := "rw"
	if b.cfg.Root.ReadOnly {
		mode = "ro"
	}
	for _, name := range []string{fileResolv, fileHosts, fileHostname} {
		if dest := "/etc/" + name; b.hasFile(name) && !taken(dest) {
			s.Mounts = append(s.Mounts, specs.Mount{
				Destination: dest, Type: "bind", Source: filepath.Join(b.sb.Dir, name), Options: []string{"bind", "rprivate", "nosuid", "nodev", "noexec", mode},
			})
		}
	}
	shm := ""
	switch b.sb.Config.Namespaces.IPC.Mode {
	case core.Shared:
		shm = filepath.Join(b.sb.Dir, "shm")
	case core.Host:
		shm = "/dev/shm"
	case core.PerContainer, core.Adopted:
	}
	if shm != "" {
		const dest = "/dev/shm"
		// A tmpfs there is the spec's default, made for a private one;
		// anything else is somebody's wish.
		s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == dest && m.Type == "tmpfs" })
		if !taken(dest) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: dest, Type: "bind", Source: shm, Options: []string{"rbind", "rprivate", "nosuid", "nodev", "noexec"}})
		}
	}
	for _, v := range b.volumes {
		s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return filepath.Clean(m.Destination) == filepath.Clean(v.Destination) })
		s.Mounts = append(s.Mounts, v)
	}
}

// hostIDs are the user and group of the main process as the host sees them.
func hostIDs(sb *core.Sandbox, p *specs.Process) (uid, gid uint32) {
	if p == nil {
		return 0, 0
	}
	return mapped(sb.Config.UIDs, p.User.UID), mapped(sb.Config.GIDs, p.User.GID)
}

func mapped(maps []specs.LinuxIDMapping, id uint32) uint32 {
	for _, m := range maps {
		if id >= m.ContainerID && id-m.ContainerID < m.Size {
			return m.HostID + id - m.ContainerID
		}
	}
	return id
}

// joinPath names a namespace of a sibling.
func (b *build) joinPath(j core.Join) (string, error) {
	sib, err := b.e.container(j.Container)
	if err != nil {
		return "", fmt.Errorf("join %s namespace: %w", j.Namespace, err)
	}
	file := namespaceFile[j.Namespace]
	if sib.Sandbox != b.sb.ID || file == "" || sib.Main.Pid == 0 {
		return "", fmt.Errorf("join %s namespace of container %s, which is %s: %w", j.Namespace, j.Container, sib.State, errJoin)
	}
	return fmt.Sprintf("/proc/%d/ns/%s", sib.Main.Pid, file), nil
}
