package runflags

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// addNetworks adds the networks of --network to a request. --ip, --mac-address and --network-alias
// apply to the first.
func addNetworks(r *longshorev1.CreateRequest, list []string) error {
	for i, text := range list {
		n, err := parseNetwork(text)
		if err != nil {
			return fmt.Errorf("--network %q: %w", text, err)
		}
		if i > 0 {
			r.FurtherNetworks = append(r.GetFurtherNetworks(), n)
			continue
		}
		r.Network = n.GetNetwork()
		r.NetworkAliases = append(n.GetAliases(), r.GetNetworkAliases()...)
		if n.GetMac() != "" {
			r.Mac = n.GetMac()
		}
		switch {
		case len(n.GetAddresses()) > 2 || n.GetInterface() != "":
			return fmt.Errorf("--network %q: the first network takes an address of each family and the interface eth0; use network connect for others", text)
		case len(n.GetAddresses()) == 2:
			r.Ip, r.Ip6 = n.GetAddresses()[0], n.GetAddresses()[1]
		case len(n.GetAddresses()) == 1:
			r.Ip = n.GetAddresses()[0]
		}
	}
	return nil
}

// CheckIP6 refuses another address than one of IPv6 for the flag or key ip6.
func CheckIP6(key, value string) error {
	if ip, err := netip.ParseAddr(value); key == "ip6" && (err != nil || ip.Unmap().Is4()) {
		return fmt.Errorf("%s %q is not an IPv6 address", key, value)
	}
	return nil
}

// parseNetwork parses a name, docker's form name=NET,alias=NAME,ip=ADDRESS, or podman's form
// NET:alias=NAME,ip=ADDRESS.
func parseNetwork(text string) (*longshorev1.NetworkAttachment, error) {
	n := &longshorev1.NetworkAttachment{}
	switch kind, name, _ := strings.Cut(text, ":"); {
	case kind == "ns":
		return nil, errors.New("a namespace without a container cannot be joined: put both programs on one network")
	case kind == "container" && name != "":
		n.Network = text
		return n, nil
	case kind == "container":
		return nil, errors.New("the container's name is missing, as in container:NAME")
	}
	if name, options, ok := strings.Cut(text, ":"); ok && !strings.ContainsAny(name, "=,") {
		text = "name=" + name + "," + options
	}
	if !strings.Contains(text, "=") {
		n.Network = text
		return n, nil
	}
	for _, part := range strings.Split(text, ",") {
		key, value, ok := strings.Cut(part, "=")
		if !ok || value == "" {
			return nil, fmt.Errorf("%q is not KEY=value", part)
		}
		switch key {
		case "name":
			n.Network = value
		case "alias":
			n.Aliases = append(n.Aliases, value)
		case "ip", "ip6":
			if err := CheckIP6(key, value); err != nil {
				return nil, err
			}
			n.Addresses = append(n.Addresses, value)
		case "mac-address", "mac":
			n.Mac = value
		case "interface", "interface_name":
			n.Interface = value
		default:
			return nil, fmt.Errorf("%s is not supported: use name, alias, ip, ip6, mac-address or interface", key)
		}
	}
	if n.GetNetwork() == "" {
		return nil, fmt.Errorf("name= is missing")
	}
	return n, nil
}
