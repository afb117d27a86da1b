// Package nativetest has the specs that tests of the native runtime and of its compiler share.
package nativetest

import "github.com/opencontainers/runtime-spec/specs-go"

// Spec returns the spec of a container with namespaces of its own, which runs a program as user 1000.
func Spec(args ...string) *specs.Spec {
	return &specs.Spec{
		Root:     &specs.Root{Path: "rootfs"},
		Hostname: "native",
		Process: &specs.Process{
			Args: args, Cwd: "/", Env: []string{"PATH=/bin"}, NoNewPrivileges: true,
			User:         specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{5, 6}},
			Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_CHOWN", "CAP_KILL"}},
			Rlimits:      []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 100, Hard: 200}},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
			{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.CgroupNamespace},
			},
			MaskedPaths:   []string{"/proc/kcore", "/proc/acpi", "/proc/not/there", "/sys/firmware"},
			ReadonlyPaths: []string{"/proc/sys", "/proc/irq", "/proc/nothing"},
		},
	}
}

// AddNamespace adds a namespace to a spec.
func AddNamespace(s *specs.Spec, ns specs.LinuxNamespace) {
	s.Linux.Namespaces = append(s.Linux.Namespaces, ns)
}

// InUserns gives a spec a user namespace and mappings, and returns it.
func InUserns(s *specs.Spec) *specs.Spec {
	AddNamespace(s, specs.LinuxNamespace{Type: specs.UserNamespace})
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
	s.Linux.UIDMappings, s.Linux.GIDMappings = ids, ids
	return s
}
