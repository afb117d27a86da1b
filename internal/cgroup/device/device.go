// Package device limits the devices of a v2 cgroup by a BPF program. It is a package
// of its own because the library that makes the program links D-Bus and more, which
// a program without containers' device rules, or on cgroup v1, can do without.
//
// It must not know how cgroups are laid out: it is handed a directory. Start at
// Program.
package device

import (
	"github.com/opencontainers/cgroups"
	_ "github.com/opencontainers/cgroups/devices" // fills cgroups.DevicesSetV2
	devices "github.com/opencontainers/cgroups/devices/config"
)

// Program attaches a program of rules to the v2 cgroup in dir, in place of an
// earlier one. It is for cgroup.Options.DeviceProgram.
func Program(dir string, rules []*devices.Rule) error {
	return cgroups.DevicesSetV2(dir, &cgroups.Resources{Devices: rules})
}
