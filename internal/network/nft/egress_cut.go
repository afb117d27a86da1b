package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/egress"
)

// CutEgress ends the connections of a namespace that it has opened and that the rules of Restrict would not open now. The next
// packet of each one is refused.
func CutEgress(namespace *os.File, e Egress) error {
	if e.Learn {
		return nil
	}
	open, err := openNames(namespace, e.List)
	if err != nil {
		return err
	}
	at := netns.NsHandle(namespace.Fd())
	local, err := localAddrs(at)
	if err != nil {
		return err
	}
	socket, err := nl.GetNetlinkSocketAt(at, netns.None(), unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open conntrack: %w", err)
	}
	defer socket.Close()
	if err := socket.SetReceiveTimeout(&nl.SocketTimeoutTv); err != nil {
		return fmt.Errorf("open conntrack: %w", err)
	}
	t := flowTable{unix.NETLINK_NETFILTER: {Socket: socket}}
	outdated := func(f flow) bool {
		from, to := f.asked.from.Addr(), f.asked.to
		if !local[from] || local[to.Addr()] || to.Addr().IsLoopback() {
			return false
		}
		return !e.permits(f.asked.proto, to, open)
	}
	if err := errors.Join(t.remove(unix.AF_INET, outdated), t.remove(unix.AF_INET6, outdated)); err != nil {
		return fmt.Errorf("cut connections that the egress list does not permit: %w", err)
	}
	return nil
}

// openName is an address of a name with a service of the list.
type openName struct {
	addr    netip.Addr
	service int
}

// openNames returns the addresses of names that are open.
func openNames(namespace *os.File, list *egress.List) (map[openName]bool, error) {
	c, err := dialIn(namespace)
	if err != nil {
		return nil, err
	}
	open := map[openName]bool{}
	b := egressBuild{Egress: Egress{List: list}, table: &nftables.Table{Name: egress.Table, Family: nftables.TableFamilyINet}}
	for i := range list.Services {
		if !b.hasNames(i) {
			continue
		}
		for _, set := range b.nameSets(i) {
			elems, err := c.GetSetElements(set)
			if err != nil {
				return nil, fmt.Errorf("list set %s: %w", set.Name, err)
			}
			for _, elem := range elems {
				if a, ok := netip.AddrFromSlice(elem.Key); ok {
					open[openName{a, i}] = true
				}
			}
		}
	}
	return open, nil
}

// permits reports whether the rules accept a new connection.
func (e Egress) permits(proto uint8, to netip.AddrPort, open map[openName]bool) bool {
	if proto == unix.IPPROTO_ICMPV6 {
		proto = egress.ICMP
	}
	a := to.Addr().Unmap()
	for _, p := range e.List.Closed() {
		if p.Contains(a) {
			return false
		}
	}
	for _, entry := range e.List.Entries {
		s := entry.Service
		if !s.Has(proto, to.Port()) || len(s.Ports) == 0 && isDNS(proto, to.Port()) {
			continue
		}
		switch {
		case entry.Preset == egress.Internet:
			if egress.Public(netip.PrefixFrom(a, a.BitLen())) {
				return true
			}
		case entry.Preset == egress.Cluster:
			for _, p := range e.Cluster {
				if p.Contains(a) {
					return true
				}
			}
		case entry.Net.IsValid():
			if entry.Net.Contains(a) {
				return true
			}
		}
	}
	for i, s := range e.List.Services {
		quic := e.List.Verify && proto == unix.IPPROTO_UDP && to.Port() == egress.HTTPS && s.Proto != egress.UDP
		if quic || e.Unverified && proto == unix.IPPROTO_TCP && egress.Verified(to.Port()) {
			continue
		}
		if s.Has(proto, to.Port()) && open[openName{a, i}] {
			return true
		}
	}
	return false
}

func isDNS(proto uint8, port uint16) bool {
	if proto != unix.IPPROTO_TCP && proto != unix.IPPROTO_UDP {
		return false
	}
	for _, p := range egress.DNSPorts() {
		if p.First == port {
			return true
		}
	}
	return false
}
