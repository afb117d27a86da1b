package view

import (
	"slices"
	"testing"

	"github.com/longshore/longshore/internal/core"
)

// TestNetworksHaveTheNamesOfOtherTools checks the names for every combination of mode and configuration.
func TestNetworksHaveTheNamesOfOtherTools(t *testing.T) {
	shared, host := core.Namespaces{}, core.Namespaces{}
	shared.Net.Mode, host.Net.Mode = core.Shared, core.Host
	for _, c := range []struct {
		mode   string
		ns     core.Namespaces
		config core.NetworkConfig
		want   []string
	}{
		{"", shared, core.NetworkConfig{}, nil},
		{"builtin", shared, core.NetworkConfig{}, []string{"bridge"}},
		{"builtin", shared, core.NetworkConfig{Name: "n"}, []string{"n"}},
		{"builtin", shared, core.NetworkConfig{Name: "n", Attach: []core.Attachment{{}, {Network: "default"}}}, []string{"n", "bridge"}},
		{"none", shared, core.NetworkConfig{Name: "none"}, []string{"none"}},
		{"host", host, core.NetworkConfig{}, []string{"host"}},
		{"cni", shared, core.NetworkConfig{}, []string{"cni"}},
		{"cni", shared, core.NetworkConfig{Name: "n"}, []string{"n"}},
	} {
		sb := core.Sandbox{Network: core.NetworkStatus{Mode: c.mode}, Config: core.SandboxConfig{Network: c.config}}
		sb.Config.Namespaces = c.ns
		if got := networkNames(sb); !slices.Equal(got, c.want) {
			t.Errorf("%s %+v: %q, want %q", c.mode, c.config, got, c.want)
		}
	}
}
