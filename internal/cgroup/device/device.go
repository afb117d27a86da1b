// Package device limits the devices of a v2 cgroup by a BPF program. It is a package of
// its own because the library that makes the program links D-Bus and more, which a
// program that sets no device rules, or runs on cgroup v1, need not link.
//
// It must not know how cgroups are laid out: it gets a directory. Start at Program.
package device

import (
	"github.com/opencontainers/cgroups"
	_ "github.com/opencontainers/cgroups/devices" // fills cgroups.DevicesSetV2
	devices "github.com/opencontainers/cgroups/devices/config"
)

// Program attaches a program with these rules to the v2 cgroup in dir, replacing an
// earlier one. It is for cgroup.Options.DeviceProgram.
func Program(dir string, rules []*devices.Rule) error {
	return cgroups.DevicesSetV2(dir, &cgroups.Resources{Devices: rules})
}
