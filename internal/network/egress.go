package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/egress"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/nft"
)

// lists applies the egress lists of sandboxes.
type lists struct {
	n *Network
	// journals is the directory of their logs.
	journals string
}

// Restrict implements core.Network.
func (n *Network) Restrict(ctx context.Context, req core.NetworkRequest) (core.NetworkStatus, error) {
	if len(req.Last.Egress) == 0 && len(req.Config.Egress) > 0 && req.Namespace != "" { // the rules decide about these addresses from now on
		if err := kernel.OpenMetadataIn(req.Namespace); err != nil {
			return req.Last, err
		}
	}
	st, err := n.lists.restrict(ctx, req, req.Last)
	if err != nil {
		return req.Last, fmt.Errorf("egress list of sandbox %s: %w", req.Sandbox.Short(), err)
	}
	return st, nil
}

// restrict makes the rules of a sandbox's egress list, and has its name server follow them. The rules stand when it returns,
// also after an error. Without a list it removes them.
func (l lists) restrict(ctx context.Context, req core.NetworkRequest, st core.NetworkStatus) (core.NetworkStatus, error) {
	if len(req.Config.Egress) == 0 && len(st.Egress) == 0 {
		return st, nil
	}
	if req.Namespace == "" || st.Mode == netconf.StatusHost {
		return st, fmt.Errorf("it uses the network of the host or of another container, where no list can be enforced: %w", errdefs.ErrFailedPrecondition)
	}
	ns, err := os.Open(req.Namespace)
	if err != nil {
		return st, err
	}
	defer func() { _ = ns.Close() }()
	before := st
	st.Egress = slices.Clone(req.Config.Egress)
	if len(st.Egress) == 0 {
		return l.unrestrict(ctx, ns, req, st)
	}
	rules, err := l.rules(req.Config, st)
	if err != nil {
		return before, err
	}
	if err := nft.Restrict(ns, rules); err != nil {
		return before, err
	}
	rules.Unverified = rules.List.Verify && !slices.Contains(before.Egress, egress.VerifySNI)
	st.Resolver = names.Address()
	box := l.n.box(req, st)
	box.Egress.Built = time.Now().UnixNano()
	if err := l.n.names.Change(ctx, box); err != nil {
		return before, err
	}
	if len(before.Egress) == 0 && before.Resolver.IsValid() || len(before.Egress) > 0 {
		return st, nft.CutEgress(ns, rules)
	}
	return st, nil
}

// unrestrict removes the rules. The name server stays, because programs have read that it is theirs.
func (l lists) unrestrict(ctx context.Context, ns *os.File, req core.NetworkRequest, st core.NetworkStatus) (core.NetworkStatus, error) {
	err := l.n.names.Change(ctx, l.n.box(req, st))
	return st, errors.Join(err, kernel.CloseMetadataIn(req.Namespace, req.Config), nft.Unrestrict(ns))
}

// egressRules returns the rules of a sandbox's list.
func (l lists) rules(cfg core.NetworkConfig, st core.NetworkStatus) (nft.Egress, error) {
	list, learn, err := egress.ParseOrLearn(cfg.Egress)
	if err != nil {
		return nft.Egress{}, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	return nft.Egress{List: list, Learn: learn, Cluster: l.cluster(st)}, nil
}

// cluster returns the addresses of the preset cluster: those of the sandbox's networks and of the configuration.
func (l lists) cluster(st core.NetworkStatus) (list []netip.Prefix) {
	for _, i := range st.Interfaces {
		for _, a := range i.Addrs {
			list = append(list, a.Masked())
		}
	}
	for _, a := range st.Addrs {
		if !slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) }) {
			list = append(list, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	for _, text := range l.n.cfg.Cluster {
		if p, err := netip.ParsePrefix(text); err == nil { // the configuration was checked
			list = append(list, p.Masked())
		}
	}
	return list
}

// restriction returns the list of a sandbox for its name server; nil for none.
func (l lists) restriction(cfg core.NetworkConfig, st core.NetworkStatus) *names.Restriction {
	if len(cfg.Egress) == 0 {
		return nil
	}
	_, learn, _ := egress.ParseOrLearn(cfg.Egress)
	r := &names.Restriction{List: cfg.Egress, Cluster: l.cluster(st), Learn: learn}
	if learn {
		r.List = []string{egress.None}
	}
	return r
}

// EgressLog returns the path of a sandbox's egress log. The file exists from the first restriction until the sandbox stops.
func (n *Network) EgressLog(id core.ID) string { return names.JournalFile(n.lists.journals, id) }

// end removes the log of a sandbox that stops.
func (l lists) end(id core.ID) error {
	err := os.Remove(names.JournalFile(l.journals, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// restoreEgress repeats the change of a list at which an agent died.
func (l lists) restore(ctx context.Context, live []core.NetworkRequest) error {
	var errs []error
	for _, req := range live {
		if slices.Equal(req.Config.Egress, req.Last.Egress) {
			continue
		}
		if _, err := l.restrict(ctx, req, req.Last); err != nil {
			errs = append(errs, fmt.Errorf("egress list of sandbox %s: %w", req.Sandbox.Short(), err))
		}
	}
	return errors.Join(errs...)
}

// checkEgress returns FailedPrecondition if another program has changed the rules of a sandbox's list.
func (l lists) check(req core.NetworkRequest) error {
	rules, err := l.rules(req.Config, req.Last)
	if err != nil {
		return err
	}
	ns, err := os.Open(req.Namespace)
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	return nft.CheckEgress(ns, rules)
}

// sweepJournals removes the logs of sandboxes that are gone.
func (l lists) sweep(live []core.NetworkRequest) {
	alive := map[string]bool{}
	for _, req := range live {
		alive[string(req.Sandbox)] = true
	}
	entries, _ := os.ReadDir(l.journals) // there may be none
	for _, e := range entries {
		if !alive[e.Name()] {
			_ = os.Remove(filepath.Join(l.journals, e.Name()))
		}
	}
}
