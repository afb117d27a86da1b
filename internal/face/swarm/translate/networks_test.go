package translate

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
)

// overlay is an attachment to an overlay network as managers give it. An option without a value is taken away.
func overlay(name string, change ...func(*swarmv1.NetworkAttachment)) *swarmv1.NetworkAttachment {
	n := network(name, "overlay")
	n.Network.Id = "id-of-" + name
	n.Network.DriverState.Options = map[string]string{optionVNIs: "4097"}
	n.Network.Ipam = &swarmv1.IPAMOptions{Configs: []*swarmv1.IPAMConfig{{Subnet: "10.0.1.0/24", Gateway: "10.0.1.1"}}}
	n.Addresses = []string{"10.0.1.9/24"}
	for _, fn := range change {
		fn(n)
	}
	return n
}

func option(name, value string) func(*swarmv1.NetworkAttachment) {
	return func(n *swarmv1.NetworkAttachment) { n.Network.DriverState.Options[name] = value }
}

func ofIngress(n *swarmv1.NetworkAttachment) {
	n.Network.Spec.Ingress = true
	n.Network.DriverState.Options[optionVNIs] = "4096"
	n.Network.Ipam.Configs[0] = &swarmv1.IPAMConfig{Subnet: "10.0.0.0/24", Gateway: "10.0.0.1"}
	n.Addresses = []string{"10.0.0.9/24"}
}

func internal(n *swarmv1.NetworkAttachment) { n.Network.Spec.Internal = true }

// TestOverlayNetworks: the network of published ports comes first, with these ports, the way out last; an
// internal network has none.
func TestOverlayNetworks(t *testing.T) {
	asked := task(func(t *swarmv1.Task, _ *swarmv1.ContainerSpec) {
		t.Networks = []*swarmv1.NetworkAttachment{overlay("back", internal), overlay("ingress", ofIngress)}
		t.Endpoint = &swarmv1.Endpoint{
			Ports:      []*swarmv1.PortConfig{{Name: "web", TargetPort: 80, PublishedPort: 8080}, hostPort(9090, 90)},
			VirtualIps: []*swarmv1.Endpoint_VirtualIP{{NetworkId: "id-of-back", Addr: "10.0.1.11/24"}, {NetworkId: "id-of-ingress", Addr: "<nil>"}},
		}
	})
	a, err := Read(asked, theNode)
	if err != nil {
		t.Fatal(err)
	}
	sb, err := a.Sandbox()
	if err != nil || len(sb.Network.Attach) != 3 || !slices.Equal(sb.Network.Ports, []core.Port{{Proto: "tcp", Host: 9090, Container: 90}}) {
		t.Fatalf("%+v, %v", sb.Network, err)
	}
	in, back, out := sb.Network.Attach[0], sb.Network.Attach[1], sb.Network.Attach[2]
	if in.Network != "overlay:id-of-ingress" || !slices.Equal(in.Open, []core.Port{{Proto: "tcp", Host: 8080, Container: 80}}) || !in.NoDefault {
		t.Errorf("ingress %+v", in)
	}
	if back.Network != "overlay:id-of-back" || back.Open != nil || back.MAC != "02:42:0a:00:01:09" || !slices.Equal(back.Addrs, []netip.Prefix{netip.MustParsePrefix("10.0.1.9/24")}) {
		t.Errorf("back %+v", back)
	}
	if out.Network != core.NetworkDefault || out.NoDefault {
		t.Errorf("out %+v", out)
	}
	if vip := a.VIP("id-of-back"); vip.String() != "10.0.1.11" || a.VIP("id-of-ingress").IsValid() || a.VIP("other").IsValid() {
		t.Errorf("vip %s", vip)
	}
	if a.Exclusive() != true {
		t.Error("port 9090 is nobody else's")
	}

	asked = task(func(t *swarmv1.Task, _ *swarmv1.ContainerSpec) {
		t.Networks = []*swarmv1.NetworkAttachment{overlay("back", internal)}
	})
	if a, err = Read(asked, theNode); err != nil {
		t.Fatal(err)
	}
	if sb, err = a.Sandbox(); err != nil || len(sb.Network.Attach) != 1 || a.Exclusive() {
		t.Errorf("%+v, %v", sb.Network, err)
	}
}

// TestOverlayNetworksInFull: each of their options.
func TestOverlayNetworksInFull(t *testing.T) {
	for name, c := range map[string]struct {
		n    *swarmv1.NetworkAttachment
		want core.Overlay
	}{
		"plain":     {overlay("a"), core.Overlay{MTU: 1450}},
		"encrypted": {overlay("a", option(optionEncrypted, "")), core.Overlay{MTU: 1424, Encrypted: true}},
		"mtu":       {overlay("a", option(optionMTU, "9000")), core.Overlay{MTU: 8950}},
		"both":      {overlay("a", option(optionMTU, "1499"), option(optionEncrypted, "true")), core.Overlay{MTU: 1420, Encrypted: true}},
		"of the user": {overlay("a", func(n *swarmv1.NetworkAttachment) {
			n.Network.Spec.DriverConfig = &swarmv1.Driver{Options: map[string]string{optionMTU: "1400"}}
		}), core.Overlay{MTU: 1350}},
	} {
		got, err := ReadNetwork(c.n)
		if err != nil || got.Overlay.MTU != c.want.MTU || got.Overlay.Encrypted != c.want.Encrypted || got.Overlay.Name != "id-of-a" || len(got.Overlay.Subnets) != 1 || got.Overlay.Subnets[0].VNI != 4097 {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	two, err := ReadNetwork(overlay("a", option(optionVNIs, "4097,4098"), func(n *swarmv1.NetworkAttachment) {
		n.Network.Ipam.Configs = append(n.Network.Ipam.Configs, &swarmv1.IPAMConfig{Subnet: "10.0.2.0/24", Gateway: "10.0.2.1/24"})
		n.Addresses = []string{"10.0.2.9/24"}
	}))
	if err != nil || len(two.Overlay.Subnets) != 2 || two.Overlay.Subnets[1].VNI != 4098 {
		t.Errorf("%+v, %v", two, err)
	}
}

// TestOverlayNetworksThatCannotBe are refused with the fault.
func TestOverlayNetworksThatCannotBe(t *testing.T) {
	ranges := func(list ...string) func(*swarmv1.NetworkAttachment) {
		return func(n *swarmv1.NetworkAttachment) {
			n.Network.Ipam.Configs = nil
			for i := 0; i < len(list); i += 2 {
				n.Network.Ipam.Configs = append(n.Network.Ipam.Configs, &swarmv1.IPAMConfig{Subnet: list[i], Gateway: list[i+1]})
			}
		}
	}
	addrs := func(list ...string) func(*swarmv1.NetworkAttachment) {
		return func(n *swarmv1.NetworkAttachment) { n.Addresses = list }
	}
	second := ranges("10.0.1.0/24", "10.0.1.1", "10.0.2.0/24", "10.0.2.1")
	for text, n := range map[string]*swarmv1.NetworkAttachment{
		`option "dsr"`:              overlay("a", option(optionDSR, "true")),
		`mtu "big"`:                 overlay("a", option(optionMTU, "big")),
		"an mtu of 100":             overlay("a", option(optionMTU, "100")),
		`mtu "70000"`:               overlay("a", option(optionMTU, "70000")),
		"2 ranges and the VXLAN":    overlay("a", second),
		"VXLAN ids \"4097,4097\"":   overlay("a", second, option(optionVNIs, "4097,4097")),
		`VXLAN id "x"`:              overlay("a", option(optionVNIs, "x")),
		`VXLAN id "0"`:              overlay("a", option(optionVNIs, "0")),
		`VXLAN id "16777216"`:       overlay("a", option(optionVNIs, "16777216")),
		`the VXLAN ids ""`:          overlay("a", option(optionVNIs, "")),
		"no range of addresses":     overlay("a", ranges()),
		`range "10.0.1"`:            overlay("a", ranges("10.0.1", "10.0.1.1")),
		`gateway ""`:                overlay("a", ranges("10.0.1.0/24", "")),
		`gateway "10.0.9.1"`:        overlay("a", ranges("10.0.1.0/24", "10.0.9.1")),
		"no address":                overlay("a", addrs()),
		`address "10.0.1.9"`:        overlay("a", addrs("10.0.1.9")),
		"10.0.7.9 is in no range":   overlay("a", addrs("10.0.7.9/24")),
		"10.0.1.1 is the gateway":   overlay("a", addrs("10.0.1.1/24")),
		"10.0.1.0 is the range's":   overlay("a", addrs("10.0.1.0/24")),
		"id \"../x\"":               overlay("a", func(n *swarmv1.NetworkAttachment) { n.Network.Id = "../x" }),
		"overlay network 100%d: id": overlay("100%d", func(n *swarmv1.NetworkAttachment) { n.Network.Id = "" }),
	} {
		_, err := Read(task(func(t *swarmv1.Task, _ *swarmv1.ContainerSpec) { t.Networks = []*swarmv1.NetworkAttachment{n} }), theNode)
		if err == nil || !strings.Contains(err.Error(), text) || !errdefs.IsInvalidArgument(err) && !errdefs.IsNotImplemented(err) {
			t.Errorf("%s: %v", text, err)
		}
	}
	twice := task(func(t *swarmv1.Task, _ *swarmv1.ContainerSpec) {
		t.Networks = []*swarmv1.NetworkAttachment{overlay("a"), overlay("a")}
	})
	if _, err := Read(twice, theNode); err == nil || !strings.Contains(err.Error(), "on it twice") {
		t.Errorf("%v", err)
	}
	noWay := task(func(t *swarmv1.Task, _ *swarmv1.ContainerSpec) {
		t.Networks, t.Endpoint = []*swarmv1.NetworkAttachment{overlay("a", internal)}, &swarmv1.Endpoint{Ports: []*swarmv1.PortConfig{hostPort(80, 80)}}
	})
	if _, err := Read(noWay, theNode); err == nil || !strings.Contains(err.Error(), "internal networks alone") {
		t.Errorf("%v", err)
	}
	none := theNode
	none.Ingress = IngressNone
	for _, list := range [][]*swarmv1.PortConfig{{{TargetPort: 80, PublishedPort: 8080}}, nil} {
		in := task(func(t *swarmv1.Task, _ *swarmv1.ContainerSpec) {
			t.Networks, t.Endpoint = []*swarmv1.NetworkAttachment{overlay("ingress", ofIngress)}, &swarmv1.Endpoint{Ports: list}
		})
		if _, err := Read(in, none); err == nil || !strings.Contains(err.Error(), "face.swarm.ingress") || !errdefs.IsNotImplemented(err) {
			t.Errorf("%v", err)
		}
	}
}
