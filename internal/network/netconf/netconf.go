// Package netconf is the [network] section of the agent's configuration: its values, their defaults and
// their limits.
package netconf

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/ipam"
	"github.com/longshore/longshore/internal/network/ports"
)

// Mode selects the builtin bridge or CNI plugins.
type Mode string

// The modes.
const (
	ModeBuiltin Mode = "builtin" // our bridge, in-process
	ModeCNI     Mode = "cni"     // CNI plugins
	// ModeAuto is cni when a CNI configuration exists at the agent's first start, and builtin
	// otherwise; the choice is stored and stays.
	ModeAuto Mode = "auto"
)

// The values of NetworkStatus.Mode besides builtin and cni.
const (
	StatusHost = "host"
	StatusNone = "none"
)

// FromKubelet as Config.PodCIDR means that SetRanges sets the ranges; there are none before.
const FromKubelet = "from-kubelet"

// Config is the [network] section.
type Config struct {
	// Mode is builtin, cni or auto; "" is auto.
	Mode Mode `toml:"mode"`
	// Bridge is the name of the builtin bridge; "" is longshore0.
	Bridge string `toml:"bridge"`
	// PodCIDR has the address ranges: CIDRs with commas between them, "from-kubelet", or "" for
	// the first private /16 that no route of the host overlaps, which is chosen once.
	PodCIDR string `toml:"pod_cidr"`
	// IPv6 adds an IPv6 range (a unique local /64, chosen once) when PodCIDR has none.
	IPv6 bool `toml:"ipv6"`
	// MTU is that of the sandboxes' interfaces, in bytes; 0 is that of the default route's link.
	MTU int `toml:"mtu"`
	// Masquerade hides sandboxes behind the host's address.
	Masquerade bool `toml:"masquerade"`
	// NoMasquerade has ranges within which sandboxes are never masqueraded, even if somebody
	// translates the other end's address: the pods of all nodes. The range that kubelet gives is
	// always one.
	NoMasquerade []string `toml:"no_masquerade"`
	// Cluster has ranges that the entry cluster of an egress list means, besides the sandbox's own networks: those of pods and
	// services.
	Cluster []string `toml:"cluster"`
	// HostPorts is the range, such as "61000-65535", of host ports that the builtin network chooses
	// for requests without a host port; "" is the range above net.ipv4.ip_local_port_range, without
	// net.ipv4.ip_local_reserved_ports.
	HostPorts string `toml:"host_ports"`
	// LeaseRest is how long a freed address is not leased again, in seconds.
	LeaseRest int `toml:"lease_rest"`
	// CNI is used in mode cni.
	CNI CNIConfig `toml:"cni"`
	// DNS replaces the settings of the host's resolv.conf, for sandboxes that have none of their
	// own.
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

// Status returns the settings as a sandbox's status has them.
func (d DNSConfig) Status() core.DNS {
	return core.DNS{Servers: d.Servers, Searches: d.Searches, Options: d.Options}
}

// DefaultConfig is the configuration without a file.
func DefaultConfig() Config {
	return Config{
		Mode: ModeAuto, Bridge: "longshore0", Masquerade: true, LeaseRest: 30,
		CNI: CNIConfig{ConfDir: "/etc/cni/net.d", BinDirs: []string{"/opt/cni/bin", "/usr/lib/cni"}},
	}
}

// MaxLink is the length of the longest name of a link in the kernel.
const MaxLink = 15

// MaxName is the length of the longest name of a network.
const MaxName = 128

// Check returns InvalidArgument if a value of c is not valid.
func (c Config) Check() error {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("network: "+format+": %w", append(args, errdefs.ErrInvalidArgument)...)
	}
	if !slices.Contains([]Mode{"", ModeBuiltin, ModeCNI, ModeAuto}, c.Mode) {
		return invalid("mode %q is none of builtin, cni, auto", c.Mode)
	}
	if len(c.Bridge) > MaxLink || strings.ContainsAny(c.Bridge, "/ :\t\n") || c.Bridge == "." || c.Bridge == ".." {
		return invalid("bridge %q is not a link name", c.Bridge)
	}
	if c.MTU < 0 || c.MTU > 0 && c.MTU < 68 || c.MTU > 65535 {
		return invalid("mtu %d is out of range", c.MTU)
	}
	if c.IPv6 && c.MTU > 0 && c.MTU < 1280 {
		return invalid("mtu %d is too small for IPv6", c.MTU)
	}
	if c.HostPorts != "" {
		if _, err := ports.ParsePool(c.HostPorts); err != nil {
			return fmt.Errorf("network: host_ports: %w", err)
		}
	}
	if c.LeaseRest < 0 {
		return invalid("lease_rest %d is negative", c.LeaseRest)
	}
	if _, err := ipam.ParseRanges(c.Ranges()); err != nil {
		return fmt.Errorf("network: pod_cidr: %w", err)
	}
	if _, err := c.PlainNets(nil); err != nil {
		return invalid("no_masquerade: %w", err)
	}
	for _, text := range c.Cluster {
		if _, err := netip.ParsePrefix(text); err != nil {
			return invalid("cluster: %q is not a range", text)
		}
	}
	return nil
}

// Pool returns the host ports to choose from.
func (c Config) Pool() (ports.Pool, error) {
	if c.HostPorts != "" {
		return ports.ParsePool(c.HostPorts)
	}
	return ports.HostPool()
}

// Ranges returns the ranges that the configuration names.
func (c Config) Ranges() []string {
	if c.PodCIDR == "" || c.PodCIDR == FromKubelet {
		return nil
	}
	return strings.Split(c.PodCIDR, ",")
}

// Filled replaces unset values by their defaults.
func (c Config) Filled() Config {
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

// PlainNets returns the ranges within which nothing is masqueraded: those of the configuration,
// and the one that kubelet has given.
func (c Config) PlainNets(given []ipam.Range) ([]netip.Prefix, error) {
	list := slices.Clone(c.NoMasquerade)
	if c.PodCIDR == FromKubelet {
		for _, r := range given {
			list = append(list, r.Prefix.String())
		}
	}
	var nets []netip.Prefix
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("%q is not a range", s)
		}
		p = p.Masked()
		if slices.ContainsFunc(nets, func(n netip.Prefix) bool { return n.Overlaps(p) && n.Bits() <= p.Bits() }) {
			continue
		}
		nets = slices.DeleteFunc(nets, func(n netip.Prefix) bool { return n.Overlaps(p) })
		nets = append(nets, p)
	}
	slices.SortFunc(nets, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return nets, nil
}
