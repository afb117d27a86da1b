package egress

import (
	"net/netip"
	"slices"
)

// special are the ranges that are not public, by the registries of special-purpose addresses (RFC 6890), with
// multicast.
var special = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
	"192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
	// Of IPv6 only 2000::/3 is public; of it not the mapped, translated and tunnelled addresses of IPv4, which would
	// lead to the ranges above, nor examples.
	"::/3", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "4000::/2", "8000::/1",
)

// never are the ranges of this host and this link. No name may have an address there, even with Private.
var never = prefixes(
	"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3",
	"::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16", "fe80::/10", "fec0::/10", "ff00::/8",
)

// metadata are the addresses at which clouds give credentials to their machines.
var metadata = prefixes("169.254.169.254/32", "169.254.170.2/32", "169.254.170.23/32", "100.100.100.200/32", "fd00:ec2::254/128", "fd00:ec2::23/128", "fd20:ce::254/128")

// LinkMetadata are those of metadata that are closed to sandboxes without a list.
func LinkMetadata() [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fd00:ec2::254")}
}

func prefixes(list ...string) (p []netip.Prefix) {
	for _, s := range list {
		p = append(p, netip.MustParsePrefix(s))
	}
	return p
}

func within(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Special returns the ranges that are not public.
func Special() []netip.Prefix { return slices.Clone(special) }

// Public reports whether all addresses of a range are public.
func Public(p netip.Prefix) bool {
	return !slices.ContainsFunc(special, p.Overlaps)
}

// Answerable reports whether a name may have an address. private is Match.Private: without it the address must be
// public. An address of IPv4 that is written as one of IPv6 is none of IPv4.
func Answerable(a netip.Addr, private bool) bool {
	if !a.IsValid() || a.Zone() != "" || within(never, a) || within(metadata, a) {
		return false
	}
	return private || !within(special, a)
}
