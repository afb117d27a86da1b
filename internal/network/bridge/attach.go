package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/netconf"
)

// Attach implements network.Driver.
func (b *Bridge) Attach(ctx context.Context, req core.NetworkRequest, st core.NetworkStatus) (core.NetworkStatus, error) {
	if st.Mode == "" {
		return b.add(ctx, req)
	}
	a := req.Config.Attach[0]
	want, err := b.wants(a, a.Interface)
	if err != nil {
		return core.NetworkStatus{}, err
	}
	iface, err := b.join(req, want)
	if err != nil {
		return core.NetworkStatus{}, err
	}
	return grown(st, iface, b, req.Sandbox), nil
}

// Detach implements network.Driver.
func (b *Bridge) Detach(_ context.Context, req core.NetworkRequest, _ string) error {
	return b.unlink(b.LinkName(req.Sandbox))
}

// Release implements network.Driver. It leaves the link: the kernel deletes that in the background when the engine unpins the
// namespace, where deleting it here would take 9 to 23 ms. A link that survives, because somebody else keeps the
// namespace, is deleted before its address is leased again.
func (b *Bridge) Release(_ context.Context, req core.NetworkRequest, network string) error {
	if network == "" {
		return b.del(req.Sandbox)
	}
	return b.release(req.Sandbox)
}

// Holders implements network.Driver.
func (b *Bridge) Holders() (ids []core.ID) {
	for _, l := range b.leases.All() {
		ids = append(ids, l.Sandbox)
	}
	return append(ids, b.table.Sandboxes()...)
}

// Name is the name that NetworkStatus has for the network.
func (b *Bridge) Name() string { return b.names[0] }

// join leases addresses and makes the link.
func (b *Bridge) join(req core.NetworkRequest, want wanted) (core.Attachment, error) {
	if _, held := b.leases.Held(req.Sandbox); held {
		// An Attach was interrupted, or a Detach, and nobody has recovered.
		if err := errors.Join(b.release(req.Sandbox), b.unlink(b.LinkName(req.Sandbox))); err != nil {
			return core.Attachment{}, err
		}
	}
	lease, stale, err := b.leases.Acquire(req.Sandbox, want.addrs)
	if err != nil {
		return core.Attachment{}, err
	}
	iface, err := b.connect(req, want, lease, stale)
	if err != nil {
		return iface, errors.Join(err, b.leases.Release(req.Sandbox))
	}
	return iface, nil
}

// grown returns st with one more interface.
func grown(st core.NetworkStatus, iface core.Attachment, b *Bridge, id core.ID) core.NetworkStatus {
	st.Interfaces = append(slices.Clone(st.Interfaces), iface)
	st.Addrs, st.Gateways = slices.Clone(st.Addrs), slices.Clone(st.Gateways)
	if st.Mode == netconf.StatusNone {
		st.Mode = string(netconf.ModeBuiltin)
		st.DNS = core.DNS{Servers: b.cfg.DNS.Servers, Searches: b.cfg.DNS.Searches, Options: b.cfg.DNS.Options}
	}
	lease, _ := b.leases.Held(id)
	for i, a := range lease.Addrs {
		st.Addrs = append(st.Addrs, a.Addr())
		st.Gateways = append(st.Gateways, gateway(a, lease.Gateways[i]))
	}
	return st
}

// SetDefaultRoute makes the default route of a sandbox lead over one of its interfaces.
func (b *Bridge) SetDefaultRoute(req core.NetworkRequest, a core.Attachment) error {
	lease, ok := b.leases.Held(req.Sandbox)
	if !ok {
		return fmt.Errorf("it holds no address: %w", errdefs.ErrFailedPrecondition)
	}
	sb, ns, err := kernel.Inside(req.Namespace)
	if err != nil {
		return err
	}
	defer func() { sb.Close(); _ = ns.Close() }()
	in, err := sb.LinkByName(a.Interface)
	if err != nil {
		return fmt.Errorf("find %s inside: %w", a.Interface, err)
	}
	for i, addr := range lease.Addrs {
		if err := (vethPair{}).defaultRoute(sb, in, gateway(addr, lease.Gateways[i]), lease.Gateways[i].IsValid()); err != nil {
			return err
		}
	}
	return nil
}
