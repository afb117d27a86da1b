package ocispec

import (
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// ShowNodeSys puts the node's /sys, read-only, in the place of one of the container's own. Only root of the user namespace that owns
// its network namespace may mount that.
func ShowNodeSys(s *specs.Spec) {
	for i, m := range s.Mounts {
		if m.Type == "sysfs" {
			s.Mounts[i] = specs.Mount{Destination: m.Destination, Type: "bind", Source: "/sys", Options: []string{"rbind", "rprivate", "nosuid", "noexec", "nodev", "ro"}}
		}
	}
}

// UserNeeds returns the needs of a container with this spec that may call for the node's ids. Mounts that map their owners are
// none.
func UserNeeds(s *specs.Spec) (n core.UserNeeds) {
	if s.Process != nil && s.Process.Capabilities != nil {
		n.Caps = s.Process.Capabilities.Bounding
	}
	if s.Linux != nil {
		n.Devices = s.Linux.Devices
	}
	for _, m := range s.Mounts {
		o := ParseMountOptions(m.Options)
		if (m.Type == "bind" || o.Flags&unix.MS_BIND != 0) && len(m.UIDMappings) == 0 && m.Source != "" {
			n.Paths = append(n.Paths, m.Source)
		}
	}
	return n
}
