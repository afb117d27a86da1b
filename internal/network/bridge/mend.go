package bridge

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/longshore/longshore/internal/network/kernel"
)

// Mend restores the bridge, if it is in use, and with links also its addresses, routes and ports.
func (b *Bridge) Mend(links bool) (all []kernel.Change) {
	b.mu.Lock()
	used, index := b.wall != nil, b.link.index
	b.mu.Unlock()
	if !used {
		return nil
	}
	if links {
		what, err := differs(b, index)
		if err != nil {
			return []kernel.Change{kernel.Mended(err, "bridge %s cannot be compared", b.cfg.Bridge)}
		}
		if what != "" {
			b.Stale()
			_, _, err := b.ensure()
			if all = append(all, kernel.Mended(err, "%s", what)); err != nil {
				return all
			}
		}
		ports, err := mendPorts(b)
		if all = append(all, ports...); err != nil {
			all = append(all, kernel.Mended(err, "the links on bridge %s cannot be compared", b.cfg.Bridge))
		}
	}
	return append(all, kernel.MendSettings(b.kernel)...)
}

// differs returns the first difference at the bridge with an index, or "". An index of 0 is any.
func differs(b *Bridge, index int) (string, error) {
	host, err := kernel.Host()
	if err != nil {
		return "", err
	}
	defer host.Close()
	link, err := host.LinkByName(b.cfg.Bridge)
	switch {
	case kernel.IsLinkGone(err):
		return fmt.Sprintf("bridge %s was deleted", b.cfg.Bridge), nil
	case err != nil:
		return "", err
	case index != 0 && link.Attrs().Index != index:
		return fmt.Sprintf("bridge %s was replaced", b.cfg.Bridge), nil
	case link.Attrs().Flags&net.FlagUp == 0:
		return fmt.Sprintf("bridge %s is down", b.cfg.Bridge), nil
	}
	nets := b.networks()
	want := bridgeAddrs(nets)
	have, err := host.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return "", fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range have {
		ip, _ := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		delete(want, netip.PrefixFrom(ip.Unmap(), bits))
	}
	for p := range want {
		return fmt.Sprintf("bridge %s has lost its address %s", b.cfg.Bridge, p), nil
	}
	routes, err := host.RouteList(link, netlink.FAMILY_ALL)
	if err != nil {
		return "", fmt.Errorf("list routes: %w", err)
	}
	led := map[string]bool{}
	for _, r := range routes {
		if r.Dst != nil {
			led[r.Dst.String()] = true
		}
	}
	for _, r := range nets {
		if !r.Gateway.IsValid() && !led[kernel.IPNet(r.Prefix).String()] {
			return fmt.Sprintf("the route to %s by bridge %s is missing", r.Prefix, b.cfg.Bridge), nil
		}
	}
	return "", nil
}

// mendPorts sets the links of sandboxes up, and puts them on the bridge again.
func mendPorts(b *Bridge) (all []kernel.Change, err error) {
	br, host, err := b.ensure()
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, lease := range b.leases.All() {
		names[b.LinkName(lease.Sandbox)] = true
	}
	links, err := host.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		at := l.Attrs()
		if !names[at.Name] || at.MasterIndex == br.index && at.Flags&net.FlagUp != 0 {
			continue
		}
		err := host.LinkSetMasterByIndex(l, br.index)
		if err == nil {
			err = errors.Join(vethPair{name: at.Name, isolated: b.isolated}.port(host), host.LinkSetUp(l), host.Settle(at.Name), host.Settle(b.cfg.Bridge))
		}
		if isGone(err) {
			continue // its sandbox ends
		}
		all = append(all, kernel.Mended(err, "link %s was down or not on bridge %s", at.Name, b.cfg.Bridge))
	}
	return all, nil
}
