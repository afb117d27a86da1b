// Package ipam leases addresses. Ranges are parsed and chosen in ranges.go; leases are stored in
// a core.KV, so that they outlive the process (leases.go).
//
// It knows nothing of links, rules or faces. Start at Leases.
package ipam

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Range is one block of addresses.
type Range struct {
	Prefix netip.Prefix // host bits masked
	// Gateway is the first address after the network's own, unless another one is chosen
	// (WithGateway). The bridge has it and it is never leased. It is the zero Addr where a range is too small for one (/31, /32, /127, /128):
	// there all addresses are leased.
	Gateway netip.Addr
	// Pool limits the choice of addresses to a part of Prefix. The zero value does not limit it.
	Pool netip.Prefix
}

// The shortest prefixes: a wider one is a typing error and would cover routes of the host.
const (
	minBits4 = 8
	minBits6 = 16
)

// ParseRange parses one CIDR and masks its host bits. Errors are InvalidArgument.
func ParseRange(cidr string) (Range, error) {
	p, err := netip.ParsePrefix(strings.TrimSpace(cidr))
	if err != nil {
		return Range{}, fmt.Errorf("parse range %q: %w: %w", cidr, err, errdefs.ErrInvalidArgument)
	}
	if p.Addr().Is4In6() {
		return Range{}, fmt.Errorf("parse range %q: an IPv4 range is written as IPv4: %w", cidr, errdefs.ErrInvalidArgument)
	}
	p = p.Masked()
	a := p.Addr()
	if a.Is4() && p.Bits() < minBits4 || a.Is6() && p.Bits() < minBits6 {
		return Range{}, fmt.Errorf("parse range %q: too wide: %w", cidr, errdefs.ErrInvalidArgument)
	}
	if a.IsMulticast() || a.IsLoopback() || a.IsUnspecified() || a.IsLinkLocalUnicast() {
		return Range{}, fmt.Errorf("parse range %q: not a unicast range that can be routed: %w", cidr, errdefs.ErrInvalidArgument)
	}
	r := Range{Prefix: p}
	if p.Bits() <= a.BitLen()-2 {
		r.Gateway = a.Next()
	}
	return r, nil
}

// ParseRanges parses CIDRs that must not overlap. Errors are InvalidArgument.
func ParseRanges(cidrs []string) ([]Range, error) {
	var ranges []Range
	for _, c := range cidrs {
		r, err := ParseRange(c)
		if err != nil {
			return nil, err
		}
		for _, o := range ranges {
			if o.Prefix.Overlaps(r.Prefix) {
				return nil, fmt.Errorf("parse range %q: overlaps %s: %w", c, o.Prefix, errdefs.ErrInvalidArgument)
			}
		}
		ranges = append(ranges, r)
	}
	return ranges, nil
}

// bounds returns the first and last address that may be leased.
func (r Range) bounds() (first, last netip.Addr) {
	first, last = r.Prefix.Addr(), lastAddr(r.Prefix)
	if !r.Gateway.IsValid() {
		return first, last
	}
	if last.Is4() {
		last = last.Prev() // without the broadcast address
	}
	return first.Next(), last
}

// WithGateway returns the range with another gateway. InvalidArgument when that is not one of its
// addresses.
func (r Range) WithGateway(a netip.Addr) (Range, error) {
	if !r.Gateway.IsValid() || !r.leasable(a) && a != r.Gateway {
		return r, fmt.Errorf("gateway %s: not an address of %s: %w", a, r.Prefix, errdefs.ErrInvalidArgument)
	}
	r.Gateway = a
	return r, nil
}

// WithPool returns the range with the pool p. InvalidArgument: p is outside of the range, or has no address to lease.
func (r Range) WithPool(p netip.Prefix) (Range, error) {
	p = p.Masked()
	if !p.IsValid() || p.Bits() < r.Prefix.Bits() || !r.Prefix.Contains(p.Addr()) {
		return r, fmt.Errorf("pool %s: not a part of %s: %w", p, r.Prefix, errdefs.ErrInvalidArgument)
	}
	r.Pool = p
	if first, last := r.choice(); first.Compare(last) > 0 || first == last && first == r.Gateway {
		return r, fmt.Errorf("pool %s: it has no address for a container: %w", p, errdefs.ErrInvalidArgument)
	}
	return r, nil
}

// choice returns the first and last address that is chosen: the bounds, or the part of them in Pool.
func (r Range) choice() (first, last netip.Addr) {
	first, last = r.bounds()
	if !r.Pool.IsValid() {
		return first, last
	}
	if a := r.Pool.Addr(); a.Compare(first) > 0 {
		first = a
	}
	if a := lastAddr(r.Pool); a.Compare(last) < 0 {
		last = a
	}
	return first, last
}

// leasable reports whether a may be leased from r.
func (r Range) leasable(a netip.Addr) bool {
	first, last := r.bounds()
	return first.Compare(a) <= 0 && a.Compare(last) <= 0 && a != r.Gateway
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Choose returns the first private IPv4 /16, in numeric order, that none of
// the host's routes overlaps. ResourceExhausted when every one is taken.
func Choose(routes []netip.Prefix) (Range, error) { return choose(routes, 16) }

// ChooseSmall is Choose for a /24; a node may have many of these.
func ChooseSmall(routes []netip.Prefix) (Range, error) { return choose(routes, 24) }

func choose(routes []netip.Prefix, bits int) (Range, error) {
	for _, block := range []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"} {
		private := netip.MustParsePrefix(block)
		for a := private.Addr(); private.Contains(a); {
			p := netip.PrefixFrom(a, bits)
			// A default route overlaps everything and so excludes nothing.
			if !slices.ContainsFunc(routes, func(r netip.Prefix) bool { return r.Bits() > 0 && r.Overlaps(p) }) {
				return Range{Prefix: p, Gateway: a.Next()}, nil
			}
			a = lastAddr(p).Next()
		}
	}
	return Range{}, fmt.Errorf("choose an address range: the host's routes overlap every private /%d, name one: %w", bits, errdefs.ErrResourceExhausted)
}

// ChooseULA returns a random unique local IPv6 /64 (RFC 4193).
func ChooseULA() Range {
	var b [16]byte
	_, _ = rand.Read(b[:8])
	b[0] = 0xfd
	a := netip.AddrFrom16(b)
	return Range{Prefix: netip.PrefixFrom(a, 64), Gateway: a.Next()}
}

// Prefixes returns the prefixes of ranges.
func Prefixes(nets []Range) []netip.Prefix {
	var ps []netip.Prefix
	for _, r := range nets {
		ps = append(ps, r.Prefix)
	}
	return ps
}
