package cli

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// networkFlags are the flags of network create about addresses and drivers.
type networkFlags struct {
	subnets, gateways, pools, reserved, opts []string
	driver, ipam, scope                      string
	ipv4                                     bool
}

func (f *networkFlags) define(fl *pflag.FlagSet, req *longshorev1.CreateNetworkRequest) {
	fl.StringSliceVar(&f.subnets, "subnet", nil, "range of addresses, such as 10.90.0.0/24 or fd00:1::/64 (default: chosen)")
	fl.StringSliceVar(&f.gateways, "gateway", nil, "the node's address in a subnet (default: the first)")
	fl.StringSliceVar(&f.pools, "ip-range", nil, "part of a subnet from which containers get addresses (default: all of it)")
	fl.StringArrayVar(&f.reserved, "aux-address", nil, "address of a subnet that no container gets, NAME=ADDRESS")
	fl.BoolVar(&req.Ipv6, "ipv6", false, "also choose a range of IPv6 if no --subnet is one")
	fl.BoolVar(&f.ipv4, "ipv4", true, "accepts only true: each network has a range of IPv4")
	fl.BoolVar(&req.Internal, "internal", false, "do not connect the network with the outside")
	fl.Bool("attachable", false, "no effect: containers can join every network")
	fl.StringArrayVarP(&f.opts, "opt", "o", nil, "option of the network, mtu=")
	fl.StringVarP(&f.driver, "driver", "d", "bridge", "accepts only bridge")
	fl.StringVar(&f.ipam, "ipam-driver", "default", "accepts only default")
	fl.StringVar(&f.scope, "scope", "local", "accepts only local")
}

// fill puts the values into req: each gateway, pool and reserved address into its subnet.
func (f *networkFlags) fill(req *longshorev1.CreateNetworkRequest) error {
	for _, only := range []struct{ flag, value, allowed string }{
		{"driver", f.driver, "bridge"}, {"ipam-driver", f.ipam, "default"}, {"scope", f.scope, "local"}, {"ipv4", strconv.FormatBool(f.ipv4), "true"},
	} {
		if only.value != only.allowed && only.value != "" {
			return fmt.Errorf("--%s %q: only %s is supported", only.flag, only.value, only.allowed)
		}
	}
	var ranges []netip.Prefix
	for _, s := range f.subnets {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return fmt.Errorf("--subnet %q is not a range of addresses, such as 10.90.0.0/24", s)
		}
		ranges = append(ranges, p.Masked())
		req.Subnets = append(req.Subnets, &longshorev1.Subnet{Range: s})
	}
	subnetOf := func(flag, value string, a netip.Addr, err error) (*longshorev1.Subnet, error) {
		if err != nil {
			return nil, fmt.Errorf("--%s %q: %w", flag, value, err)
		}
		for i, r := range ranges {
			if r.Contains(a) {
				return req.GetSubnets()[i], nil
			}
		}
		return nil, fmt.Errorf("--%s %s: a subnet is needed for it", flag, value)
	}
	for _, g := range f.gateways {
		a, err := netip.ParseAddr(g)
		sub, err := subnetOf("gateway", g, a, err)
		if err != nil {
			return err
		}
		if sub.GetGateway() != "" {
			return fmt.Errorf("--gateway %s: the subnet %s has the gateway %s", g, sub.GetRange(), sub.GetGateway())
		}
		sub.Gateway = g
	}
	for _, text := range f.pools {
		p, err := netip.ParsePrefix(text)
		sub, err := subnetOf("ip-range", text, p.Addr(), err)
		if err != nil {
			return err
		}
		if sub.GetPool() != "" {
			return fmt.Errorf("--ip-range %s: the subnet %s has the part %s", text, sub.GetRange(), sub.GetPool())
		}
		sub.Pool = text
	}
	for _, text := range f.reserved {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return fmt.Errorf("--aux-address %q is not NAME=ADDRESS", text)
		}
		a, err := netip.ParseAddr(value)
		sub, err := subnetOf("aux-address", text, a, err)
		if err != nil {
			return err
		}
		if sub.GetReserved() == nil {
			sub.Reserved = map[string]string{}
		}
		sub.Reserved[name] = value
	}
	return f.options(req)
}

// options puts the driver's options into req.
func (f *networkFlags) options(req *longshorev1.CreateNetworkRequest) error {
	for _, o := range f.opts {
		name, value, _ := strings.Cut(o, "=")
		if name != "mtu" && name != "com.docker.network.driver.mtu" {
			return fmt.Errorf("--opt %q: only mtu is supported", o)
		}
		mtu, err := strconv.ParseInt(value, 10, 32)
		if err != nil {
			return fmt.Errorf("--opt %q: not a number of bytes", o)
		}
		req.Mtu = int32(mtu)
	}
	return nil
}

// interfaceOption is docker's name for an option of an attachment that we have: the interface's name.
const interfaceOption = "com.docker.network.endpoint.ifname"

// attachmentOptions puts the options of --driver-opt into n.
func attachmentOptions(n *longshorev1.NetworkAttachment, opts []string) error {
	for _, o := range opts {
		name, value, ok := strings.Cut(o, "=")
		if name != interfaceOption || !ok {
			return fmt.Errorf("--driver-opt %q: only %s=NAME is supported", o, interfaceOption)
		}
		n.Interface = value
	}
	return nil
}
