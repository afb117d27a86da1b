package translate

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// The modes of a task's network.
const (
	netHost   = "host"
	netGroup  = "group" // the namespace that Nomad has made for the group
	netNone   = "none"
	netBridge = "bridge" // our own bridge, with the ports that the task names
	netTask   = "task"   // that of another task
)

// network returns the task's network. One that publishes ports and is in no group's network gets
// our bridge; jobs for docker's driver expect that of every task.
func (a Task) network() string {
	group := a.Nomad.GetNetworkIsolationSpec().GetPath() != ""
	switch mode := a.Conf.Network; {
	case strings.HasPrefix(mode, "task:"):
		return netTask
	case mode != "":
		return mode
	case group:
		return netGroup
	case len(a.Conf.Ports) > 0 || len(a.Conf.PortMap) > 0 || a.Session.Name == plugin.DockerName:
		return netBridge
	}
	return netHost
}

// Sibling is the task that shares its network with this one; "" for none.
func (a Task) Sibling() string {
	name, _ := strings.CutPrefix(a.Conf.Network, "task:")
	if a.network() != netTask {
		return ""
	}
	return name
}

// Sandbox is the task as the engine's sandbox.
func (a Task) Sandbox() (core.SandboxConfig, error) {
	cfg := core.SandboxConfig{Key: core.Key(a.Nomad.GetId()), Labels: a.Labels(), Runtime: a.Conf.Runtime, Hostname: a.hostname()}
	if named := a.Conf.Security.SELinux; len(named) > 0 || !a.Conf.Privileged && !a.Conf.HostIPC && !a.Conf.HostPID {
		var err error
		if cfg.SELinux, err = ocispec.ParseSELinux(named); err != nil {
			return cfg, fmt.Errorf("config.security_opt: %w", err)
		}
	}
	cfg.Network.Egress = a.Conf.Egress
	cfg.Namespaces.UTS.Mode = core.Shared
	// A task sees which of Nomad's cgroups it is in, as with Nomad's own drivers.
	cfg.Namespaces.Cgroup.Mode = core.Host
	if a.Conf.OwnCgroups {
		cfg.Namespaces.Cgroup.Mode = core.PerContainer
	}
	mode := a.network()
	switch mode {
	case netHost:
		cfg.Namespaces.Net.Mode = core.Host
	case netGroup:
		cfg.Namespaces.Net = core.Namespace{Mode: core.Adopted, Path: a.Nomad.GetNetworkIsolationSpec().GetPath()}
	case netTask:
		cfg.Namespaces.Net = core.Namespace{Mode: core.Adopted, Path: a.Join}
	case netNone:
		cfg.Namespaces.Net.Mode, cfg.Network.Name = core.Shared, core.NetworkNone
	case netBridge:
		cfg.Namespaces.Net.Mode = core.Shared
	}
	if a.Conf.Users {
		pool := a.Session.Users
		cfg.Users = core.Users{Own: true, First: pool.First, Ranges: uint32(pool.Ranges)}
	}
	if a.Conf.HostUTS || mode == netHost && a.Conf.Hostname == "" {
		cfg.Namespaces.UTS.Mode, cfg.Hostname = core.Host, ""
	}
	if a.Conf.HostIPC {
		cfg.Namespaces.IPC.Mode = core.Host
	}
	if a.Conf.HostPID {
		cfg.Namespaces.PID.Mode = core.Host
	}
	var err error
	switch {
	case len(a.Conf.Addrs) == 0:
	case mode != netBridge:
		return cfg, invalid.Errorf("config.%s: only a task on our bridge gets an address, and this one's network is %s: use network_mode = \"bridge\", or a CNI network of the group that gives it",
			map[bool]string{true: "ipv4_address", false: "ipv6_address"}[a.Conf.Addrs[0].Is4()], mode)
	default:
		attach := core.Attachment{Interface: "eth0"}
		for _, addr := range a.Conf.Addrs {
			attach.Addrs = append(attach.Addrs, netip.PrefixFrom(addr, addr.BitLen()))
		}
		cfg.Network.Attach = []core.Attachment{attach}
	}
	if mode == netBridge {
		if cfg.Network.Ports, err = a.ports(); err != nil {
			return cfg, err
		}
	} else if len(a.Conf.Ports) > 0 && mode != netGroup {
		return cfg, invalid.Errorf("config.ports: a task with network %s publishes no ports", mode)
	}
	cfg.Network.DNS = a.dns()
	cfg.Network.Hosts, err = a.hosts()
	return cfg, err
}

// maxHostname is the kernel's.
const maxHostname = 64

// hostname is the task's own, the group's, or the task's name.
func (a Task) hostname() string {
	for _, h := range []string{a.Conf.Hostname, a.Nomad.GetNetworkIsolationSpec().GetHostsConfig().GetHostname()} {
		if h != "" {
			return h
		}
	}
	h := strings.Map(func(r rune) rune {
		if r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '-'
	}, a.Nomad.GetName())
	return strings.Trim(h[:min(len(h), maxHostname)], "-")
}

// ShortName reports whether the hostname is the container's short ID, as docker's driver has it. Otherwise
// a task that names none has its own name.
func (a Task) ShortName() bool {
	return a.Session.Name == plugin.DockerName && a.Conf.Hostname == "" && a.Nomad.GetNetworkIsolationSpec().GetHostsConfig().GetHostname() == "" &&
		!a.Conf.HostUTS && a.network() != netHost
}

func (a Task) dns() core.DNS {
	d, c := a.Nomad.GetDns(), a.Conf.DNS
	or := func(own, nomads []string) []string {
		if len(own) > 0 {
			return own
		}
		return nomads
	}
	return core.DNS{Servers: or(c.Servers, d.GetServers()), Searches: or(c.Searches, d.GetSearches()), Options: or(c.Options, d.GetOptions())}
}

func (a Task) hosts() (map[string][]string, error) {
	hosts := map[string][]string{}
	if h := a.Nomad.GetNetworkIsolationSpec().GetHostsConfig(); h.GetHostname() != "" && h.GetAddress() != "" && a.network() == netGroup {
		hosts[h.GetAddress()] = append(hosts[h.GetAddress()], h.GetHostname())
	}
	for _, e := range a.Conf.ExtraHosts {
		name, addr, ok := strings.Cut(e, ":")
		addr = strings.Trim(addr, "[]")
		_, err := netip.ParseAddr(addr)
		if !ok || name == "" || err != nil && addr != core.HostGateway {
			return nil, invalid.Errorf("config.extra_hosts %q is not NAME:ADDRESS", e)
		}
		if addr == core.HostGateway {
			if addr = a.gateway(); addr == "" {
				continue // Read has warned
			}
		}
		hosts[addr] = append(hosts[addr], name)
	}
	if len(hosts) == 0 {
		return nil, nil //nolint:nilnil // none
	}
	return hosts, nil
}

// gateway returns the address in the hosts file at which the task reaches the node: the bridge's, or
// a loopback address on the node's own network. In the network of a group or of another task it is the
// address of the group's gateway, which only Nomad's CNI knows, so the task has none.
func (a Task) gateway() string {
	switch a.network() {
	case netBridge:
		return core.HostGateway
	case netHost:
		return "127.0.0.1"
	}
	return ""
}

// ports are those of the node that Nomad gave to the labels which the task names,
// for tcp and udp alike, as jobs do not say which.
func (a Task) ports() ([]core.Port, error) {
	var list []core.Port
	if len(a.Conf.Ports) == 0 || len(a.Nomad.GetResources().GetPorts()) == 0 && len(a.taskNetworks()) > 0 {
		return a.taskPorts()
	}
	for _, label := range a.Conf.Ports {
		i := slices.IndexFunc(a.Nomad.GetResources().GetPorts(), func(p *nomaddriver.PortMapping) bool { return p.GetLabel() == label })
		if i < 0 {
			return nil, invalid.Errorf("config.ports: the group's network has no port %q", label)
		}
		p := a.Nomad.GetResources().GetPorts()[i]
		to := p.GetTo()
		if to <= 0 {
			to = p.GetValue()
		}
		both, err := published(label, p.GetHostIp(), p.GetValue(), to)
		if err != nil {
			return nil, err
		}
		list = append(list, both...)
	}
	return list, nil
}

// taskNetworks are those of the block network in the task's own resources.
func (a Task) taskNetworks() []*nomaddriver.NetworkResource {
	return a.Nomad.GetResources().GetAllocatedResources().GetNetworks()
}

// taskPorts returns the ports of the network that the task's own resources ask for, the way before Nomad
// 0.12. As docker's driver does, it publishes all of them, to the ports that port_map names.
func (a Task) taskPorts() ([]core.Port, error) {
	networks := a.taskNetworks()
	if len(networks) == 0 {
		return nil, nil
	}
	var list []core.Port
	for _, p := range slices.Concat(networks[0].GetReservedPorts(), networks[0].GetDynamicPorts()) {
		to := p.GetValue()
		if n, ok := a.Conf.PortMap[p.GetLabel()]; ok {
			to = int32(n)
		}
		both, err := published(p.GetLabel(), networks[0].GetIp(), p.GetValue(), to)
		if err != nil {
			return nil, err
		}
		list = append(list, both...)
	}
	return list, nil
}

// published is a port of the node for tcp and udp.
func published(label, ip string, value, to int32) ([]core.Port, error) {
	if value < 1 || value > 65535 || to > 65535 {
		return nil, invalid.Errorf("port %q is %d to %d", label, value, to)
	}
	var addr netip.Addr
	if ip != "" {
		var err error
		if addr, err = netip.ParseAddr(ip); err != nil {
			return nil, invalid.Errorf("port %q: %v", label, err)
		}
	}
	var list []core.Port
	for _, proto := range []string{"tcp", "udp"} {
		list = append(list, core.Port{Proto: proto, HostIP: addr, Host: uint16(value), Container: uint16(to)})
	}
	return list, nil
}

// Override is the address of a task on our bridge for services with address_mode = driver; nil for
// others.
func Override(t *nomaddriver.TaskConfig, sb core.Sandbox) *nomaddriver.NetworkOverride {
	if sb.Config.Namespaces.Net.Mode != core.Shared || len(sb.Network.Addrs) == 0 {
		return nil
	}
	o := &nomaddriver.NetworkOverride{Addr: sb.Network.Addrs[0].String(), PortMap: map[string]int32{}}
	labels := map[string]int32{}
	for _, p := range t.GetResources().GetPorts() {
		labels[p.GetLabel()] = p.GetValue()
	}
	for _, n := range t.GetResources().GetAllocatedResources().GetNetworks() {
		for _, p := range slices.Concat(n.GetReservedPorts(), n.GetDynamicPorts()) {
			labels[p.GetLabel()] = p.GetValue()
		}
	}
	for label, value := range labels {
		for _, q := range sb.Config.Network.Ports {
			if int32(q.Host) == value {
				o.PortMap[label] = int32(q.Container)
			}
		}
	}
	return o
}

// NamespaceOf is the path of a running task's network namespace; "" is the
// host's.
func NamespaceOf(sb core.Sandbox) string {
	ns := sb.Config.Namespaces.Net
	if ns.Mode == core.Host {
		return ""
	}
	if _, err := os.Stat(ns.Path); err != nil {
		return ""
	}
	return ns.Path
}
