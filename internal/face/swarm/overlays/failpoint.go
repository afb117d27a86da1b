package overlays

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/gossip"
)

// Stages returns the names of all fail points of Options.FailPoint: one before and one after each change of
// the data path and each announcement to other nodes.
func Stages() (all []string) {
	for _, what := range []string{
		"open", "close", "set_peers", "prune", "set_names", "set_services", "set_keys", "set_gossip", "open_ingress", "close_ingress", "publish",
		"member", "begin", "enter", "exit", "announce_peer", "announce_names", "withdraw_peer", "withdraw_names",
	} {
		all = append(all, "overlay."+what+".before", "overlay."+what+".after")
	}
	return all
}

// failPoint is Options.FailPoint.
type failPoint func(stage string) error

// around calls do between the points of its name.
func (p failPoint) around(what string, do func() error) error {
	if err := p.pass("overlay." + what + ".before"); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return p.pass("overlay." + what + ".after")
}

func (p failPoint) pass(stage string) error {
	if !slices.Contains(Stages(), stage) {
		return fmt.Errorf("stage %s is not among Stages, so no test dies there: %w", stage, errdefs.ErrInternal)
	}
	return p(stage)
}

// failing is a Port with the points.
type failing struct {
	Port
	point failPoint
}

// Open implements Port.
func (f failing) Open(ctx context.Context, o core.Overlay) error {
	return f.point.around("open", func() error { return f.Port.Open(ctx, o) })
}

// Close implements Port.
func (f failing) Close(ctx context.Context, name string) error {
	return f.point.around("close", func() error { return f.Port.Close(ctx, name) })
}

// SetPeers implements Port.
func (f failing) SetPeers(ctx context.Context, name string, set map[string]core.OverlayPeer, drop []string) error {
	return f.point.around("set_peers", func() error { return f.Port.SetPeers(ctx, name, set, drop) })
}

// Prune implements Port.
func (f failing) Prune(ctx context.Context, name string) error {
	return f.point.around("prune", func() error { return f.Port.Prune(ctx, name) })
}

// SetNames implements Port.
func (f failing) SetNames(ctx context.Context, name string, byName map[string][]netip.Addr, owners map[netip.Addr]string) error {
	return f.point.around("set_names", func() error { return f.Port.SetNames(ctx, name, byName, owners) })
}

// SetServices implements Port.
func (f failing) SetServices(ctx context.Context, name string, services []core.OverlayService) error {
	return f.point.around("set_services", func() error { return f.Port.SetServices(ctx, name, services) })
}

// SetKeys implements Port.
func (f failing) SetKeys(ctx context.Context, keys []core.OverlayKey) error {
	return f.point.around("set_keys", func() error { return f.Port.SetKeys(ctx, keys) })
}

// SetGossip implements Port.
func (f failing) SetGossip(ctx context.Context, port uint16, members []netip.Addr) error {
	return f.point.around("set_gossip", func() error { return f.Port.SetGossip(ctx, port, members) })
}

// OpenIngress implements Port.
func (f failing) OpenIngress(ctx context.Context, in core.Ingress) error {
	return f.point.around("open_ingress", func() error { return f.Port.OpenIngress(ctx, in) })
}

// CloseIngress implements Port.
func (f failing) CloseIngress(ctx context.Context) error {
	return f.point.around("close_ingress", func() error { return f.Port.CloseIngress(ctx) })
}

// Publish implements Port.
func (f failing) Publish(ctx context.Context, ports []core.PublishedPort) (taken []core.TakenPort, err error) {
	err = f.point.around("publish", func() (err error) {
		taken, err = f.Port.Publish(ctx, ports)
		return err
	})
	return taken, err
}

// failingGossip is a Gossip with the points.
type failingGossip struct {
	Gossip
	point failPoint
}

// New implements Gossip.
func (f failingGossip) New(name string, advertise netip.Addr, keys []gossip.Key) (m gossip.Member, err error) {
	err = f.point.around("member", func() (err error) {
		m, err = f.Gossip.New(name, advertise, keys)
		return err
	})
	return failingMember{m, f.point}, err
}

type failingMember struct {
	gossip.Member
	point failPoint
}

// Begin implements gossip.Member.
func (f failingMember) Begin(ctx context.Context, network string) error {
	return f.point.around("begin", func() error { return f.Member.Begin(ctx, network) })
}

// Enter implements gossip.Member.
func (f failingMember) Enter(ctx context.Context, network string) error {
	return f.point.around("enter", func() error { return f.Member.Enter(ctx, network) })
}

// Exit implements gossip.Member.
func (f failingMember) Exit(network string) error {
	return f.point.around("exit", func() error { return f.Member.Exit(network) })
}

// Announce implements gossip.Member.
func (f failingMember) Announce(id gossip.ID, r gossip.Record) error {
	return f.point.around("announce_"+kind(r), func() error { return f.Member.Announce(id, r) })
}

// Withdraw implements gossip.Member.
func (f failingMember) Withdraw(id gossip.ID, r gossip.Record) error {
	return f.point.around("withdraw_"+kind(r), func() error { return f.Member.Withdraw(id, r) })
}

// kind is which of an endpoint's two records one is.
func kind(r gossip.Record) string {
	if _, ok := r.(gossip.Peer); ok {
		return "peer"
	}
	return "names"
}
