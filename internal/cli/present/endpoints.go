package present

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"

	"github.com/longshore/longshore/internal/dockertypes"
)

// AnyAddress stands for every address of the host.
const AnyAddress = "0.0.0.0"

// bridgeNetwork is docker's name of the default network, and defaultNetwork the engine's.
const (
	bridgeNetwork  = "bridge"
	defaultNetwork = "default"
)

// network returns the network of a container. Addresses and ports vanish when it has ended, as in docker.
func network(o object) *dockertypes.NetworkSettings {
	n := &dockertypes.NetworkSettings{Networks: map[string]*dockertypes.Endpoint{}}
	n.Ports = dockertypes.PortMap{}
	if len(o.texts("network", "addrs")) > 0 || len(o.objects("network", "ports")) > 0 {
		n.SandboxID = o.text("sandbox")
		running := o.text("state") == "running" || o.text("state") == "paused" || o.text("state") == "asleep"
		for p := range config(o, nil).ExposedPorts {
			if running {
				n.Ports[p] = nil
			}
		}
		for _, p := range o.objects("network", "ports") {
			n.Ports[portOf(p)] = append(n.Ports[portOf(p)], dockertypes.PortBinding{
				HostIP: cmp.Or(p.text("host_ip"), AnyAddress), HostPort: strconv.FormatInt(p.number("host"), 10),
			})
		}
	}
	n.SandboxKey = o.text("network", "namespace")
	for _, e := range o.objects("network", "networks") {
		name := e.text("name")
		if name == defaultNetwork {
			name = bridgeNetwork
		}
		n.Networks[name] = endpoint(o, name, e)
	}
	if len(n.Networks) == 0 { // the node's network, none, or one of CNI
		if name := cmp.Or(o.text("network", "name"), o.text("network", "mode")); name != "" && !strings.HasPrefix(name, "container:") {
			n.Networks[name] = endpoint(o, name, object{"addrs": o.at("network", "addrs"), "gateways": o.at("network", "gateways"), "mac": o.at("network", "mac")})
			n.DefaultNetworkSettings = defaultSettings(n.Networks[name])
		}
	}
	if e := n.Networks[bridgeNetwork]; e != nil {
		n.DefaultNetworkSettings = defaultSettings(e)
	}
	return n
}

// defaultSettings repeats an endpoint's addresses, as docker does for the default network.
func defaultSettings(e *dockertypes.Endpoint) dockertypes.DefaultNetworkSettings {
	return dockertypes.DefaultNetworkSettings{
		EndpointID: e.EndpointID, Gateway: e.Gateway, GlobalIPv6Address: e.GlobalIPv6Address, GlobalIPv6PrefixLen: e.GlobalIPv6PrefixLen,
		IPAddress: e.IPAddress, IPPrefixLen: e.IPPrefixLen, IPv6Gateway: e.IPv6Gateway, MacAddress: e.MacAddress,
	}
}

// endpoint returns a container's place on a network. A network's name is its ID.
func endpoint(container object, name string, o object) *dockertypes.Endpoint {
	e := &dockertypes.Endpoint{NetworkID: name, MacAddress: o.text("mac"), Aliases: o.texts("aliases")}
	for _, s := range o.texts("addrs") {
		addr, bits := s, 0
		if p, err := netip.ParsePrefix(s); err == nil {
			addr, bits = p.Addr().String(), p.Bits()
		}
		if strings.Contains(addr, ":") {
			e.GlobalIPv6Address, e.GlobalIPv6PrefixLen = addr, bits
		} else {
			e.IPAddress, e.IPPrefixLen = addr, bits
		}
	}
	for _, g := range o.texts("gateways") {
		if strings.Contains(g, ":") {
			e.IPv6Gateway = g
		} else {
			e.Gateway = g
		}
	}
	for _, s := range o.texts("requested") {
		if e.IPAMConfig == nil {
			e.IPAMConfig = &dockertypes.EndpointIPAM{}
		}
		if addr, _, _ := strings.Cut(s, "/"); strings.Contains(addr, ":") {
			e.IPAMConfig.IPv6Address = addr
		} else {
			e.IPAMConfig.IPv4Address = addr
		}
	}
	if name != bridgeNetwork && o.has("name") { // the network has a name server
		e.DNSNames = append(append([]string{container.text("name")}, e.Aliases...), shortID(container.text("id")))
	}
	return e
}

// shortID returns the beginning of an ID, which people type.
func shortID(id string) string { return id[:min(len(id), 12)] }
