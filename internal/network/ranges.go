package network

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/ipam"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/netconf"
)

// ranges is the record of the address ranges.
type ranges struct {
	// From is the PodCIDR (and " +ipv6") at the time of the choice: with another configuration the
	// ranges are chosen again.
	From  string   `json:"from"`
	CIDRs []string `json:"cidrs"`
}

// loadRanges uses the ranges of the configuration, or those stored, or chooses some. mu is not
// needed: nobody else has the Network yet.
func (n *Network) loadRanges() error {
	from := n.cfg.PodCIDR
	if n.cfg.IPv6 && from != netconf.FromKubelet {
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
	if stored.From == from && len(stored.CIDRs) > 0 && (n.cfg.PodCIDR != "" || !n.toAvoid(stored.CIDRs)) {
		return n.useRanges(stored, false)
	}
	next := ranges{From: from}
	switch {
	case n.mode == netconf.ModeCNI || n.cfg.PodCIDR == netconf.FromKubelet:
		n.set = next
		return nil
	case n.cfg.PodCIDR == "":
		taken, err := kernel.Routes(n.cfg.Bridge)
		if err != nil {
			return fmt.Errorf("network: %w", err)
		}
		r, err := ipam.Choose(append(slices.Clone(taken), n.avoid...))
		if err != nil {
			r, err = ipam.Choose(taken)
		}
		if err != nil {
			return fmt.Errorf("network: %w", err)
		}
		n.log.Info("address range chosen", "range", r.Prefix.String())
		next.CIDRs = append(next.CIDRs, r.Prefix.String())
	default:
		next.CIDRs = n.cfg.Ranges()
	}
	if n.cfg.IPv6 && !slices.ContainsFunc(next.CIDRs, func(c string) bool { return strings.Contains(c, ":") }) {
		next.CIDRs = append(next.CIDRs, ipam.ChooseULA().Prefix.String())
	}
	return n.useRanges(next, true)
}

// toAvoid reports whether one of ranges that were chosen is to be avoided by now.
func (n *Network) toAvoid(cidrs []string) bool {
	return slices.ContainsFunc(cidrs, func(c string) bool {
		p, err := netip.ParsePrefix(c)
		return err == nil && slices.ContainsFunc(n.avoid, p.Overlaps)
	})
}

// useRanges parses, stores and uses ranges. After an error nothing has changed. Preconditions: mu
// is held, or nobody else has the Network yet.
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
	n.cni.SetRanges(parsed)
	return nil
}

// SetRanges implements core.Network. The ranges are stored, and used until the next call or until
// the configuration names others. Sandboxes keep the addresses that they have.
func (n *Network) SetRanges(ctx context.Context, cidrs []string) error {
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
	n.log.InfoContext(ctx, "address ranges changed", "ranges", given)
	// The next sandbox gives the bridge its new address.
	n.bridges.standard.Stale()
	return nil
}

// usedRanges returns the ranges that are in use on this node.
func (n *Network) usedRanges() ([]netip.Prefix, error) {
	taken, err := kernel.Routes(n.cfg.Bridge)
	if err != nil {
		return nil, err
	}
	for _, r := range n.leases.Ranges() {
		taken = append(taken, r.Prefix)
	}
	for _, def := range n.bridges.users.Defined() {
		for _, s := range def.Subnets {
			taken = append(taken, s.Range)
		}
	}
	for _, v := range n.Overlays.List() {
		for _, s := range v.Subnets {
			taken = append(taken, s.Range)
		}
	}
	return taken, nil
}

// makeRoom chooses another range for the builtin network where an overlay needs its, if we have
// chosen it and nobody has configured it. Sandboxes keep the addresses that they have.
func makeRoom(n *Network, def core.Overlay, others []core.Overlay) error {
	if n.cfg.PodCIDR != "" || n.mode != netconf.ModeBuiltin || !slices.ContainsFunc(n.leases.Ranges(), func(r ipam.Range) bool { return r.Prefix.Addr().Is4() && overlaps(def, r.Prefix) }) {
		return nil
	}
	taken, err := kernel.Routes(n.cfg.Bridge)
	if err != nil {
		return err
	}
	for _, def := range n.bridges.users.Defined() {
		for _, s := range def.Subnets {
			taken = append(taken, s.Range)
		}
	}
	for _, other := range append(others, def) {
		for _, s := range other.Subnets {
			taken = append(taken, s.Range)
		}
	}
	// Where one overlay is the next ones will be.
	r, err := ipam.Choose(append(append(slices.Clone(taken), netip.MustParsePrefix("10.0.0.0/8")), n.avoid...))
	if err != nil {
		r, err = ipam.Choose(taken)
	}
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	next := ranges{From: n.set.From, CIDRs: []string{r.Prefix.String()}}
	for _, old := range n.leases.Ranges() {
		if old.Prefix.Addr().Is6() {
			next.CIDRs = append(next.CIDRs, old.Prefix.String())
		}
	}
	if err := n.useRanges(next, true); err != nil {
		return err
	}
	n.bridges.standard.Stale()
	n.log.Info("the builtin network has another address range, because an overlay has the former one", "range", r.Prefix.String(), "overlay", def.Name)
	return nil
}

func overlaps(def core.Overlay, p netip.Prefix) bool {
	return slices.ContainsFunc(def.Subnets, func(s core.OverlaySubnet) bool { return s.Range.Overlaps(p) })
}

// takenRanges returns the ranges of all networks but overlays, and for errors the name of each.
func takenRanges(n *Network) map[netip.Prefix]string {
	taken := map[netip.Prefix]string{}
	for _, r := range n.leases.Ranges() {
		taken[r.Prefix] = "the builtin network, which network.pod_cidr gives another one"
	}
	for _, def := range n.bridges.users.Defined() {
		for _, s := range def.Subnets {
			taken[s.Range] = "network " + def.Name
		}
	}
	return taken
}
