package plugin

import nomaddriver "github.com/longshore/longshore/api/nomad/driver"

// Capabilities are those of the driver of that name, with a configuration. Plugin
// and face answer alike. For exec's tasks Nomad makes the directory that is their
// root, as its chroot_env says.
func Capabilities(name string, c Config) *nomaddriver.CapabilitiesResponse {
	isolation := nomaddriver.DriverCapabilities_IMAGE
	if name == ExecName {
		isolation = nomaddriver.DriverCapabilities_CHROOT
	}
	return &nomaddriver.CapabilitiesResponse{Capabilities: &nomaddriver.DriverCapabilities{
		SendSignals: true, Exec: true, FsIsolation: isolation,
		NetworkIsolationModes: []nomaddriver.NetworkIsolationSpec_NetworkIsolationMode{
			nomaddriver.NetworkIsolationSpec_HOST, nomaddriver.NetworkIsolationSpec_GROUP,
		},
		MountConfigs:         nomaddriver.DriverCapabilities_ANY_MOUNTS,
		DisableLogCollection: c.Logs == LogFiles,
		MustCreateNetwork:    c.CreateNetwork,
	}}
}
