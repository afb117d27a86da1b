package ingress

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/nft"
	"github.com/longshore/longshore/internal/network/ports"
	"github.com/longshore/longshore/internal/nlwrap"
)

// Publish leads these ports of the host, and no others any more, to their backends. It returns
// those that are not led because somebody else has them. Backends that cannot be are left out; the
// error, InvalidArgument, names them. After an InvalidArgument of a port nothing has changed.
func (g *Ingress) Publish(list []core.PublishedPort) ([]core.TakenPort, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.is == nil {
		return nil, fmt.Errorf("there is no ingress: %w", errdefs.ErrFailedPrecondition)
	}
	services, odd, err := g.servicesLocked(list)
	if err != nil {
		return slices.Clone(g.taken), err
	}
	var taken []core.TakenPort
	var led []nft.Service
	next := map[ports.Claim]bool{}
	for _, s := range services {
		claim := ports.Claim{Proto: protoName(s.Proto), Port: s.Port}
		if !g.led[claim] {
			if err := g.claim(claim); err != nil {
				taken = append(taken, core.TakenPort{Proto: claim.Proto, Port: claim.Port, Err: err})
				continue
			}
		}
		next[claim] = true
		led = append(led, s)
	}
	for claim := range g.led {
		if !next[claim] {
			g.claims.Give(ports.Published, claim)
		}
	}
	g.led = next
	g.sayLocked(taken)
	return slices.Clone(taken), errors.Join(g.leadLocked(led), odd)
}

// servicesLocked checks ports before they are published. odd has the errors of single backends.
func (g *Ingress) servicesLocked(list []core.PublishedPort) (services []nft.Service, odd, err error) {
	for _, p := range list {
		proto, err := ports.Number(p.Proto)
		if err != nil {
			return nil, nil, fmt.Errorf("port %d: %w", p.Port, err)
		}
		s := nft.Service{Proto: proto, Port: p.Port}
		at := map[netip.Addr]int{}
		for _, b := range p.Backends {
			i, twice := at[b.Addr]
			switch err := g.checkBackendLocked(b.Addr); {
			case err != nil:
				odd = errors.Join(odd, fmt.Errorf("port %d: backend %s: %w", p.Port, b.Addr, err))
			case twice: // told of twice while it moves
				s.Backends[i].Draining = s.Backends[i].Draining && b.Draining
			default:
				at[b.Addr] = len(s.Backends)
				s.Backends = append(s.Backends, nft.Backend{Addr: b.Addr, Draining: b.Draining})
			}
		}
		services = append(services, s)
	}
	// One with backends, and one without, are of one port all the same.
	seen := map[ports.Claim]bool{}
	for _, s := range services {
		claim := ports.Claim{Proto: protoName(s.Proto), Port: s.Port}
		if seen[claim] {
			return nil, nil, fmt.Errorf("port %s is there twice: %w", claim, errdefs.ErrInvalidArgument)
		}
		seen[claim] = true
	}
	return services, odd, nft.Check(services)
}

// checkBackendLocked returns why an address cannot be a backend's.
func (g *Ingress) checkBackendLocked(a netip.Addr) error {
	i := slices.IndexFunc(g.subnets, func(s core.OverlaySubnet) bool { return s.Range.Contains(a) })
	switch {
	case i < 0:
		return fmt.Errorf("it is not on network %s: %w", g.is.Network, errdefs.ErrInvalidArgument)
	case a == g.subnets[i].Gateway || a == g.subnets[i].Range.Addr():
		return fmt.Errorf("it is the network's own: %w", errdefs.ErrInvalidArgument)
	case slices.ContainsFunc(g.is.Addrs, func(p netip.Prefix) bool { return p.Addr() == a }):
		return fmt.Errorf("it is this node's: %w", errdefs.ErrInvalidArgument)
	case a.Is4() != g.inner.Is4():
		return fmt.Errorf("it is of another family than the node's: %w", errdefs.ErrInvalidArgument)
	}
	return nil
}

// claim claims a port. It fails if a process of the host listens there.
func (g *Ingress) claim(c ports.Claim) error {
	if c.Proto == "sctp" {
		if _, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_established"); err != nil {
			return fmt.Errorf("publish port %s: this kernel follows no connections of SCTP: %w", c, errdefs.ErrFailedPrecondition)
		}
	}
	if err := g.claims.Take(ports.Published, []ports.Claim{c}); err != nil {
		return err
	}
	if err := ports.Probe(c); err != nil {
		g.claims.Give(ports.Published, c)
		return err
	}
	return nil
}

// leadLocked leads the host's ports into the namespace, and there to their backends. A port is led
// in when it has its backends, and they lose it when it is led in no more.
func (g *Ingress) leadLocked(services []nft.Service) error {
	want := map[nft.Forward]bool{}
	for _, s := range services {
		want[nft.Forward{Proto: s.Proto, Port: s.Port, Target: netip.AddrPortFrom(g.inner, s.Port), Sandbox: ports.Published}] = true
	}
	var gone []nft.Forward
	for _, f := range g.table.Forwards(ports.Published) {
		if !want[f] {
			gone = append(gone, f)
		}
		delete(want, f)
	}
	more := slices.Collect(maps.Keys(want))
	if err := g.table.Remove(gone); err != nil {
		return err
	}
	ns, err := os.Open(g.path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer func() { _ = ns.Close() }()
	err = g.balancer.Set(ns, services)
	if err == nil {
		err = g.table.Add(more)
	}
	outdated := ended(gone)
	for _, f := range more {
		if err == nil && f.Proto == unix.IPPROTO_UDP { // flows to the host itself
			outdated = append(outdated, nft.Service{Proto: f.Proto, Port: f.Port, Backends: []nft.Backend{{Addr: g.inner}}})
		}
	}
	return errors.Join(err, nft.Cut(nil, outdated))
}

// sayLocked logs changes of the list of ports that others use.
func (g *Ingress) sayLocked(taken []core.TakenPort) {
	same := func(t core.TakenPort) func(core.TakenPort) bool {
		return func(o core.TakenPort) bool { return t.Proto == o.Proto && t.Port == o.Port }
	}
	for _, t := range taken {
		if !slices.ContainsFunc(g.taken, same(t)) {
			g.log.Warn("a published port is taken on this node; it is served by the other nodes", "proto", t.Proto, "port", int(t.Port), "error", t.Err.Error())
		}
	}
	for _, t := range g.taken {
		if !slices.ContainsFunc(taken, same(t)) && g.led[ports.Claim{Proto: t.Proto, Port: t.Port}] {
			g.log.Info("a published port that was taken is served now", "proto", t.Proto, "port", int(t.Port))
		}
	}
	g.taken = taken
}

// Trouble names the published ports that others use, or another reason why clients cannot reach
// them, "" if there is none; hint is advice.
func (g *Ingress) Trouble() (trouble, hint string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var list []string
	for _, t := range g.taken {
		text := t.Err.Error()
		for _, class := range []error{errdefs.ErrFailedPrecondition, errdefs.ErrInvalidArgument} {
			if errors.Is(t.Err, class) {
				text = strings.TrimSuffix(text, ": "+class.Error())
			}
		}
		list = append(list, text)
	}
	if len(list) > 0 {
		return strings.Join(list, "; "), "stop the program that has the port, or publish the service at another one; the other nodes serve it"
	}
	if g.wall != nil && len(g.led) > 0 {
		if dropped := g.wall.Trouble(); dropped != "" {
			return "published ports: " + dropped, "let what comes and goes by " + ingressLink + " be forwarded"
		}
	}
	return "", ""
}

// protoName is the opposite of ports.Number.
func protoName(number uint8) string {
	switch number {
	case unix.IPPROTO_UDP:
		return "udp"
	case unix.IPPROTO_SCTP:
		return "sctp"
	default:
		return "tcp"
	}
}

// Check checks the host's part, and returns the network that has the other part.
func (g *Ingress) Check() (on string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.is == nil {
		return "", nil
	}
	host, err := kernel.Host()
	if err != nil {
		return "", err
	}
	defer host.Close()
	link, err := host.LinkByName(ingressLink)
	if kernel.IsLinkGone(err) || err == nil && link.Attrs().Flags&net.FlagUp == 0 {
		return "", fmt.Errorf("link %s does not exist or is down: %w", ingressLink, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return "", fmt.Errorf("find %s: %w", ingressLink, err)
	}
	if err := g.checkLinkLocked(host, link); err != nil {
		return "", err
	}
	gone, err := g.table.Missing(g.table.Forwards(ports.Published))
	if err == nil && len(gone) > 0 {
		err = fmt.Errorf("%d ports are not led, %d one of them: %w", len(gone), gone[0].Port, errdefs.ErrFailedPrecondition)
	}
	if err == nil {
		err = g.checkRulesLocked()
	}
	return g.is.Network, err
}

// checkLinkLocked checks the addresses of the pair of links, its other end, and the route to the host.
func (g *Ingress) checkLinkLocked(host nlwrap.Handle, outer netlink.Link) error {
	if gateway, err := ingressGateway(host, outer, g.inner.Is6()); err != nil || gateway.Addr().Next() != g.inner {
		return errors.Join(err, fmt.Errorf("link %s has lost its address: %w", ingressLink, errdefs.ErrFailedPrecondition))
	}
	in, ns, err := kernel.Inside(g.path)
	if err != nil {
		return err
	}
	defer func() { in.Close(); _ = ns.Close() }()
	link, err := in.LinkByName(ingressOuter)
	if err != nil || link.Attrs().Flags&net.FlagUp == 0 {
		return errors.Join(err, fmt.Errorf("link %s inside is down: %w", ingressOuter, errdefs.ErrFailedPrecondition))
	}
	routes, err := in.RouteGet(g.inner.Prev().AsSlice()) // by its own address, if it has one
	if err != nil || len(routes) != 1 || routes[0].LinkIndex != link.Attrs().Index || !routes[0].Src.Equal(g.inner.AsSlice()) {
		return errors.Join(err, fmt.Errorf("link %s inside has lost its address %s: %w", ingressOuter, g.inner, errdefs.ErrFailedPrecondition))
	}
	byTable := &netlink.Rule{Table: ingressRoutes}
	rules, err := in.RuleListFiltered(kernel.Family(g.inner.Is6()), byTable, netlink.RT_FILTER_TABLE)
	if err == nil {
		routes, err = in.RouteListFiltered(kernel.Family(g.inner.Is6()), &netlink.Route{Table: ingressRoutes}, netlink.RT_FILTER_TABLE)
	}
	if err != nil || len(routes) == 0 || len(rules) < 2 {
		return errors.Join(err, fmt.Errorf("the routes of answers to the host are missing: %w", errdefs.ErrFailedPrecondition))
	}
	return nil
}

// checkRulesLocked checks the rules inside.
func (g *Ingress) checkRulesLocked() error {
	ns, err := os.Open(g.path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer func() { _ = ns.Close() }()
	if err := nft.CheckGate(ns, ingressOuter, ingressInner); err != nil {
		return err
	}
	return g.balancer.Check(ns)
}
