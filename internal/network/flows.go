package network

import (
	"log/slog"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/nft"
)

// flows removes what the kernel remembers of UDP flows. It has no end of
// connection there: a client that keeps sending would be served for ever by the
// translation of its first packet, be it to a sandbox that is gone or to none.
// The zero value is ready.
type flows struct {
	mu sync.Mutex
	h  *netlink.Handle // kept: closing a netfilter socket waits for nftables' clean-up
}

func (f *flows) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.h != nil {
		f.h.Close()
		f.h = nil
	}
}

// forget drops the flows of UDP ports: with gone those that lead to the
// sandbox, else those that lead past it. Trouble is logged, nothing more: the
// flows time out by themselves.
func (f *flows) forget(fwds []nft.Forward, gone bool, log *slog.Logger) {
	udp := map[netlink.InetFamily][]nft.Forward{}
	for _, w := range fwds {
		if w.Proto != unix.IPPROTO_UDP {
			continue
		}
		fam := netlink.InetFamily(unix.AF_INET)
		if w.Target.Addr().Is6() {
			fam = unix.AF_INET6
		}
		udp[fam] = append(udp[fam], w)
	}
	if len(udp) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.h == nil {
		h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
		if err != nil {
			log.Warn("cannot open conntrack", "error", err.Error())
			return
		}
		f.h = h
	}
	for fam, fwds := range udp {
		if _, err := f.h.ConntrackDeleteFilters(netlink.ConntrackTable, fam, outdated{fwds, gone}); err != nil {
			log.Warn("cannot remove udp flows", "error", err.Error())
		}
	}
}

// outdated matches flows to forget.
type outdated struct {
	fwds []nft.Forward
	gone bool
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (o outdated) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	for _, w := range o.fwds {
		if flow.Forward.Protocol != w.Proto || flow.Forward.DstPort != w.Port {
			continue
		}
		to, _ := netip.AddrFromSlice(flow.Forward.DstIP)
		from, _ := netip.AddrFromSlice(flow.Reverse.SrcIP)
		to, from = to.Unmap(), from.Unmap()
		if w.HostIP.IsValid() && w.HostIP != to {
			continue
		}
		if o.gone {
			if from == w.Target.Addr() && flow.Reverse.SrcPort == w.Target.Port() {
				return true
			}
			continue
		}
		// A flow that was not translated and answers itself to this port.
		if from == to && flow.Reverse.SrcPort == w.Port {
			return true
		}
	}
	return false
}
