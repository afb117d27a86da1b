// Package wire is a driver to read before another one is added: a network that is a bridge of the host, with a pair of
// links for each sandbox. It has no way out, no host ports and no names. A test counts its lines.
package wire

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/netconf"
)

// Network and bridge are the names of the network and of its bridge, and key starts the keys of its addresses.
const (
	Network = "wire"
	bridge  = "wire0"
	key     = "wire/"
)

// Driver has one network. Its records are the addresses of sandboxes: links are found by the names.
type Driver struct {
	KV    core.KV
	Range netip.Prefix
	mu    sync.Mutex // serializes the choice of addresses and the creation of the bridge
}

// Has reports whether the network is this one.
func (d *Driver) Has(network string) (string, bool) { return Network, network == Network }

// Attach implements network.Driver.
func (d *Driver) Attach(ctx context.Context, req core.NetworkRequest, st core.NetworkStatus) (core.NetworkStatus, error) {
	in, ns, err := kernel.Inside(req.Namespace)
	if err != nil {
		return st, err
	}
	defer func() { in.Close(); _ = ns.Close() }()
	addr, err := d.lease(req.Sandbox) // recorded before anything is made, so that Recover finds it
	if err != nil {
		return st, err
	}
	a := core.Attachment{Network: Network, Interface: cmp.Or(req.Config.Attach[0].Interface, "eth0"), Addrs: []netip.Prefix{addr}, NoDefault: true}
	err = d.connect(req.Sandbox, a, int(ns.Fd()))
	if link, found := in.LinkByName(a.Interface); err == nil && found == nil {
		err = errors.Join(in.LinkSetUp(kernel.Loopback()), in.LinkSetUp(link), in.AddrAdd(link, &netlink.Addr{IPNet: kernel.IPNet(addr)}))
	} else {
		err = errors.Join(err, found)
	}
	if err != nil {
		return st, errors.Join(err, d.Release(ctx, req, Network))
	}
	if st.Mode == "" || st.Mode == netconf.StatusNone {
		st.Mode = string(netconf.ModeBuiltin)
	}
	st.Interfaces, st.Addrs = append(slices.Clone(st.Interfaces), a), append(slices.Clone(st.Addrs), addr.Addr())
	return st, nil
}

// connect makes the bridge and the pair of links.
func (d *Driver) connect(id core.ID, a core.Attachment, ns int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	br, err := netlink.LinkByName(bridge)
	if kernel.IsLinkGone(err) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = bridge
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return err
		}
		br, err = netlink.LinkByName(bridge)
	}
	if err != nil {
		return err
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: linkName(id), MasterIndex: br.Attrs().Index}, PeerName: a.Interface, PeerNamespace: netlink.NsFd(ns)}
	return errors.Join(netlink.LinkSetUp(br), netlink.LinkAdd(pair), netlink.LinkSetUp(pair))
}

func linkName(id core.ID) string { return "wi" + string(id)[:11] }

// lease chooses the first address that no sandbox has.
func (d *Driver) lease(id core.ID) (netip.Prefix, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	taken := map[string]bool{}
	for _, addr := range d.KV.All(key) {
		taken[string(addr)] = true
	}
	for a := d.Range.Addr().Next(); d.Range.Contains(a.Next()); a = a.Next() {
		if !taken[a.String()] {
			return netip.PrefixFrom(a, d.Range.Bits()), d.KV.Put(key+string(id), []byte(a.String()))
		}
	}
	return netip.Prefix{}, fmt.Errorf("no address is free in %s: %w", d.Range, errdefs.ErrResourceExhausted)
}

// Detach implements network.Driver.
func (d *Driver) Detach(_ context.Context, req core.NetworkRequest, _ string) error {
	host, err := kernel.Host()
	if err != nil {
		return err
	}
	defer host.Close()
	return kernel.Unlink(host, linkName(req.Sandbox))
}

// Release implements network.Driver. The link goes with it, so that nobody else gets the address while it is in use.
func (d *Driver) Release(ctx context.Context, req core.NetworkRequest, network string) error {
	return errors.Join(d.Detach(ctx, req, network), d.KV.Delete(key+string(req.Sandbox)))
}

// Check implements network.Driver.
func (d *Driver) Check(_ context.Context, req core.NetworkRequest) error {
	if _, err := netlink.LinkByName(linkName(req.Sandbox)); err != nil {
		return fmt.Errorf("link %s: %w: %w", linkName(req.Sandbox), err, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// Recover implements network.Driver.
func (d *Driver) Recover(ctx context.Context, live []core.NetworkRequest) (err error) {
	alive := map[core.ID]bool{}
	for _, req := range live {
		alive[req.Sandbox] = req.Last.On(Network) >= 0
	}
	for _, id := range d.Holders() {
		if !alive[id] {
			err = errors.Join(err, d.Release(ctx, core.NetworkRequest{Sandbox: id}, ""))
		}
	}
	return err
}

// Holders implements network.Driver.
func (d *Driver) Holders() (ids []core.ID) {
	for k := range d.KV.All(key) {
		ids = append(ids, core.ID(strings.TrimPrefix(k, key)))
	}
	return ids
}
