package present

import (
	"strings"
	"time"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/dockertypes"
)

// Network returns the document of inspect for a network: the members of docker's document, and the whole record as
// Record. A network's name is its ID.
func Network(n *longshorev1.Network) Filled {
	doc := &dockertypes.Network{
		Name: n.GetName(), ID: n.GetName(), Created: n.GetCreated().AsTime(), Scope: "local", Driver: "bridge", Internal: n.GetInternal(),
		IPAM: dockertypes.IPAM{Driver: "default", Options: map[string]string{}}, Containers: map[string]dockertypes.EndpointResource{}, Options: map[string]string{},
		Labels: labels(n.GetLabels()),
	}
	bits := map[bool]string{} // the length of the prefix, by whether it is IPv6
	for _, s := range n.GetSubnets() {
		doc.IPAM.Config = append(doc.IPAM.Config, dockertypes.IPAMConfig{Subnet: s.GetRange(), IPRange: s.GetPool(), Gateway: s.GetGateway(), AuxAddress: s.GetReserved()})
		_, length, _ := strings.Cut(s.GetRange(), "/")
		six := strings.Contains(s.GetRange(), ":")
		bits[six] = "/" + length
		doc.EnableIPv4, doc.EnableIPv6 = doc.EnableIPv4 || !six, doc.EnableIPv6 || six
	}
	own := map[string]any{}
	for _, m := range n.GetMembers() {
		e := dockertypes.EndpointResource{Name: m.GetName(), MacAddress: m.GetMac()}
		for _, a := range m.GetAddresses() {
			if strings.Contains(a, ":") {
				e.IPv6Address = a + bits[true]
			} else {
				e.IPv4Address = a + bits[false]
			}
		}
		doc.Containers[m.GetContainer()] = e
		own[m.GetContainer()] = map[string]any{"Addresses": m.GetAddresses(), "Aliases": m.GetAliases()}
	}
	return filled(doc, map[string]any{"Containers": own, "Record": Plain(n)})
}

// Volume returns the document of inspect for a volume, in the same way.
func Volume(v *longshorev1.Volume) Filled {
	doc := &dockertypes.Volume{
		Name: v.GetName(), Driver: "local", Scope: "local", Mountpoint: v.GetPath(), Labels: v.GetLabels(), Options: v.GetOptions(),
		CreatedAt: v.GetCreated().AsTime().Format(time.RFC3339),
	}
	return filled(doc, map[string]any{"Record": Plain(v)})
}

// labels returns m, or an empty map for nil: docker's JSON has {} there.
func labels(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}
