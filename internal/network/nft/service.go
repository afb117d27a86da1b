package nft

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Service is an address or port of clients' connections, and the backends: each connection gets
// one.
type Service struct {
	// Addr is the service's own address, at which everything leads to the backends, its ports
	// unchanged. Zero: Port is led there at every address of the machine.
	Addr netip.Addr
	// Proto is IPPROTO_TCP, IPPROTO_UDP or IPPROTO_SCTP; it and Port are zero when Addr is not.
	Proto uint8
	Port  uint16
	// Backends are of one family, that of Addr. Without one that takes connections, clients of
	// Addr are refused.
	Backends []Backend
}

// Backend answers connections to a service.
type Backend struct {
	Addr netip.Addr
	// Port is where it answers; zero is the port that the client asks for.
	Port uint16
	// Draining says that it gets no new connections, and keeps those that it has.
	Draining bool
}

// serviceKey has the fields of a Service that must be unique.
type serviceKey struct {
	addr  netip.Addr
	proto uint8
	port  uint16
	is4   bool
}

func (s Service) key() serviceKey {
	is4 := s.Addr.Is4()
	if !s.Addr.IsValid() && len(s.Backends) > 0 {
		is4 = s.Backends[0].Addr.Is4()
	}
	return serviceKey{s.Addr, s.Proto, s.Port, is4}
}

// String names the service for people.
func (s Service) String() string {
	if s.Addr.IsValid() {
		return s.Addr.String()
	}
	name := map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp"}[s.Proto]
	return fmt.Sprintf("port %s %d", cmp.Or(name, fmt.Sprint(s.Proto)), s.Port)
}

// chainOf makes a chain's name of an address.
var chainOf = strings.NewReplacer(":", "_", ".", "-")

// chain is the name of its chain. Colons would need quotes on nft's command line.
func (k serviceKey) chain() string {
	if k.addr.IsValid() {
		return "at-" + chainOf.Replace(k.addr.StringExpanded())
	}
	family := "6"
	if k.is4 {
		family = "4"
	}
	return fmt.Sprintf("port%s-%d-%d", family, k.proto, k.port)
}

// check returns InvalidArgument if s is not valid.
func (s Service) check() error {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("service %s: "+format+": %w", append(append([]any{s}, args...), errdefs.ErrInvalidArgument)...)
	}
	switch {
	case s.Addr.IsValid() && (s.Proto != 0 || s.Port != 0):
		return invalid("an address has no port")
	case s.Addr.IsValid() && !routable(s.Addr):
		return invalid("its address is none that a host may have")
	case !s.Addr.IsValid() && s.Port == 0:
		return invalid("it has neither an address nor a port")
	case !s.Addr.IsValid() && !slices.Contains([]uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP}, s.Proto):
		return invalid("protocol %d has no ports", s.Proto)
	}
	seen := map[netip.AddrPort]bool{}
	for _, b := range s.Backends {
		at := netip.AddrPortFrom(b.Addr, b.Port)
		switch {
		case !routable(b.Addr):
			return invalid("backend %s is none that a host may have", b.Addr)
		case b.Addr.Is4() != s.key().is4:
			return invalid("backend %s is of another family", b.Addr)
		case b.Addr == s.Addr:
			return invalid("backend %s is the service itself", b.Addr)
		case s.Addr.IsValid() && b.Port != 0:
			return invalid("backend %s changes the port", at)
		case seen[at]:
			return invalid("backend %s is there twice", at)
		}
		seen[at] = true
	}
	return nil
}

// routable reports whether a packet to a leaves the machine and reaches one other.
func routable(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && a.Zone() == "" && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// taking are the backends that take connections, in an order that first rotates.
func (s Service) taking(first uint32) []Backend {
	list := slices.DeleteFunc(slices.Clone(s.Backends), func(b Backend) bool { return b.Draining })
	slices.SortFunc(list, func(a, b Backend) int { return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port)) })
	if len(list) == 0 {
		return nil
	}
	i := int(first % uint32(len(list)))
	return slices.Concat(list[i:], list[:i])
}

// Check returns InvalidArgument if a list of services is not valid.
func Check(list []Service) error {
	_, err := checkServices(list)
	return err
}

// checkServices checks a list and returns it by key.
func checkServices(list []Service) (map[serviceKey]Service, error) {
	all := map[serviceKey]Service{}
	for _, s := range list {
		if err := s.check(); err != nil {
			return nil, err
		}
		if _, twice := all[s.key()]; twice {
			return nil, fmt.Errorf("service %s: it is there twice: %w", s, errdefs.ErrInvalidArgument)
		}
		all[s.key()] = s
	}
	for _, s := range all {
		for _, b := range s.Backends {
			if _, is := all[serviceKey{addr: b.Addr, is4: b.Addr.Is4()}]; is {
				return nil, fmt.Errorf("service %s: backend %s is a service itself: %w", s, b.Addr, errdefs.ErrInvalidArgument)
			}
		}
	}
	return all, nil
}

// noPorts refuses services that are ports.
func noPorts(all map[serviceKey]Service) error {
	for k, s := range all {
		if !k.addr.IsValid() {
			return fmt.Errorf("service %s: it has no address: %w", s, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// compareKeys orders services, so that a transaction does not depend on a map's order.
func compareKeys(a, b serviceKey) int {
	return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.proto, b.proto), cmp.Compare(a.port, b.port), cmp.Compare(familyOf(a.is4), familyOf(b.is4)))
}
