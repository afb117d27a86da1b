// Package network gives a sandbox's network namespace its interfaces and takes
// them away again: by a bridge of our own made in-process (builtin.go), by CNI
// plugins (cni.go), or not at all (host network, loopback only).
//
// It is core.Network's implementation and knows nouns only: no engine, no
// faces and none of their words. Subpackages: ipam (addresses), ports (who has
// which port of the host), nft (rules), dns (resolv.conf, hosts, hostname).
//
// Start at Network.
package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/ipam"
)

// Options are what New needs.
type Options struct {
	Config Config
	// Store is a durable drawer: the mode and ranges that were chosen once.
	// Required.
	Store core.KV
	// Leases keeps who holds which address; nil is Store. A drawer without
	// durability will do where records of sandboxes do not outlive a boot
	// either: each lease and each release is one write.
	Leases core.KV
	// StateDir is a directory for what CNI plugins answered. Required in mode
	// cni.
	StateDir string
	Logger   *slog.Logger // nil: slog.Default
	// Now is the clock that freed addresses rest by; nil: time.Now.
	Now func() time.Time
}

// Network implements core.Network.
type Network struct {
	cfg    Config
	mode   Mode // builtin or cni, never auto
	store  core.KV
	log    *slog.Logger
	leases *ipam.Leases
	bridge *bridge
	cni    *cni

	mu  sync.Mutex // guards set; serializes what chooses ranges
	set ranges
}

var _ core.Network = (*Network)(nil)

// Keys in the drawer.
const (
	keyMode   = "mode"
	keyRanges = "ranges"
)

// ranges is the record of where addresses come from.
type ranges struct {
	// From is the PodCIDR (and whether IPv6 was asked for) that it was made
	// from: another one in the configuration makes it anew.
	From  string   `json:"from"`
	CIDRs []string `json:"cidrs"`
}

// New reads what was chosen and leased before, and chooses what was not. It
// changes nothing on the host: that is left to the first Setup, or to Recover,
// which must be called before anything else when sandboxes may be alive.
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
	n := &Network{cfg: o.Config.filled(), store: o.Store, log: o.Logger}
	var err error
	if n.mode, err = n.decideMode(); err != nil {
		return nil, err
	}
	if n.mode == ModeCNI && o.StateDir == "" {
		return nil, fmt.Errorf("network: no state directory for CNI: %w", errdefs.ErrInvalidArgument)
	}
	n.leases, err = ipam.Open(ipam.Options{KV: o.Leases, Rest: time.Duration(n.cfg.LeaseRest) * time.Second, Now: o.Now})
	if err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	n.cni = newCNI(n.cfg.CNI, o.StateDir, n.store, n.log)
	n.bridge = newBridge(n.cfg, n.leases, n.log)
	if err := n.loadRanges(); err != nil {
		return nil, err
	}
	return n, nil
}

// Close lets go of sockets and ends the watch of other programs' rules.
// Sandboxes keep their network.
func (n *Network) Close() error { return n.bridge.close() }

// Release takes the builtin bridge and all rules of ours off the host, for an
// agent that goes and leaves nobody behind. The next Setup makes them again.
// FailedPrecondition when sandboxes hold addresses.
func (n *Network) Release(context.Context) error {
	if err := n.bridge.release(); err != nil {
		return fmt.Errorf("release network: %w", err)
	}
	return nil
}

// decideMode settles auto once and for all.
func (n *Network) decideMode() (Mode, error) {
	if n.cfg.Mode != ModeAuto {
		return n.cfg.Mode, nil
	}
	switch stored, err := n.store.Get(keyMode); {
	case err == nil && (Mode(stored) == ModeBuiltin || Mode(stored) == ModeCNI):
		return Mode(stored), nil
	case err == nil:
		return "", fmt.Errorf("network: stored mode %q: %w", stored, errdefs.ErrDataLoss)
	case !errdefs.IsNotFound(err):
		return "", fmt.Errorf("network: read mode: %w", err)
	}
	mode := ModeBuiltin
	if confs, err := confFiles(n.cfg.CNI.ConfDir); err == nil && !allPodmans(confs) {
		mode = ModeCNI
	}
	if err := n.store.Put(keyMode, []byte(mode)); err != nil {
		return "", fmt.Errorf("network: store mode: %w", err)
	}
	n.log.Info("network mode decided", "mode", string(mode), "cni_conf_dir", n.cfg.CNI.ConfDir)
	return mode, nil
}

// loadRanges takes the ranges of the configuration, those stored, or chooses. mu is
// not needed: nobody else has the Network yet.
func (n *Network) loadRanges() error {
	from := n.cfg.PodCIDR
	if n.cfg.IPv6 && from != FromKubelet {
		from += " +ipv6"
	}
	var stored ranges
	switch raw, err := n.store.Get(keyRanges); {
	case err == nil:
		if err := json.Unmarshal(raw, &stored); err != nil {
			return fmt.Errorf("network: stored ranges: %w: %w", err, errdefs.ErrDataLoss)
		}
	case !errdefs.IsNotFound(err):
		return fmt.Errorf("network: read ranges: %w", err)
	}
	if stored.From == from && len(stored.CIDRs) > 0 {
		return n.useRanges(stored, false)
	}
	next := ranges{From: from}
	switch {
	case n.mode == ModeCNI || n.cfg.PodCIDR == FromKubelet:
		n.set = next
		return nil
	case n.cfg.PodCIDR == "":
		taken, err := hostRoutes(n.cfg.Bridge)
		if err != nil {
			return fmt.Errorf("network: %w", err)
		}
		r, err := ipam.Choose(taken)
		if err != nil {
			return fmt.Errorf("network: %w", err)
		}
		n.log.Info("address range chosen", "range", r.Prefix.String())
		next.CIDRs = append(next.CIDRs, r.Prefix.String())
	default:
		next.CIDRs = n.cfg.cidrs()
	}
	if n.cfg.IPv6 && !slices.ContainsFunc(next.CIDRs, func(c string) bool { return strings.Contains(c, ":") }) {
		next.CIDRs = append(next.CIDRs, ipam.ChooseULA().Prefix.String())
	}
	return n.useRanges(next, true)
}

// useRanges parses, stores and uses ranges, or leaves all as it was. Preconditions:
// mu is held, or nobody else has the Network yet.
func (n *Network) useRanges(next ranges, store bool) error {
	parsed, err := ipam.ParseRanges(next.CIDRs)
	if err != nil {
		return fmt.Errorf("set ranges: %w", err)
	}
	if store {
		raw, err := json.Marshal(next)
		if err != nil {
			return err
		}
		if err := n.store.Put(keyRanges, raw); err != nil {
			return fmt.Errorf("set ranges: %w", err)
		}
	}
	n.set = next
	n.leases.SetRanges(parsed)
	n.cni.setRanges(parsed)
	return nil
}

// SetRanges implements core.Network. The ranges are stored; they hold until
// the next call or until the configuration names others. Addresses that are
// leased stay with their sandboxes.
func (n *Network) SetRanges(_ context.Context, cidrs []string) error {
	var given []string
	for _, c := range cidrs {
		if c = strings.TrimSpace(c); c != "" {
			given = append(given, c)
		}
	}
	if len(given) == 0 {
		return fmt.Errorf("set ranges: none given: %w", errdefs.ErrInvalidArgument)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if slices.Equal(given, n.set.CIDRs) {
		return nil
	}
	if err := n.useRanges(ranges{From: n.set.From, CIDRs: given}, true); err != nil {
		return err
	}
	n.log.Info("address ranges changed", "ranges", given)
	// The bridge gets its new address with the next sandbox.
	n.bridge.stale()
	return nil
}

// Info implements core.Network.
func (n *Network) Info(ctx context.Context) (core.NetworkInfo, error) {
	info := core.NetworkInfo{Mode: string(n.mode), Ready: true}
	for _, r := range n.leases.Ranges() {
		info.Ranges = append(info.Ranges, r.Prefix)
	}
	switch {
	case n.mode == ModeCNI:
		info.Reason = n.cni.notReady(ctx)
	case len(info.Ranges) == 0:
		info.Reason = `no address range configured: network.pod_cidr is "from-kubelet" and none was given yet`
	default:
		info.Reason = n.bridge.trouble()
		return info, nil
	}
	info.Ready = info.Reason == ""
	return info, nil
}

// Setup implements core.Network. A request without a Namespace is one for the
// host's network. When it fails nothing is left; calling it again for the same
// sandbox begins anew.
func (n *Network) Setup(ctx context.Context, req core.NetworkRequest) (core.NetworkStatus, error) {
	st, err := n.setup(ctx, req)
	if err != nil {
		return core.NetworkStatus{}, fmt.Errorf("set up network of sandbox %s: %w", req.Sandbox.Short(), err)
	}
	return st, nil
}

func (n *Network) setup(ctx context.Context, req core.NetworkRequest) (core.NetworkStatus, error) {
	if err := context.Cause(ctx); err != nil {
		return core.NetworkStatus{}, err
	}
	switch {
	case req.Namespace == "":
		return hostStatus()
	case req.Config.Name == core.NetworkNone:
		return noneStatus(req.Namespace)
	case n.mode == ModeCNI:
		return n.cni.add(ctx, req)
	default:
		return n.bridge.add(ctx, req)
	}
}

// Check implements core.Network: link, address and ports must be there as
// Setup answered. FailedPrecondition says what is missing.
func (n *Network) Check(ctx context.Context, req core.NetworkRequest) error {
	var err error
	switch Mode(req.Last.Mode) {
	case ModeBuiltin:
		err = n.bridge.check(req)
	case ModeCNI:
		err = n.cni.check(ctx, req)
	case statusNone:
		err = checkLoopback(req.Namespace)
	}
	if err != nil {
		return fmt.Errorf("check network of sandbox %s: %w", req.Sandbox.Short(), err)
	}
	return nil
}

// Teardown implements core.Network. With the builtin bridge it returns
// addresses and ports and leaves the link alone: the link goes when the engine
// unpins the namespace, by the kernel and behind nobody's back, where deleting
// it by hand would cost 9 to 23 ms. Whatever survives (somebody else keeps the
// namespace) is deleted before its address is given away again.
func (n *Network) Teardown(ctx context.Context, req core.NetworkRequest) error {
	// Both are asked whatever the mode is now: the sandbox may be older than
	// the configuration, or its Setup may have been cut off.
	err := errors.Join(n.bridge.del(req), n.cni.del(ctx, req))
	if err == nil && req.Last.Mode == string(ModeBuiltin) {
		err = n.leaveBuiltin()
	}
	if err != nil {
		return fmt.Errorf("tear down network of sandbox %s: %w", req.Sandbox.Short(), err)
	}
	return nil
}

// Sandboxes implements core.Network.
func (n *Network) Sandboxes(context.Context) ([]core.ID, error) {
	seen := map[core.ID]bool{}
	for _, l := range n.leases.All() {
		seen[l.Sandbox] = true
	}
	for _, id := range n.bridge.table.Sandboxes() {
		seen[id] = true
	}
	for _, id := range n.cni.sandboxes() {
		seen[id] = true
	}
	ids := make([]core.ID, 0, len(seen))
	for id := range seen {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, nil
}

// Recover brings the host to what the sandboxes that are alive need, after a
// start of the agent, a boot, or a flush of all rules: bridge, rules and ports
// are made anew from the leases; leases of others are returned and what is left
// of them removed. Requests of live sandboxes carry their Last status.
func (n *Network) Recover(ctx context.Context, live []core.NetworkRequest) error {
	alive := map[core.ID]bool{}
	for _, req := range live {
		alive[req.Sandbox] = true
	}
	err := n.bridge.recover(live, alive)
	err = errors.Join(err, n.cni.recover(ctx, alive), n.leaveBuiltin())
	if err != nil {
		return fmt.Errorf("recover network: %w", err)
	}
	return nil
}

// leaveBuiltin takes the builtin bridge away, with its address and rules, once
// sandboxes are given to CNI plugins and the last one on the bridge is gone: its
// route would hide the plugins' addresses.
func (n *Network) leaveBuiltin() error {
	if n.mode != ModeCNI || len(n.leases.All()) > 0 || !n.bridge.ours() {
		return nil
	}
	n.log.Info("the builtin bridge goes: the network is CNI's now", "bridge", n.cfg.Bridge)
	return n.bridge.release()
}

// confFiles lists CNI configurations in the order in which they are tried.
// allPodmans reports whether every configuration is one that Podman's package
// put there for Podman alone: that is nobody's wish for CNI here.
func allPodmans(files []string) bool {
	return !slices.ContainsFunc(files, func(f string) bool { return !strings.Contains(filepath.Base(f), "podman") })
}

func confFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext == ".conflist" || ext == ".conf" || ext == ".json" {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, nil
}
