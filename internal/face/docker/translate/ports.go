package translate

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/invalid"
)

// maxRange bounds the ports of one range.
const maxRange = 2048

// splitPort returns the numbers and the protocol of PORT[-PORT][/PROTOCOL].
func splitPort(p dockertypes.Port) (first, last uint64, proto string, err error) {
	span, proto, found := strings.Cut(string(p), "/")
	if !found {
		proto = "tcp"
	}
	proto = strings.ToLower(proto)
	if first, last, err = spanOf(span); err != nil || !slices.Contains([]string{"tcp", "udp", "sctp"}, proto) {
		return 0, 0, "", invalid.Errorf("invalid port specification: %q", string(p))
	}
	return first, last, proto, nil
}

// spanOf returns the first and the last number of PORT[-PORT].
func spanOf(span string) (first, last uint64, err error) {
	from, to, isRange := strings.Cut(span, "-")
	if !isRange {
		to = from
	}
	first, err = strconv.ParseUint(from, 10, 16)
	if err == nil {
		last, err = strconv.ParseUint(to, 10, 16)
	}
	if err != nil || last < first || last-first > maxRange {
		return 0, 0, invalid.Errorf("invalid port range: %q", span)
	}
	return first, last, nil
}

// fullPort returns a port of a container with its protocol.
func fullPort(p dockertypes.Port) (dockertypes.Port, error) {
	first, last, proto, err := splitPort(p)
	if err != nil || first != last || first == 0 {
		return "", invalid.Errorf("invalid port specification: %q", string(p))
	}
	return dockertypes.Port(strconv.FormatUint(first, 10) + "/" + proto), nil
}

// portRange returns the ports of PORT[-PORT][/PROTOCOL].
func portRange(p dockertypes.Port) (list []dockertypes.Port, err error) {
	first, last, proto, err := splitPort(p)
	for n := first; err == nil && n <= last; n++ {
		list = append(list, dockertypes.Port(strconv.FormatUint(n, 10)+"/"+proto))
	}
	return list, err
}

// published returns the ports to publish.
func (c *Create) published() (list []*longshorev1.Port, err error) {
	for p, bindings := range c.HostConfig.PortBindings {
		n, _, proto, err := splitPort(p)
		if err != nil {
			return nil, err
		}
		for _, b := range bindings {
			one := &longshorev1.Port{Protocol: proto, Container: uint32(n)}
			if b.HostPort != "" {
				first, last, err := spanOf(b.HostPort)
				if err != nil {
					return nil, err
				}
				if one.Host = uint32(first); first != last {
					one.HostLast = uint32(last)
				}
			}
			if b.HostIP != "" {
				ip, err := netip.ParseAddr(b.HostIP)
				if err != nil {
					return nil, invalid.Errorf("invalid IP address: %q", b.HostIP)
				}
				if !ip.IsUnspecified() || ip.Is6() {
					one.HostIp = ip.String()
				}
			}
			list = append(list, one)
		}
	}
	slices.SortFunc(list, func(a, b *longshorev1.Port) int {
		return int(a.GetContainer()) - int(b.GetContainer())
	})
	return list, nil
}
