package bridge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/ipam"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/nft"
)

// Check implements network.Driver.
func (b *Bridge) Check(_ context.Context, req core.NetworkRequest) error {
	missing := func(format string, args ...any) error {
		return fmt.Errorf(format+": %w", append(args, errdefs.ErrFailedPrecondition)...)
	}
	lease, ok := b.leases.Held(req.Sandbox)
	if !ok {
		return missing("it holds no address")
	}
	h, err := kernel.Host()
	if err != nil {
		return err
	}
	defer h.Close()
	br, err := h.LinkByName(b.cfg.Bridge)
	if err != nil {
		return missing("bridge %s does not exist", b.cfg.Bridge)
	}
	out, err := h.LinkByName(b.LinkName(req.Sandbox))
	if err != nil {
		return missing("link %s does not exist", b.LinkName(req.Sandbox))
	}
	if out.Attrs().MasterIndex != br.Attrs().Index || out.Attrs().Flags&net.FlagUp == 0 {
		return missing("link %s is down or not on bridge %s", out.Attrs().Name, b.cfg.Bridge)
	}
	sb, ns, err := kernel.Inside(req.Namespace)
	if err != nil {
		return err
	}
	defer func() { sb.Close(); _ = ns.Close() }()
	have := map[netip.Addr]bool{}
	addrs, err := sb.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.IP)
		have[ip.Unmap()] = true
	}
	for _, a := range lease.Addrs {
		if !have[a.Addr()] {
			return missing("address %s is missing", a.Addr())
		}
	}
	gone, err := b.table.Missing(b.table.Forwards(req.Sandbox))
	if err != nil {
		return err
	}
	for _, f := range gone {
		return missing("host port %d is not forwarded", f.Port)
	}
	return nil
}

// Recover implements network.Driver: it rebuilds bridge, rules and ports from the leases and the live requests.
func (b *Bridge) Recover(_ context.Context, live []core.NetworkRequest) error {
	alive, on := map[core.ID]bool{}, map[core.ID]bool{}
	var here []core.NetworkRequest
	for _, req := range live {
		alive[req.Sandbox] = true
		if req.Last.On(b.Name()) < 0 {
			continue
		}
		on[req.Sandbox] = true
		if b.portsOn != nil && b.portsOn(req) != b.Name() {
			req.Last.Ports = nil
		}
		here = append(here, req)
	}
	for _, l := range b.leases.All() {
		if !alive[l.Sandbox] {
			b.claims.Drop(l.Sandbox)
		}
	}
	return b.rebuild(here, on)
}

// rebuild is Recover for the live sandboxes on this bridge. Leases of other sandboxes are released.
func (b *Bridge) rebuild(live []core.NetworkRequest, alive map[core.ID]bool) error {
	var errs []error
	for _, lease := range b.leases.All() {
		if !alive[lease.Sandbox] {
			b.log.Info("releasing the addresses of a sandbox that no longer exists", "sandbox", string(lease.Sandbox))
			errs = append(errs, b.release(lease.Sandbox))
		}
	}
	var fwds []nft.Forward
	used := false
	for _, req := range live {
		lease, ok := b.leases.Held(req.Sandbox)
		if !ok {
			continue
		}
		used = true
		// Use the ports that Setup returned, because the request lacks the ports that Setup chose.
		// Whether a process of the host listens on them is not checked.
		more, err := forwards(req.Sandbox, req.Last.Ports, lease)
		if err == nil {
			err = b.claims.Take(req.Sandbox, Claims(req.Last.Ports))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("sandbox %s: %w", req.Sandbox.Short(), err))
			continue
		}
		b.claims.Reopen(req.Sandbox, Claims(req.Last.Ports))
		fwds = append(fwds, more...)
	}
	if !used && !Exists(b.cfg.Bridge) {
		return errors.Join(errs...) // the bridge is made on first use
	}
	b.Stale()
	if err := b.table.Replace(ipam.Prefixes(b.networks()), fwds); err != nil {
		return errors.Join(append(errs, err)...)
	}
	errs = append(errs, b.reattach(alive))
	b.flows.forget(fwds, false)
	return errors.Join(errs...)
}

// Exists reports whether the host has a link of that name.
func Exists(bridge string) bool {
	h, err := kernel.Host()
	if err != nil {
		return false
	}
	defer h.Close()
	_, err = h.LinkByName(bridge)
	return err == nil
}

// Ours reports whether the bridge exists and is ours: one of that name that somebody else has
// made has another hardware address.
func Ours(bridge string) bool {
	h, err := kernel.Host()
	if err != nil {
		return false
	}
	defer h.Close()
	link, err := h.LinkByName(bridge)
	return err == nil && link.Type() == "bridge" && link.Attrs().HardwareAddr.String() == bridgeMAC(bridge).String()
}

// reattach puts the links of live sandboxes back on the bridge, which someone may have removed,
// and deletes links without an owner.
func (b *Bridge) reattach(alive map[core.ID]bool) error {
	br, host, err := b.ensure()
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for id := range alive {
		names[b.LinkName(id)] = true
	}
	links, err := host.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	var errs []error
	for _, l := range links {
		at := l.Attrs()
		switch {
		case l.Type() != "veth" || !strings.HasPrefix(at.Name, linkPrefix):
		case names[at.Name] && at.MasterIndex != br.index:
			err := host.LinkSetMasterByIndex(l, br.index)
			if err == nil {
				err = vethPair{name: at.Name, isolated: b.isolated}.port(host)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("put %s on the bridge: %w", at.Name, err))
			}
		case !names[at.Name] && at.MasterIndex == br.index:
			errs = append(errs, kernel.Unlink(host.Handle, at.Name))
		}
	}
	return errors.Join(errs...)
}
