package nft

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/nlwrap"
)

// outdatedServices returns the services with connections that may have lost their backend: a
// backend or the service was removed, or a port that the machine itself answered has backends now.
// all says that the former services are not known.
func outdatedServices(before, after map[serviceKey]Service, all bool) []Service {
	var list []Service
	for k, s := range after {
		old, there := before[k]
		if all || !there || !contained(old.Backends, s.Backends) {
			list = append(list, s)
		}
	}
	for k, s := range before {
		if _, stays := after[k]; !stays {
			list = append(list, Service{Addr: s.Addr, Proto: s.Proto, Port: s.Port})
		}
	}
	return list
}

// contained reports whether every backend of some is among all, draining or not.
func contained(some, all []Backend) bool {
	there := map[netip.AddrPort]bool{}
	for _, b := range all {
		there[netip.AddrPortFrom(b.Addr, b.Port)] = true
	}
	for _, b := range some {
		if !there[netip.AddrPortFrom(b.Addr, b.Port)] {
			return false
		}
	}
	return true
}

// Cut ends connections that a namespace has translated, and that lead to other backends than these
// services have. namespace nil is the caller's own.
func Cut(namespace *os.File, services []Service) error {
	if len(services) == 0 {
		return nil
	}
	if err := cutFlows(namespace, services); err != nil {
		return fmt.Errorf("cut connections to backends that are gone: %w", err)
	}
	return nil
}

// cutFlows removes the kernel's conntrack entries of connections to backends that services do not
// have. The kernel can only list all flows, which takes milliseconds.
func cutFlows(namespace *os.File, services []Service) error {
	at := netns.None()
	if namespace != nil {
		at = netns.NsHandle(namespace.Fd())
	}
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
	var errs []error
	for _, fam := range []uint8{unix.AF_INET, unix.AF_INET6} {
		f := outdatedFlows{services: map[serviceKey]flowService{}, local: local}
		for _, s := range services {
			is4 := fam == unix.AF_INET
			k := s.key()
			if k.is4 != is4 && (k.addr.IsValid() || len(s.Backends) > 0) {
				continue
			}
			k.is4 = is4
			f.services[k] = newFlowService(s)
		}
		if len(f.services) == 0 {
			continue
		}
		if err := t.remove(fam, f.match); err != nil {
			errs = append(errs, fmt.Errorf("remove conntrack entries: %w", err))
		}
	}
	return errors.Join(errs...)
}

// localAddrs returns a namespace's own addresses.
func localAddrs(at netns.NsHandle) (map[netip.Addr]bool, error) {
	raw, err := netlink.NewHandleAt(at, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	h := nlwrap.Handle{Handle: raw}
	defer h.Close()
	list, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	local := map[netip.Addr]bool{}
	for _, a := range list {
		local[unmapped(a.IP)] = true
	}
	return local, nil
}

func unmapped(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// flowService is where the connections of a service may lead.
type flowService struct {
	backends map[netip.AddrPort]bool
	// taken says that at least one backend takes connections.
	taken bool
}

func newFlowService(s Service) flowService {
	f := flowService{backends: map[netip.AddrPort]bool{}}
	for _, b := range s.Backends {
		port := b.Port
		if port == 0 {
			port = s.Port // also zero: any
		}
		f.backends[netip.AddrPortFrom(b.Addr, port)] = true
		f.taken = f.taken || !b.Draining
	}
	return f
}

// outdatedFlows matches the flows to remove.
type outdatedFlows struct {
	services map[serviceKey]flowService
	local    map[netip.Addr]bool
}

// match reports whether a flow is to be removed.
func (o outdatedFlows) match(f flow) bool {
	to, from := f.asked.to, f.answered.from
	if s, ok := o.services[serviceKey{addr: to.Addr(), is4: to.Addr().Is4()}]; ok {
		return !s.backends[netip.AddrPortFrom(from.Addr(), 0)]
	}
	s, ok := o.services[serviceKey{proto: f.asked.proto, port: to.Port(), is4: to.Addr().Is4()}]
	if !ok || !o.local[to.Addr()] && !to.Addr().IsLoopback() {
		return false
	}
	if from == to {
		// It was not translated: a client that keeps sending datagrams would never reach a backend.
		return s.taken && f.asked.proto == unix.IPPROTO_UDP
	}
	return !s.backends[from]
}
