package translate

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
)

// toPorts checks the ports that are to be published.
func toPorts(ports []*longshorev1.Port) ([]core.Port, error) {
	var out []core.Port
	for _, p := range ports {
		q := core.Port{Proto: p.GetProtocol(), Host: uint16(p.GetHost()), HostLast: uint16(p.GetHostLast()), Container: uint16(p.GetContainer())}
		switch p.GetProtocol() {
		case "":
			q.Proto = "tcp"
		case "tcp", "udp", "sctp":
		default:
			return nil, invalid.Errorf("port protocol %q is none of tcp, udp, sctp", p.GetProtocol())
		}
		if n := p.GetContainer(); n < 1 || n > 65535 {
			return nil, invalid.Errorf("port %d is not between 1 and 65535", n)
		}
		if n := p.GetHost(); n > 65535 {
			return nil, invalid.Errorf("host port %d is not between 1 and 65535, or 0 to choose one", n)
		}
		if n := p.GetHostLast(); n > 65535 || n != 0 && (p.GetHost() == 0 || n < p.GetHost()) {
			return nil, invalid.Errorf("host ports %d to %d are no range of ports between 1 and 65535", p.GetHost(), n)
		}
		if p.GetHostIp() != "" {
			ip, err := netip.ParseAddr(p.GetHostIp())
			if err != nil {
				return nil, invalid.Errorf("host address %q: %v", p.GetHostIp(), err)
			}
			q.HostIP = ip
		}
		out = append(out, q)
	}
	return out, nil
}

// maxAliases bounds the further names of a container on a network.
const maxAliases = 64

// address puts the request's own address and names on its network into cfg.
func address(cfg *core.SandboxConfig, req *longshorev1.CreateRequest) error {
	if req.GetIp() == "" && req.GetIp6() == "" && req.GetMac() == "" && len(req.GetNetworkAliases()) == 0 {
		return nil
	}
	if !ownNetwork(req) {
		return invalid.Errorf("an address or an alias cannot be combined with network %s", req.GetNetwork())
	}
	if ip, err := netip.ParseAddr(req.GetIp6()); req.GetIp6() != "" && (err != nil || ip.Unmap().Is4()) {
		return invalid.Errorf("%q is not an IPv6 address", req.GetIp6())
	}
	first := &longshorev1.NetworkAttachment{Network: cfg.Network.Name, Mac: req.GetMac(), Aliases: req.GetNetworkAliases()}
	for _, ip := range []string{req.GetIp(), req.GetIp6()} {
		if ip != "" {
			first.Addresses = append(first.Addresses, ip)
		}
	}
	a, err := Attachment(first)
	if cfg.Network.Name == "" { // as the default network is named everywhere else
		a.Network = ""
	}
	cfg.Network.Attach = []core.Attachment{a}
	return err
}

// maxFurther bounds the networks of a container besides its first.
const maxFurther = 32

// further puts the networks besides the first into cfg.
func further(cfg *core.SandboxConfig, req *longshorev1.CreateRequest) error {
	list := req.GetFurtherNetworks()
	if len(list) == 0 {
		return nil
	}
	if !ownNetwork(req) {
		return invalid.Errorf("another network cannot be combined with network %s", req.GetNetwork())
	}
	if len(list) > maxFurther {
		return invalid.Errorf("%d networks, at most %d", len(list)+1, maxFurther+1)
	}
	for _, n := range list {
		a, err := Attachment(n)
		if err != nil {
			return err
		}
		if cfg.Network.On(a.Network) >= 0 {
			return invalid.Errorf("network %s is named twice", a.Network)
		}
		cfg.Network = cfg.Network.With(a)
	}
	return nil
}

// Attachment returns the place of a container on a network: its address, MAC address, interface and aliases there.
func Attachment(n *longshorev1.NetworkAttachment) (core.Attachment, error) {
	a := core.Attachment{Network: NetworkName(n.GetNetwork()), Interface: n.GetInterface(), MAC: n.GetMac(), Names: n.GetAliases()}
	if a.Network == core.NetworkNone || a.Network == "host" {
		return a, invalid.Errorf("network %s cannot be one of several", a.Network)
	}
	if len(a.Names) > maxAliases {
		return a, invalid.Errorf("%d aliases, at most %d", len(a.Names), maxAliases)
	}
	for _, n := range a.Names {
		if !core.IsName(n, "_.-", maxHostName) {
			return a, invalid.Errorf("alias %q is not a name: letters, digits and _.-", n)
		}
	}
	if len(a.Names) > 0 && a.Network == core.NetworkDefault {
		return a, invalid.Errorf("an alias needs a network that was made by network create: the default one has no name server")
	}
	for _, s := range n.GetAddresses() {
		ip, err := netip.ParseAddr(s)
		if err != nil {
			return a, invalid.Errorf("address %q: %v", s, err)
		}
		if slices.ContainsFunc(a.Addrs, func(p netip.Prefix) bool { return p.Addr().Is4() == ip.Unmap().Is4() }) {
			return a, invalid.Errorf("address %s: a network takes one address of each family", s)
		}
		a.Addrs = append(a.Addrs, netip.PrefixFrom(ip.Unmap(), ip.Unmap().BitLen()))
	}
	return a, nil
}

// NetworkName returns the name of a network in records: the default network has several names in requests.
func NetworkName(name string) string {
	if name == "" || name == BridgeNetwork {
		return core.NetworkDefault
	}
	return name
}

// BridgeNetwork is the name of the default network in other tools.
const BridgeNetwork = "bridge"

// maxHostName is the length of the longest name in a DNS question.
const maxHostName = 253

// hostLines returns the request's lines of /etc/hosts: names by their addresses.
func hostLines(req *longshorev1.CreateRequest) (map[string][]string, error) {
	lines := map[string][]string{}
	for _, h := range req.GetHosts() {
		name, addr, ok := strings.Cut(h, ":")
		if !ok || name == "" || strings.ContainsAny(name, " \t\n#") {
			return nil, invalid.Errorf("host %q is not NAME:ADDRESS", h)
		}
		if addr == core.HostGateway && ownNetwork(req) {
			lines[addr] = append(lines[addr], name)
			continue
		}
		ip, err := netip.ParseAddr(strings.Trim(addr, "[]"))
		if err != nil {
			return nil, invalid.Errorf("host %q: %v", h, err)
		}
		lines[ip.String()] = append(lines[ip.String()], name)
	}
	return lines, nil
}

// checkLinks refuses links that are not NAME[:ALIAS], or that a container without a network of its own cannot have.
func checkLinks(req *longshorev1.CreateRequest) error {
	list := req.GetLinks()
	if len(list) > maxAliases {
		return invalid.Errorf("%d links, at most %d", len(list), maxAliases)
	}
	if len(list) > 0 && !ownNetwork(req) {
		return invalid.Errorf("a link cannot be combined with network %s", req.GetNetwork())
	}
	for _, l := range list {
		name, alias, ok := strings.Cut(l, ":")
		if name == "" || ok && !core.IsName(alias, "_.-", maxHostName) {
			return invalid.Errorf("link %q is not NAME or NAME:ALIAS, where the alias is a name: letters, digits and _.-", l)
		}
	}
	return nil
}

// Exposed returns the ports that the image and the request expose and that are not among the published ones. They have no
// host ports yet.
func Exposed(img *imagespec.ImageConfig, req *longshorev1.CreateRequest, published []core.Port) ([]core.Port, error) {
	var list []core.Port
	for _, e := range append(slices.Sorted(maps.Keys(img.ExposedPorts)), req.GetExpose()...) {
		span, proto, _ := strings.Cut(e, "/")
		first, last, isSpan := strings.Cut(span, "-")
		if !isSpan {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err != nil || err2 != nil || from == 0 || to < from {
			return nil, invalid.Errorf("port %q is not PORT[-PORT][/PROTOCOL]", e)
		}
		for n := from; n <= to; n++ {
			more, err := toPorts([]*longshorev1.Port{{Protocol: proto, Container: uint32(n)}})
			if err != nil {
				return nil, err
			}
			same := func(p core.Port) bool { return p.Proto == more[0].Proto && p.Container == more[0].Container }
			if !slices.ContainsFunc(published, same) && !slices.ContainsFunc(list, same) {
				list = append(list, more[0])
			}
		}
	}
	if len(list) > maxChosenPorts {
		return nil, invalid.Errorf("%d ports need a chosen host port, at most %d", len(list), maxChosenPorts)
	}
	return list, nil
}

// maxChosenPorts bounds how many ports of the host publish_all takes.
const maxChosenPorts = 256
