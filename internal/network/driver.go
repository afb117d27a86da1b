package network

import (
	"context"
	"errors"
	"slices"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/netconf"
)

// Driver connects sandboxes to the networks of one kind. Network decides which driver makes an interface, where the
// default route and the host's ports of a sandbox lead, and which names it sees; a driver makes and removes interfaces
// and addresses. Interfaces outlive the agent: a driver stores enough for Recover.
//
// Errors carry a class of errdefs. All calls may come at the same time, but for those of one sandbox.
type Driver interface {
	// Attach makes the interfaces that req.Config names, all of them on networks of this driver, and returns st with
	// them. st is the sandbox's status so far; in the first call of a sandbox its Mode is empty, and the driver also
	// forwards the host ports of req.Config. Where it can, the driver leases the addresses of req.Last again. After an
	// error nothing of the call is left.
	Attach(ctx context.Context, req core.NetworkRequest, st core.NetworkStatus) (core.NetworkStatus, error)
	// Detach removes the interface of a running sandbox on a network. Addresses are kept until Release. It is
	// idempotent.
	Detach(ctx context.Context, req core.NetworkRequest, network string) error
	// Release releases the addresses and rules of a sandbox on a network; on all networks of the driver, with the
	// claims of host ports, if network is empty. The namespace need not exist, and interfaces in it may be left to the
	// kernel. It is idempotent.
	Release(ctx context.Context, req core.NetworkRequest, network string) error
	// Check compares the interfaces of req.Last on networks of this driver with the kernel. FailedPrecondition
	// names the missing part.
	Check(ctx context.Context, req core.NetworkRequest) error
	// Recover restores the networks after a start of the agent, and releases the addresses of sandboxes that are not
	// in live.
	Recover(ctx context.Context, live []core.NetworkRequest) error
	// Holders returns the sandboxes that hold an address or a rule of this driver.
	Holders() []core.ID
}

// The methods of a driver that keeps more on the host than the interfaces of sandboxes.
type (
	// withdrawer removes all of it, for an agent that ends. FailedPrecondition when sandboxes have addresses.
	withdrawer interface {
		Withdraw(ctx context.Context) error
	}
	// stopper closes sockets and ends goroutines; all in the kernel stays.
	stopper interface{ Stop() error }
	// mender restores it where another program has changed it, and returns the differences. Without links it compares
	// only kernel parameters and rules.
	mender interface {
		Mend(links bool) []kernel.Change
	}
)

// The steps of Teardown and of Recover. Each driver is a step; the others do the work that several drivers share.
type (
	releaser interface {
		Release(ctx context.Context, req core.NetworkRequest, network string) error
	}
	recoverer interface {
		Recover(ctx context.Context, live []core.NetworkRequest) error
	}
)

// recoverFunc is a step of Recover that is no driver.
type recoverFunc func(ctx context.Context, live []core.NetworkRequest) error

func (f recoverFunc) Recover(ctx context.Context, live []core.NetworkRequest) error {
	return f(ctx, live)
}

// kind is a driver in its place.
type kind struct {
	Driver
	// has reports whether the network is one that the driver attaches sandboxes to, and returns the name that
	// NetworkStatus has for it.
	has func(network string) (name string, ok bool)
	// base says that the driver makes the default network, in one call.
	base bool
}

// drivers are the drivers of a node, in their order.
type drivers struct {
	kinds    []kind
	teardown []releaser
	recovery []recoverer
}

// arrange puts the drivers in order. Teardown begins with the addresses that most sandboxes have, and CNI plugins, which
// may take long, come last. Recover begins with overlays, because other nodes wait for them; default routes, ports and
// names need all interfaces; and a published port yields to the port of a sandbox, so that the ingress comes last.
func arrange(n *Network) drivers {
	nowhere := func(string) (string, bool) { return "", false } // plugins attach no running sandbox
	standard := func(network string) (string, bool) {
		_, defined := n.bridges.users.Has(network) // before the configuration gave the bridge this name
		return n.bridges.standard.Name(), !defined && n.mode == netconf.ModeBuiltin && slices.Contains(n.bridges.standard.Names(), network)
	}
	onOverlay := func(network string) (string, bool) {
		_, ok := core.OverlayName(network)
		return network, ok
	}
	dropBuiltin := func(ctx context.Context, _ []core.NetworkRequest) error { return n.dropBuiltin(ctx) }
	return drivers{
		kinds:    []kind{{n.bridges.standard, standard, true}, {n.bridges.users, n.bridges.users.Has, false}, {n.Overlays, onOverlay, false}, {n.cni, nowhere, true}},
		teardown: []releaser{n.bridges.standard, resolver{n}, n.bridges.users, n.Overlays, n.cni},
		recovery: []recoverer{n.Overlays, n.bridges.standard, n.bridges.users, recoverFunc(n.restoreShared), recoverFunc(n.lists.restore), n.cni, recoverFunc(dropBuiltin), n.ingress},
	}
}

// route returns the driver that attaches sandboxes to a network, and the name that NetworkStatus has for the network.
func (d *drivers) route(network string) (k kind, name string, ok bool) {
	for _, k := range d.kinds {
		if name, ok := k.has(network); ok {
			return k, name, true
		}
	}
	return kind{}, "", false
}

// further is route for networks that are made one by one, beside the default network.
func (d *drivers) further(network string) (k kind, name string, ok bool) {
	k, name, ok = d.route(network)
	return k, name, ok && !k.base
}

// release makes each driver release the sandbox, in each mode: the sandbox may be older than the configuration, or its
// Setup may have been interrupted.
func (d *drivers) release(ctx context.Context, req core.NetworkRequest) error {
	var errs []error
	for _, step := range d.teardown {
		errs = append(errs, step.Release(ctx, req, ""))
	}
	return errors.Join(errs...)
}

func (d *drivers) recover(ctx context.Context, live []core.NetworkRequest) error {
	var errs []error
	for _, step := range d.recovery {
		errs = append(errs, step.Recover(ctx, live))
	}
	return errors.Join(errs...)
}

func (d *drivers) withdraw(ctx context.Context) error {
	var errs []error
	for _, k := range d.kinds {
		if w, ok := k.Driver.(withdrawer); ok {
			errs = append(errs, w.Withdraw(ctx))
		}
	}
	return errors.Join(errs...)
}

func (d *drivers) stop() error {
	var errs []error
	for _, k := range slices.Backward(d.kinds) {
		if s, ok := k.Driver.(stopper); ok {
			errs = append(errs, s.Stop())
		}
	}
	return errors.Join(errs...)
}
