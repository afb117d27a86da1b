package overlay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/ingress"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/nft"
	"github.com/longshore/longshore/internal/network/ports"
	"github.com/longshore/longshore/internal/network/vxlan"
)

// Only is the status of a sandbox that is on overlays only.
func Only(d netconf.DNSConfig, st core.NetworkStatus) core.NetworkStatus {
	st.Mode, st.DNS = string(netconf.ModeBuiltin), core.DNS{Servers: d.Servers, Searches: d.Searches, Options: d.Options}
	return st
}

// join gives a sandbox an interface on an overlay, closed but for the ports that are open there.
func (o *Driver) join(req core.NetworkRequest, a core.Attachment) (core.Attachment, error) {
	name, _ := core.OverlayName(a.Network)
	v, err := o.get(name)
	if err != nil {
		return core.Attachment{}, err
	}
	defer v.done()
	if len(a.Routes) > 0 || a.MTU != 0 && a.MTU != v.def.MTU {
		return core.Attachment{}, fmt.Errorf("its routes and its mtu are the network's: %w", errdefs.ErrInvalidArgument)
	}
	// Closed before there is anything that could come in.
	if err := expose(req.Namespace, a); err != nil {
		return core.Attachment{}, err
	}
	made, err := v.path.Attach(req.Namespace, vxlan.Attachment{Key: string(req.Sandbox), Interface: a.Interface, Addrs: a.Addrs, MAC: a.MAC})
	if err != nil {
		return core.Attachment{}, errors.Join(err, conceal(req.Namespace, a))
	}
	return core.Attachment{
		Network: a.Network, Interface: made.Interface, Addrs: made.Addrs, MAC: made.MAC, MTU: v.def.MTU, NoDefault: true, Open: a.Open,
	}, nil
}

// expose closes an interface but for the ports that are open there, if it has any.
func expose(namespace string, a core.Attachment) error {
	if len(a.Open) == 0 {
		return nil
	}
	if len(a.Addrs) != 1 {
		return fmt.Errorf("an interface with open ports has one address: %w", errdefs.ErrInvalidArgument)
	}
	var list []nft.Exposed
	for _, p := range a.Open {
		proto, err := ports.Number(cmp.Or(p.Proto, "tcp"))
		if err != nil {
			return fmt.Errorf("port %d: %w", p.Host, err)
		}
		list = append(list, nft.Exposed{Proto: proto, Published: p.Host, Target: p.Container})
	}
	ns, err := os.Open(namespace)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer func() { _ = ns.Close() }()
	return nft.Expose(ns, a.Addrs[0].Addr(), list)
}

// conceal reverts expose.
func conceal(namespace string, a core.Attachment) error {
	if len(a.Open) == 0 {
		return nil
	}
	ns, err := os.Open(namespace)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer func() { _ = ns.Close() }()
	return nft.Conceal(ns)
}

// Attach implements network.Driver. A sandbox on overlays has a name server. The services of the overlays lead to their
// backends after Serve, which the caller calls when all interfaces are there.
func (o *Driver) Attach(_ context.Context, req core.NetworkRequest, st core.NetworkStatus) (core.NetworkStatus, error) {
	a := req.Config.Attach[0]
	if len(a.Open) > 0 && slices.ContainsFunc(st.Interfaces, func(i core.Attachment) bool { return len(i.Open) > 0 }) {
		return core.NetworkStatus{}, fmt.Errorf("ports are open at another interface already: %w", errdefs.ErrInvalidArgument)
	}
	if st.Mode == "" {
		var err error
		if st, err = kernel.NoneStatus(req.Namespace); err != nil {
			return core.NetworkStatus{}, err
		}
	}
	name, _ := core.OverlayName(a.Network)
	if st.On(a.Network) < 0 { // an Attach may have been interrupted, and nobody has recovered
		if err := o.detach(req.Sandbox, name); err != nil {
			return core.NetworkStatus{}, err
		}
	}
	iface, err := o.join(req, a)
	if err != nil {
		return core.NetworkStatus{}, err
	}
	if st.Mode == netconf.StatusNone {
		st = Only(o.dns, st)
	}
	st.Interfaces = append(slices.Clone(st.Interfaces), iface)
	st.Addrs = append(slices.Clone(st.Addrs), kernel.Addrs(iface.Addrs)...)
	st.Resolver = names.Address()
	return st, nil
}

// Detach implements network.Driver.
func (o *Driver) Detach(_ context.Context, req core.NetworkRequest, network string) error {
	name, _ := core.OverlayName(network)
	if err := o.detach(req.Sandbox, name); err != nil {
		return err
	}
	if slices.ContainsFunc(req.Last.Without(network).Interfaces, func(i core.Attachment) bool { return len(i.Open) > 0 }) {
		return nil
	}
	// The request may not know any more that ports were open.
	return conceal(req.Namespace, core.Attachment{Open: make([]core.Port, 1)})
}

// Release implements network.Driver. It also removes the interface.
func (o *Driver) Release(_ context.Context, req core.NetworkRequest, network string) error {
	if network == "" {
		return o.detachAll(req.Sandbox)
	}
	name, _ := core.OverlayName(network)
	return o.detach(req.Sandbox, name)
}

// detach removes a sandbox's interface on an overlay, if there is one.
func (o *Driver) detach(id core.ID, name string) error {
	o.mu.RLock()
	v := o.byName[name]
	o.mu.RUnlock()
	if v == nil {
		return nil
	}
	return v.detach(id)
}

func (v *openOverlay) detach(id core.ID) error {
	v.use.RLock()
	defer v.use.RUnlock()
	if v.path == nil {
		v.unseen.Delete(id)
		return nil
	}
	if !v.path.Has(string(id)) {
		return nil
	}
	return v.path.Detach(string(id))
}

// detachAll removes a sandbox's interfaces on all overlays. Its namespace need not exist.
func (o *Driver) detachAll(id core.ID) error {
	o.served.drop(id)
	var errs []error
	for _, v := range o.all() {
		errs = append(errs, v.detach(id))
	}
	return errors.Join(errs...)
}

// Holders implements network.Driver.
func (o *Driver) Holders() (ids []core.ID) {
	for _, v := range o.all() {
		ids = append(ids, v.sandboxes()...)
	}
	return ids
}

func (v *openOverlay) sandboxes() (ids []core.ID) {
	v.use.RLock()
	defer v.use.RUnlock()
	if v.path == nil {
		v.unseen.Range(func(id, _ any) bool {
			ids = append(ids, id.(core.ID)) //nolint:forcetypeassert // only these are stored
			return true
		})
		return ids
	}
	for _, a := range v.path.Attached() {
		if a.Key != ingress.Key {
			ids = append(ids, core.ID(a.Key))
		}
	}
	return ids
}

// Check implements network.Driver.
func (o *Driver) Check(_ context.Context, req core.NetworkRequest) error {
	var errs []error
	for _, a := range req.Last.Interfaces {
		if _, ok := core.OverlayName(a.Network); ok {
			errs = append(errs, o.checkOn(req, a))
		}
	}
	return errors.Join(errs...)
}

// checkOn compares an interface with the status that Setup returned.
func (o *Driver) checkOn(req core.NetworkRequest, a core.Attachment) error {
	name, _ := core.OverlayName(a.Network)
	v, err := o.get(name)
	if err != nil {
		return fmt.Errorf("%w: %w", err, errdefs.ErrFailedPrecondition)
	}
	defer v.done()
	return v.path.CheckAttached(string(req.Sandbox), req.Namespace)
}

// Counted are the counters of interfaces on overlays, read once for many sandboxes.
type Counted map[string]map[string]core.NetStats

// Of returns those of a sandbox's interface.
func (c Counted) Of(o *Driver, req *core.NetworkRequest, a core.Attachment) (core.NetStats, bool) {
	name, ok := core.OverlayName(a.Network)
	if !ok {
		return core.NetStats{}, false
	}
	if _, read := c[name]; !read {
		c[name] = o.counters(name)
	}
	s, ok := c[name][string(req.Sandbox)]
	s.Name = a.Interface
	return s, ok
}

// counters returns those of all interfaces on an overlay, none where it is being taken away.
func (o *Driver) counters(name string) map[string]core.NetStats {
	all := map[string]core.NetStats{}
	v, err := o.get(name)
	if err != nil {
		return all
	}
	defer v.done()
	list, err := v.path.Counters()
	if err != nil {
		o.log.Warn("cannot read the counters of an overlay", "network", name, "error", err.Error())
	}
	for key, s := range list {
		// The sandbox's end sends the packets that this end receives.
		all[key] = kernel.OtherEnd(core.NetStats{
			RxBytes: s.RxBytes, RxPackets: s.RxPackets, RxErrors: s.RxErrors, RxDropped: s.RxDropped,
			TxBytes: s.TxBytes, TxPackets: s.TxPackets, TxErrors: s.TxErrors, TxDropped: s.TxDropped,
		}, "")
	}
	return all
}

// Recover implements network.Driver: it adopts the data paths of an earlier process and removes interfaces that belong to no live
// request. Packets of others flow meanwhile.
func (o *Driver) Recover(_ context.Context, live []core.NetworkRequest) error {
	o.define.Lock()
	defer o.define.Unlock()
	on := map[string][]core.ID{}
	for _, req := range live {
		for _, a := range req.Last.Interfaces {
			if name, ok := core.OverlayName(a.Network); ok {
				on[name] = append(on[name], req.Sandbox)
			}
		}
		o.served.adopt(req)
	}
	return o.guard.Adopt(func() error {
		var errs []error
		known := map[string]bool{}
		for _, v := range o.all() {
			name, err := o.adopt(v, on)
			known[name] = true
			errs = append(errs, err)
		}
		if o.dir == "" {
			return errors.Join(errs...)
		}
		// Data paths without a stored definition.
		list, err := vxlan.List(o.dir)
		for _, name := range list {
			if !known[name] {
				errs = append(errs, o.keys.Remove(o.dir, name))
			}
		}
		return errors.Join(append(errs, err)...)
	})
}

// adopt adopts one data path. A failure does not affect the others; the next Open tries again.
func (o *Driver) adopt(v *openOverlay, on map[string][]core.ID) (name string, err error) {
	v.use.Lock()
	defer v.use.Unlock()
	name = v.def.Name
	if v.path == nil {
		for _, id := range on[name] {
			v.unseen.Store(id, true)
		}
		path, err := vxlan.Open(o.dir, o.pathOf(v.def), o.log)
		if err != nil {
			o.log.Error("cannot adopt an overlay; it is tried again when it is opened", "network", name, "error", err.Error())
			return name, nil
		}
		v.path = path
	}
	return name, v.tidyLocked(func(id core.ID) bool { return slices.Contains(on[name], id) })
}

// tidyLocked removes the interfaces that belong to no live sandbox.
func (v *openOverlay) tidyLocked(alive func(core.ID) bool) error {
	var errs []error
	for _, a := range v.path.Attached() {
		if a.Key != ingress.Key && !alive(core.ID(a.Key)) {
			errs = append(errs, v.path.Detach(a.Key))
		}
	}
	v.unseen.Clear()
	return errors.Join(errs...)
}
