package network

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/vxlan"
)

// Mend restores the links, addresses, routes, masters and kernel parameters of the bridges, and the rules of the overlays,
// where another program has changed them. It returns the differences. A kernel parameter that the agent has not set
// stays unchanged. With overlays it also restores their devices and entries. Without links it compares only kernel
// parameters and rules: a caller that knows that no link, address or route has changed saves listing them.
func Mend(n *Network, links, overlays bool) (all []kernel.Change) {
	for _, k := range n.drivers.kinds {
		if m, ok := k.Driver.(mender); ok {
			if k.Driver == n.Overlays {
				all = append(all, m.Mend(overlays)...)
			} else {
				all = append(all, m.Mend(links)...)
			}
		}
	}
	return all
}

// Mend restores the bridge, if it is in use, and with links also its addresses, routes and ports.
func (b *bridge) Mend(links bool) (all []kernel.Change) {
	b.mu.Lock()
	used, index := b.wall != nil, b.link.index
	b.mu.Unlock()
	if !used {
		return nil
	}
	if links {
		what, err := b.differs(index)
		if err != nil {
			return []kernel.Change{kernel.Mended(err, "bridge %s cannot be compared", b.cfg.Bridge)}
		}
		if what != "" {
			b.stale()
			_, _, err := b.ensure()
			if all = append(all, kernel.Mended(err, "%s", what)); err != nil {
				return all
			}
		}
		ports, err := b.mendPorts()
		if all = append(all, ports...); err != nil {
			all = append(all, kernel.Mended(err, "the links on bridge %s cannot be compared", b.cfg.Bridge))
		}
	}
	return append(all, kernel.MendSettings(b.kernel)...)
}

// differs returns the first difference at the bridge with an index, or "". An index of 0 is any.
func (b *bridge) differs(index int) (string, error) {
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
func (b *bridge) mendPorts() (all []kernel.Change, err error) {
	br, host, err := b.ensure()
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, lease := range b.leases.All() {
		names[b.linkName(lease.Sandbox)] = true
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
			err = errors.Join(vethPair{name: at.Name}.port(host), host.LinkSetUp(l), host.Settle(at.Name), host.Settle(b.cfg.Bridge))
		}
		if isGone(err) {
			continue // its sandbox ends
		}
		all = append(all, kernel.Mended(err, "link %s was down or not on bridge %s", at.Name, b.cfg.Bridge))
	}
	return all, nil
}

// Mend restores the guard of the overlays and the kernel parameters of published ports, and with entries also the
// devices and entries of the overlays.
func (o *Overlays) Mend(entries bool) (all []kernel.Change) {
	if changed, err := o.guard.Mend(); changed != "" {
		all = append(all, kernel.Mended(err, "%s", changed))
	}
	for _, v := range o.all() {
		if !entries {
			break
		}
		if what := v.check(); what != nil {
			all = append(all, kernel.Mended(mendOverlay(o, v), "%v", what))
		}
	}
	return append(append(all, mendIngress(o)...), kernel.MendSettings(o.n.ingress.kernel)...)
}

// check compares the data path with the kernel. It passes one that could not be adopted.
func (v *over) check() error {
	v.use.RLock()
	defer v.use.RUnlock()
	if v.path == nil {
		return nil
	}
	return v.path.Check()
}

// mendOverlay opens a data path again, with its peers.
func mendOverlay(o *Overlays, v *over) error {
	o.define.Lock()
	defer o.define.Unlock()
	v.use.Lock()
	defer v.use.Unlock()
	if v.path == nil {
		return nil // closed meanwhile
	}
	told := maps.Clone(v.path.Told())
	path, err := vxlan.Open(o.dir, o.pathOf(v.def), o.log)
	if err != nil {
		return err
	}
	v.path = path
	return path.SetPeers(told)
}
