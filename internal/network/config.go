package network

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/network/ipam"
)

// Mode says who gives sandboxes their interfaces.
type Mode string

// The modes.
const (
	ModeBuiltin Mode = "builtin" // our bridge, in-process
	ModeCNI     Mode = "cni"     // CNI plugins
	// ModeAuto is cni when a CNI configuration is there at the agent's first
	// start, else builtin; the answer is stored and stays.
	ModeAuto Mode = "auto"
)

// Words of NetworkStatus.Mode beside builtin and cni.
const (
	statusHost = "host"
	statusNone = "none"
)

// FromKubelet as Config.PodCIDR: there is no range until SetRanges gives one.
const FromKubelet = "from-kubelet"

// Config is the [network] section.
type Config struct {
	// Mode is builtin, cni or auto; "" is auto.
	Mode Mode `toml:"mode"`
	// Bridge is the name of the builtin bridge; "" is longshore0.
	Bridge string `toml:"bridge"`
	// PodCIDR is where addresses come from: CIDRs with commas between them,
	// "from-kubelet", or "" for the first private /16 that no route of the host
	// overlaps, chosen once.
	PodCIDR string `toml:"pod_cidr"`
	// IPv6 adds an IPv6 range (a unique local /64, chosen once) when PodCIDR
	// names none.
	IPv6 bool `toml:"ipv6"`
	// MTU of the sandboxes' interfaces, bytes; 0 is that of the default
	// route's link.
	MTU int `toml:"mtu"`
	// Masquerade hides sandboxes behind the host's address.
	Masquerade bool `toml:"masquerade"`
	// NoMasquerade are ranges within which sandboxes are never hidden, whoever
	// translates the other end's address: the pods of all nodes. The range that
	// kubelet gives is always one.
	NoMasquerade []string `toml:"no_masquerade"`
	// LeaseRest is how long a freed address is not given away again, seconds.
	LeaseRest int `toml:"lease_rest"`
	// CNI is used in mode cni.
	CNI CNIConfig `toml:"cni"`
	// DNS replaces what the host's resolv.conf says, for sandboxes that ask
	// for nothing.
	DNS DNSConfig `toml:"dns"`
}

// CNIConfig is the [network.cni] section.
type CNIConfig struct {
	ConfDir string   `toml:"conf_dir"` // "" is /etc/cni/net.d
	BinDirs []string `toml:"bin_dirs"` // empty is /opt/cni/bin and /usr/lib/cni
}

// DNSConfig is the [network.dns] section.
type DNSConfig struct {
	Servers  []string `toml:"servers"`
	Searches []string `toml:"searches"`
	Options  []string `toml:"options"`
}

// DefaultConfig is what holds when a configuration file says nothing.
func DefaultConfig() Config {
	return Config{
		Mode: ModeAuto, Bridge: "longshore0", Masquerade: true, LeaseRest: 30,
		CNI: CNIConfig{ConfDir: "/etc/cni/net.d", BinDirs: []string{"/opt/cni/bin", "/usr/lib/cni"}},
	}
}

// maxBridge leaves the kernel's 15 bytes for a link's name.
const maxBridge = 15

// Check says what is wrong with c; errors are InvalidArgument.
func (c Config) Check() error {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("network: "+format+": %w", append(args, errdefs.ErrInvalidArgument)...)
	}
	if !slices.Contains([]Mode{"", ModeBuiltin, ModeCNI, ModeAuto}, c.Mode) {
		return invalid("mode %q is none of builtin, cni, auto", c.Mode)
	}
	if len(c.Bridge) > maxBridge || strings.ContainsAny(c.Bridge, "/ :\t\n") || c.Bridge == "." || c.Bridge == ".." {
		return invalid("bridge %q is no link name", c.Bridge)
	}
	if c.MTU < 0 || c.MTU > 0 && c.MTU < 68 || c.MTU > 65535 {
		return invalid("mtu %d is out of range", c.MTU)
	}
	if c.IPv6 && c.MTU > 0 && c.MTU < 1280 {
		return invalid("mtu %d is too small for IPv6", c.MTU)
	}
	if c.LeaseRest < 0 {
		return invalid("lease_rest %d is negative", c.LeaseRest)
	}
	if _, err := ipam.ParseRanges(c.cidrs()); err != nil {
		return fmt.Errorf("network: pod_cidr: %w", err)
	}
	if _, err := c.plainNets(nil); err != nil {
		return invalid("no_masquerade: %w", err)
	}
	return nil
}

// cidrs are the ranges that the configuration itself names.
func (c Config) cidrs() []string {
	if c.PodCIDR == "" || c.PodCIDR == FromKubelet {
		return nil
	}
	return strings.Split(c.PodCIDR, ",")
}

// filled replaces what is not set.
func (c Config) filled() Config {
	d := DefaultConfig()
	if c.Mode == "" {
		c.Mode = d.Mode
	}
	if c.Bridge == "" {
		c.Bridge = d.Bridge
	}
	if c.CNI.ConfDir == "" {
		c.CNI.ConfDir = d.CNI.ConfDir
	}
	if len(c.CNI.BinDirs) == 0 {
		c.CNI.BinDirs = d.CNI.BinDirs
	}
	return c
}
