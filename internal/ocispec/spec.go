package ocispec

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// New is an unprivileged container without command, user and the request's settings: usual mounts,
// masked paths, capabilities, devices. The engine fills in root, namespaces, version and cgroup
// path.
func New() *specs.Spec {
	caps := DefaultCapabilities()
	score := 0
	return &specs.Spec{
		Process: &specs.Process{
			Cwd: "/", NoNewPrivileges: true, OOMScoreAdj: &score,
			Capabilities: CapabilitySets(caps),
		},
		Mounts: DefaultMounts(false),
		Linux: &specs.Linux{
			Resources:     &specs.LinuxResources{Devices: DefaultDeviceRules()},
			MaskedPaths:   MaskedPaths(),
			ReadonlyPaths: ReadonlyPaths(),
		},
	}
}

// Privileged takes every wall but the namespaces down: all capabilities of this
// node, all devices, /sys writable, nothing masked, no filter. Devices that s has at other paths stay there.
func Privileged(s *specs.Spec, n Node, devices []specs.LinuxDevice) {
	s.Process.NoNewPrivileges = false
	s.Process.Capabilities = CapabilitySets(n.Capabilities)
	s.Process.ApparmorProfile, s.Process.SelinuxLabel = "", ""
	s.Mounts = writableSys(s.Mounts)
	s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = nil, nil
	s.Linux.Seccomp, s.Linux.MountLabel = nil, ""
	named := slices.DeleteFunc(slices.Clone(s.Linux.Devices), func(d specs.LinuxDevice) bool {
		return slices.ContainsFunc(devices, func(o specs.LinuxDevice) bool { return o.Path == d.Path })
	})
	s.Linux.Devices = slices.Concat(devices, named)
	if s.Linux.Resources == nil {
		s.Linux.Resources = &specs.LinuxResources{}
	}
	s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
}

func writableSys(mounts []specs.Mount) []specs.Mount {
	out := slices.Clone(mounts)
	for i, m := range out {
		if m.Type == "sysfs" || m.Type == "cgroup" {
			out[i].Options = slices.Clone(m.Options)
			for j, o := range out[i].Options {
				if o == "ro" {
					out[i].Options[j] = "rw"
				}
			}
		}
	}
	return out
}

// DefaultMounts are those every container has, parents first.
func DefaultMounts(writable bool) []specs.Mount {
	mode := "ro"
	if writable {
		mode = "rw"
	}
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", mode}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", mode}},
	}
}

// MaskedPaths are hidden from an unprivileged container.
func MaskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware",
	}
}

// ReadonlyPaths can be read and not written by an unprivileged container.
func ReadonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

// AddMount puts m in the place of a mount with the same target, if there is one
// of those every container has, or after those it lies below.
func AddMount(mounts []specs.Mount, m specs.Mount) []specs.Mount {
	out := slices.DeleteFunc(slices.Clone(mounts), func(o specs.Mount) bool { return o.Destination == m.Destination })
	return append(out, m)
}
