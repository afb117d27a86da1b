// Package network gives a sandbox's network namespace its interfaces and removes them again. Each kind of network has a
// driver: the builtin bridge, the networks that users define, CNI plugins, and overlays.
//
// It implements core.Network and uses only core's nouns: it knows neither engine nor faces.
// Subpackages that know no driver: netconf (configuration), kernel (links and namespaces), ipam
// (addresses), ports (claims of host ports), nft (rules), names (the name server), dns (resolv.conf,
// hosts, hostname).
//
// Start at Network, then Driver.
package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/egress"
	"github.com/longshore/longshore/internal/network/bridge"
	"github.com/longshore/longshore/internal/network/cni"
	"github.com/longshore/longshore/internal/network/ingress"
	"github.com/longshore/longshore/internal/network/ipam"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/nft"
	"github.com/longshore/longshore/internal/network/overlay"
	"github.com/longshore/longshore/internal/network/plugins"
	"github.com/longshore/longshore/internal/network/ports"
	"github.com/longshore/longshore/internal/network/user"
)

// Options are the parameters of New.
type Options struct {
	Config netconf.Config
	// Store is a durable key-value store for the mode and the ranges, which are chosen once.
	// Required.
	Store core.KV
	// Leases stores the address leases; nil uses Store. Each lease and each release is one write,
	// so a store that does not outlive a boot is faster; it suffices if the records of sandboxes do
	// not outlive a boot either.
	Leases core.KV
	// Avoid are ranges that are chosen only if no other is free, because networks over several nodes
	// are likely to use them.
	Avoid []netip.Prefix
	// StateDir is the directory for the results of CNI plugins. Required in mode cni.
	StateDir string
	// Names has the name server of networks that users define run; nil runs this very program as
	// one (names.Arg).
	Names *names.Options
	// Holder keeps the sockets of host ports while there is no agent; nil: nobody does.
	Holder core.Holder
	Logger *slog.Logger // nil: slog.Default
	// Now is the clock that decides when freed addresses may be leased again; nil is time.Now.
	Now func() time.Time
}

// Network implements core.Network.
type Network struct {
	cfg     netconf.Config
	avoid   []netip.Prefix
	mode    netconf.Mode // builtin or cni, never auto
	store   core.KV
	log     *slog.Logger
	leases  *ipam.Leases
	claims  ports.Claims // of the host's ports
	bridges bridges
	cni     *cni.Driver
	names   *names.Client
	lists   lists
	ingress *ingress.Ingress
	// Overlays are the networks that reach over several nodes.
	Overlays *overlay.Driver

	drivers drivers

	mu  sync.Mutex // guards set; serializes the choice of ranges
	set ranges
}

var _ core.Network = (*Network)(nil)

// The keys in the store.
const (
	keyMode   = "mode"
	keyRanges = "ranges"
)

// reserved are names that mean something else where a network is named.
var reserved = []string{core.NetworkNone, netconf.StatusHost, "bridge", "container", "ns", "private", "slirp4netns", "pasta", "podman"}

// New reads the stored mode, ranges and leases, and chooses mode and ranges if none are stored. It
// changes nothing on the host: the first Setup or Recover does. If sandboxes may be alive, Recover
// must be the first call.
func New(o Options) (*Network, error) {
	if o.Store == nil {
		return nil, fmt.Errorf("network: no store: %w", errdefs.ErrInvalidArgument)
	}
	if err := o.Config.Check(); err != nil {
		return nil, err
	}
	if o.Leases == nil {
		o.Leases = o.Store
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	n := &Network{cfg: o.Config.Filled(), store: o.Store, log: o.Logger, avoid: o.Avoid}
	n.claims.Holder, n.claims.Logger = o.Holder, o.Logger
	var err error
	if n.mode, err = n.decideMode(); err != nil {
		return nil, err
	}
	if n.mode == netconf.ModeCNI && o.StateDir == "" {
		return nil, fmt.Errorf("network: no state directory for CNI: %w", errdefs.ErrInvalidArgument)
	}
	n.leases, err = ipam.Open(ipam.Options{KV: o.Leases, Rest: time.Duration(n.cfg.LeaseRest) * time.Second, Now: o.Now})
	if err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	n.cni = cni.New(n.cfg.CNI, o.StateDir, n.store, n.log)
	bridgeOptions := bridge.Options{Config: n.cfg, Leases: n.leases, Claims: &n.claims, PortsOn: n.bridges.portsNetwork, Logger: n.log}
	n.bridges.builtin = n.mode == netconf.ModeBuiltin
	n.bridges.standard = bridge.New(bridgeOptions)
	n.lists = lists{n, filepath.Join(o.StateDir, "egress")}
	n.names = names.New(namesOptions(o))
	n.ingress = ingress.New(filepath.Join(o.StateDir, "ingress"), &n.claims, n.usedRanges, n.log)
	if err := n.loadRanges(); err != nil {
		return nil, err
	}
	n.bridges.users, err = user.New(user.Options{
		Bridge: bridgeOptions, Store: n.store, Leases: o.Leases, Reserved: append(slices.Clone(reserved), n.bridges.standard.Names()...), Used: n.usedRanges, Avoid: n.avoid, Names: n.names, Now: o.Now,
	})
	if err != nil {
		return nil, err
	}
	opts := overlay.Options{
		KV: o.Leases, DNS: n.cfg.DNS, Names: n.names, Ingress: n.ingress, Logger: n.log,
		MakeRoom: func(def core.Overlay, others []core.Overlay) error { return makeRoom(n, def, others) },
		Taken:    func() map[netip.Prefix]string { return takenRanges(n) },
	}
	if o.StateDir != "" {
		opts.Dir = filepath.Join(o.StateDir, "overlays")
	}
	if n.Overlays, err = overlay.New(opts); err != nil {
		return nil, err
	}
	n.drivers = arrange(n)
	return n, nil
}

func namesOptions(o Options) names.Options {
	opts := names.Options{Dir: filepath.Join(o.StateDir, "names"), Command: []string{"/proc/self/exe", names.Arg}}
	if o.Names != nil {
		opts = *o.Names
	}
	opts.Logger = o.Logger
	opts.Journals = filepath.Join(o.StateDir, "egress")
	opts.Redirect = func(namespace *os.File, udp, tcp uint16) error {
		return nft.Redirect(namespace, names.Address(), udp, tcp)
	}
	opts.Verify = func(namespace *os.File, list []string, ports [2]uint16) error {
		parsed, err := egress.Parse(list)
		if err != nil {
			return err
		}
		return nft.Verify(namespace, parsed, names.SpliceAddresses(), ports)
	}
	return opts
}

// Close closes sockets and ends the watch of other programs' rules. Sandboxes keep their network.
func (n *Network) Close() error {
	n.names.Close()
	return errors.Join(n.drivers.stop(), n.claims.Close())
}

// Release removes our bridges and all our rules from the host, for an agent that ends and leaves
// no sandboxes. The next Setup makes them again. FailedPrecondition when sandboxes have
// addresses.
func (n *Network) Release(ctx context.Context) error {
	if err := n.drivers.withdraw(ctx); err != nil {
		return fmt.Errorf("release network: %w", err)
	}
	return nil
}

// decideMode replaces auto by a mode, once and for all.
func (n *Network) decideMode() (netconf.Mode, error) {
	if n.cfg.Mode != netconf.ModeAuto {
		return n.cfg.Mode, nil
	}
	switch stored, err := n.store.Get(keyMode); {
	case err == nil && (netconf.Mode(stored) == netconf.ModeBuiltin || netconf.Mode(stored) == netconf.ModeCNI):
		return netconf.Mode(stored), nil
	case err == nil:
		return "", fmt.Errorf("network: stored mode %q: %w", stored, errdefs.ErrDataLoss)
	case !errdefs.IsNotFound(err):
		return "", fmt.Errorf("network: read mode: %w", err)
	}
	mode := netconf.ModeBuiltin
	if confs, err := plugins.Files(n.cfg.CNI.ConfDir); err == nil && !allPodmans(confs) {
		mode = netconf.ModeCNI
	}
	if err := n.store.Put(keyMode, []byte(mode)); err != nil {
		return "", fmt.Errorf("network: store mode: %w", err)
	}
	n.log.Info("network mode decided", "mode", string(mode), "cni_conf_dir", n.cfg.CNI.ConfDir)
	return mode, nil
}

// Info implements core.Network.
func (n *Network) Info(ctx context.Context) (core.NetworkInfo, error) {
	info := core.NetworkInfo{Mode: string(n.mode), Ready: true}
	for _, r := range n.leases.Ranges() {
		info.Ranges = append(info.Ranges, r.Prefix)
	}
	switch {
	case n.mode == netconf.ModeCNI:
		info.Reason = n.cni.NotReady(ctx)
	case len(info.Ranges) == 0:
		info.Reason = `no address range configured: network.pod_cidr is "from-kubelet" and none was given yet`
	default:
		info.Reason = n.bridges.standard.Trouble()
		return info, nil
	}
	info.Ready = info.Reason == ""
	return info, nil
}

// Setup implements core.Network. A request without a Namespace is for the host's network. After an
// error nothing is left; another call for the same sandbox starts from nothing.
func (n *Network) Setup(ctx context.Context, req core.NetworkRequest) (core.NetworkStatus, error) {
	st, err := n.setup(ctx, req)
	if err != nil {
		return core.NetworkStatus{}, fmt.Errorf("set up network of sandbox %s: %w", req.Sandbox.Short(), err)
	}
	return st, nil
}

func (n *Network) setup(ctx context.Context, req core.NetworkRequest) (core.NetworkStatus, error) {
	st, err := n.connect(ctx, req)
	if err != nil || len(req.Config.Egress) == 0 || req.Namespace == "" { // without a namespace it is in another sandbox's network
		return st, err
	}
	st.Egress = nil
	st, err = n.lists.restrict(ctx, req, st)
	if err != nil {
		req.Last = st
		return core.NetworkStatus{}, errors.Join(err, n.undo(ctx, req))
	}
	return st, nil
}

// connect makes the interfaces of Setup.
func (n *Network) connect(ctx context.Context, req core.NetworkRequest) (core.NetworkStatus, error) {
	if err := context.Cause(ctx); err != nil {
		return core.NetworkStatus{}, err
	}
	switch {
	case req.Namespace == "":
		return kernel.HostStatus()
	case req.Config.Name == core.NetworkNone:
		st, err := kernel.NoneStatus(req.Namespace)
		if err == nil { // Nomad gives it interfaces later
			err = kernel.CloseMetadataIn(req.Namespace, req.Config)
		}
		if len(req.Config.Egress) > 0 {
			st.DNS = n.cfg.DNS.Status()
		}
		return st, err
	}
	p, err := planOf(req.Config)
	if err != nil {
		return core.NetworkStatus{}, err
	}
	if len(p.overlays) > 0 {
		return n.setupOver(ctx, req, p)
	}
	return n.setupAll(ctx, req)
}

// Check implements core.Network: link, address and ports must exist as Setup returned them.
// FailedPrecondition names the missing part.
func (n *Network) Check(ctx context.Context, req core.NetworkRequest) error {
	var err error
	switch netconf.Mode(req.Last.Mode) {
	case netconf.ModeBuiltin:
		err = n.checkAttached(ctx, req)
	case netconf.ModeCNI:
		err = errors.Join(n.cni.Check(ctx, req), n.checkAttached(ctx, req))
	case netconf.StatusNone:
		err = kernel.CheckLoopback(req.Namespace)
	}
	if err == nil && len(req.Config.Egress) > 0 && slices.Contains([]string{string(netconf.ModeBuiltin), string(netconf.ModeCNI), netconf.StatusNone}, req.Last.Mode) {
		err = n.lists.check(req)
	}
	if err != nil {
		return fmt.Errorf("check network of sandbox %s: %w", req.Sandbox.Short(), err)
	}
	return nil
}

// Teardown implements core.Network. With the builtin bridge it releases addresses and ports and
// leaves the link: the kernel deletes that in the background when the engine unpins the namespace,
// where deleting it here would take 9 to 23 ms. A link that survives, because somebody else keeps
// the namespace, is deleted before its address is leased again.
func (n *Network) Teardown(ctx context.Context, req core.NetworkRequest) error {
	err := n.drivers.release(ctx, req)
	if err == nil && req.Last.Mode == string(netconf.ModeBuiltin) {
		err = n.dropBuiltin(ctx)
	}
	if err != nil {
		return fmt.Errorf("tear down network of sandbox %s: %w", req.Sandbox.Short(), err)
	}
	return nil
}

// Sandboxes implements core.Network.
func (n *Network) Sandboxes(ctx context.Context) ([]core.ID, error) {
	named, err := n.names.Sandboxes(ctx)
	if err != nil {
		return nil, fmt.Errorf("sandboxes with a name server: %w", err)
	}
	seen := map[core.ID]bool{}
	for _, id := range named {
		seen[id] = true
	}
	for _, k := range n.drivers.kinds {
		for _, id := range k.Holders() {
			seen[id] = true
		}
	}
	ids := make([]core.ID, 0, len(seen))
	for id := range seen {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, nil
}

// Recover restores the host's network for the live sandboxes, after a start of the agent, a boot,
// or a flush of all rules: bridge, rules and ports are rebuilt from the leases, and the leases of
// other sandboxes are released and their links removed. Requests of live sandboxes have their Last
// status.
func (n *Network) Recover(ctx context.Context, live []core.NetworkRequest) error {
	if err := n.drivers.recover(ctx, live); err != nil {
		return fmt.Errorf("recover network: %w", err)
	}
	return nil
}

// restoreShared is the step of Recover for several drivers: the names that sandboxes see, the ports of sandboxes without
// a network, and default routes. It runs after the drivers of bridges. An interface that the request of its sandbox does
// not have was being attached or detached when the agent died: its driver has removed it.
func (n *Network) restoreShared(ctx context.Context, live []core.NetworkRequest) error {
	var errs []error
	var boxes []names.Box
	alive := map[core.ID]bool{}
	for _, req := range live {
		alive[req.Sandbox] = len(req.Last.Ports) > 0 // otherwise the holder may have sockets of ports that the sandbox gave back
		if req.Last.Resolver.IsValid() {
			boxes = append(boxes, n.box(req, req.Last))
		}
		if req.Last.Mode == netconf.StatusNone && len(req.Last.Ports) > 0 { // of a sandbox that is on no network just now
			errs = append(errs, n.claims.Take(req.Sandbox, bridge.Claims(req.Last.Ports)))
			n.claims.Reopen(req.Sandbox, bridge.Claims(req.Last.Ports))
		}
		if i, b := n.bridges.wayOut(req, req.Last); b != nil && req.Last.Interfaces[i].NoDefault {
			if err := b.SetDefaultRoute(req, req.Last.Interfaces[i]); err != nil && !kernel.IsLinkGone(err) {
				errs = append(errs, err)
			}
		}
	}
	n.claims.Sweep(alive)
	n.lists.sweep(live)
	if err := n.names.Recover(ctx, boxes); err != nil { // the sandboxes run, and have all else
		n.log.ErrorContext(ctx, "sandboxes on networks of their own have no name server; the next one that is set up there tries again", "error", err.Error())
	}
	return errors.Join(errs...)
}

// dropBuiltin removes the builtin bridge, with its address and rules, when CNI plugins are configured and
// the last sandbox on the bridge is gone: its route would hide the plugins' addresses.
func (n *Network) dropBuiltin(ctx context.Context) error {
	if n.mode != netconf.ModeCNI || len(n.leases.All()) > 0 || !bridge.Ours(n.cfg.Bridge) {
		return nil
	}
	n.log.InfoContext(ctx, "removing the builtin bridge, because CNI plugins make the network now", "bridge", n.cfg.Bridge)
	return n.bridges.standard.Withdraw(ctx)
}

// allPodmans reports whether every configuration is the one that Podman's package installs for
// Podman alone, which is no sign that CNI is wanted here.
func allPodmans(files []string) bool {
	return !slices.ContainsFunc(files, func(f string) bool { return !strings.Contains(filepath.Base(f), "podman") })
}
