package bridge

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/nft"
)

// flows removes the kernel's conntrack entries of UDP flows. UDP has no end of connection, so a
// client that keeps sending would keep the translation of its first packet for ever, even to a
// sandbox that is gone or to none. The kernel can only list all flows, which takes milliseconds,
// so it is done in the background, once for several requests.
type flows struct {
	log *slog.Logger

	mu      sync.Mutex      // guards h, pending, done
	h       *netlink.Handle // kept open: closing a netfilter socket waits for nftables' clean-up, and makes others wait
	pending []outdated
	done    chan struct{} // closed when the running sweep ends; nil when none runs
}

// forget drops the flows of UDP ports: with gone those that lead to the sandbox, otherwise those
// that lead elsewhere. Errors are only logged: the flows time out by themselves.
func (f *flows) forget(fwds []nft.Forward, gone bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := len(f.pending)
	for _, w := range fwds {
		if w.Proto == unix.IPPROTO_UDP {
			f.pending = append(f.pending, outdated{fwd: w, gone: gone})
		}
	}
	if len(f.pending) > before && f.done == nil {
		f.done = make(chan struct{})
		go f.sweep()
	}
}

// close waits until all requests are done.
func (f *flows) close() {
	f.mu.Lock()
	done := f.done
	f.mu.Unlock()
	if done != nil {
		<-done
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.h != nil {
		f.h.Close()
		f.h = nil
	}
}

func (f *flows) sweep() {
	h, local, err := f.open()
	if err != nil {
		f.log.Warn("could not remove conntrack entries of udp flows; they time out by themselves", "error", err.Error())
	}
	for {
		f.mu.Lock()
		todo := f.pending
		f.pending = nil
		if len(todo) == 0 {
			close(f.done)
			f.done = nil
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		if err != nil {
			continue
		}
		for i := range todo {
			todo[i].local = local
		}
		for _, fam := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			var filters []netlink.CustomConntrackFilter
			for _, o := range todo {
				if o.fwd.Target.Addr().Is4() == (fam == unix.AF_INET) {
					filters = append(filters, o)
				}
			}
			if len(filters) == 0 {
				continue
			}
			if _, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, fam, filters...); err != nil {
				f.log.Warn("could not remove conntrack entries of udp flows; they time out by themselves", "error", err.Error())
			}
		}
	}
}

// open opens the socket and lists the host's own addresses.
func (f *flows) open() (*netlink.Handle, map[netip.Addr]bool, error) {
	host, err := kernel.Host()
	if err != nil {
		return nil, nil, err
	}
	defer host.Close()
	addrs, err := host.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, nil, fmt.Errorf("list addresses: %w", err)
	}
	local := map[netip.Addr]bool{}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			local[ip.Unmap()] = true
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.h == nil {
		if f.h, err = netlink.NewHandle(unix.NETLINK_NETFILTER); err != nil {
			return nil, nil, fmt.Errorf("open conntrack: %w", err)
		}
	}
	return f.h, local, nil
}

// outdated matches the flows to remove.
type outdated struct {
	fwd   nft.Forward
	gone  bool
	local map[netip.Addr]bool
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (o outdated) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	w := o.fwd
	if flow.Forward.Protocol != w.Proto || flow.Forward.DstPort != w.Port {
		return false
	}
	to, _ := netip.AddrFromSlice(flow.Forward.DstIP)
	from, _ := netip.AddrFromSlice(flow.Reverse.SrcIP)
	to, from = to.Unmap(), from.Unmap()
	if w.HostIP.IsValid() && w.HostIP != to {
		return false
	}
	if o.gone {
		return from == w.Target.Addr() && flow.Reverse.SrcPort == w.Target.Port()
	}
	// A flow to the host that was not translated: the answer comes from the same port.
	return from == to && flow.Reverse.SrcPort == w.Port && (o.local[to] || to.IsLoopback())
}
