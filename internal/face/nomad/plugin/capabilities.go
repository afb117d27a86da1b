package plugin

import nomaddriver "github.com/longshore/longshore/api/nomad/driver"

// Capabilities are the driver's with a configuration. Plugin and face answer
// alike.
func Capabilities(c Config) *nomaddriver.CapabilitiesResponse {
	return &nomaddriver.CapabilitiesResponse{Capabilities: &nomaddriver.DriverCapabilities{
		SendSignals: true, Exec: true, FsIsolation: nomaddriver.DriverCapabilities_IMAGE,
		NetworkIsolationModes: []nomaddriver.NetworkIsolationSpec_NetworkIsolationMode{
			nomaddriver.NetworkIsolationSpec_HOST, nomaddriver.NetworkIsolationSpec_GROUP,
		},
		MountConfigs:         nomaddriver.DriverCapabilities_ANY_MOUNTS,
		DisableLogCollection: c.Logs == LogFiles,
		MustCreateNetwork:    c.CreateNetwork,
	}}
}
