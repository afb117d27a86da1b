package networktest

import (
	"net/netip"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// IngressSubject is an implementation of Overlays with an ingress under test.
type IngressSubject struct {
	Overlays Overlays
	// Overlay is open, and Other too.
	Overlay, Other core.Overlay
	// Take occupies a port of the node until free is called.
	Take func(t *testing.T, proto string, port uint16) (free func())
	// Led reports whether a port is led to backends. nil: it is not known.
	Led func(t *testing.T, proto string, port uint16) bool
}

// Ingress is the part of the contract of Overlays that is about published ports.
func Ingress(t *testing.T, subject func(t *testing.T) IngressSubject) {
	for name, test := range map[string]func(*testing.T, IngressSubject){
		"there is none":               ingressNone,
		"it is opened and closed":     ingressOpened,
		"ports are led":               ingressLeads,
		"ports that somebody has":     ingressTaken,
		"ports that cannot be":        ingressInvalid,
		"backends that cannot be":     ingressOddBackends,
		"it is moved to another one":  ingressMoved,
		"a port without any backends": ingressNoBackends,
	} {
		t.Run(name, func(t *testing.T) { test(t, subject(t)) })
	}
}

// on is the node's place on an overlay: its third address.
func on(o core.Overlay) core.Ingress {
	return core.Ingress{Network: o.Name, Addrs: []netip.Prefix{netip.PrefixFrom(nth(o, 3), o.Subnets[0].Range.Bits())}}
}

func nth(o core.Overlay, n int) netip.Addr {
	a := o.Subnets[0].Range.Addr()
	for range n {
		a = a.Next()
	}
	return a
}

func (s IngressSubject) open(t *testing.T) {
	t.Helper()
	if err := s.Overlays.OpenIngress(t.Context(), on(s.Overlay)); err != nil {
		t.Fatal(err)
	}
}

func (s IngressSubject) port(proto string, port uint16) core.PublishedPort {
	return core.PublishedPort{Proto: proto, Port: port, Backends: []core.OverlayBackend{{Addr: nth(s.Overlay, 9)}, {Addr: nth(s.Overlay, 10), Draining: true}}}
}

// publish publishes ports, expects an error for the taken ones, and checks the forwarded ones.
func (s IngressSubject) publish(t *testing.T, list []core.PublishedPort, taken ...uint16) {
	t.Helper()
	got, err := s.Overlays.Publish(t.Context(), list)
	if err != nil {
		t.Fatal(err)
	}
	has := map[uint16]bool{}
	for _, p := range got {
		has[p.Port] = p.Err != nil
	}
	ok := len(got) == len(taken)
	for _, p := range taken {
		ok = ok && has[p]
	}
	if !ok {
		t.Errorf("taken: %v, want %v", got, taken)
	}
	for _, p := range list {
		s.led(t, p.Proto, p.Port, !has[p.Port])
	}
}

func (s IngressSubject) led(t *testing.T, proto string, port uint16, want bool) {
	t.Helper()
	if s.Led == nil {
		return
	}
	if got := s.Led(t, proto, port); got != want {
		t.Errorf("%s port %d is led: %v, want %v", proto, port, got, want)
	}
}

func ingressNone(t *testing.T, s IngressSubject) {
	for range 2 {
		if err := s.Overlays.CloseIngress(t.Context()); err != nil {
			t.Errorf("close what is not open: %v", err)
		}
	}
	for _, list := range [][]core.PublishedPort{nil, {s.port("tcp", 8080)}} {
		if _, err := s.Overlays.Publish(t.Context(), list); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("publish %v: %v", list, err)
		}
	}
	nowhere := on(s.Overlay)
	nowhere.Network = "nowhere"
	if err := s.Overlays.OpenIngress(t.Context(), nowhere); !errdefs.IsNotFound(err) {
		t.Errorf("on an overlay that is not open: %v", err)
	}
	for _, addrs := range [][]netip.Prefix{nil, {{}}, {netip.MustParsePrefix("192.0.2.2/24")}, {netip.PrefixFrom(s.Overlay.Subnets[0].Gateway, s.Overlay.Subnets[0].Range.Bits())}} {
		if err := s.Overlays.OpenIngress(t.Context(), core.Ingress{Network: s.Overlay.Name, Addrs: addrs}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("with addresses %v: %v", addrs, err)
		}
	}
}

func ingressOpened(t *testing.T, s IngressSubject) {
	s.open(t)
	s.open(t)
	if err := s.Overlays.Close(t.Context(), s.Overlay.Name); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("close its overlay: %v", err)
	}
	s.publish(t, []core.PublishedPort{s.port("tcp", 8080)})
	s.open(t)
	s.led(t, "tcp", 8080, true)
	for range 2 {
		if err := s.Overlays.CloseIngress(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.led(t, "tcp", 8080, false)
	if _, err := s.Overlays.Publish(t.Context(), nil); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("publish when it is closed: %v", err)
	}
	if err := s.Overlays.Close(t.Context(), s.Overlay.Name); err != nil {
		t.Errorf("close its overlay: %v", err)
	}
}

func ingressLeads(t *testing.T, s IngressSubject) {
	s.open(t)
	s.publish(t, nil)
	s.publish(t, []core.PublishedPort{s.port("tcp", 8080), s.port("udp", 8080), s.port("tcp", 8081)})
	s.publish(t, []core.PublishedPort{s.port("tcp", 8081), s.port("tcp", 8082)})
	s.led(t, "tcp", 8080, false)
	s.led(t, "udp", 8080, false)
	s.publish(t, nil)
	s.led(t, "tcp", 8081, false)
}

func ingressNoBackends(t *testing.T, s IngressSubject) {
	s.open(t)
	s.publish(t, []core.PublishedPort{{Proto: "tcp", Port: 8080}, s.port("tcp", 8081)})
	s.publish(t, []core.PublishedPort{s.port("tcp", 8080), {Proto: "tcp", Port: 8081}})
}

func ingressTaken(t *testing.T, s IngressSubject) {
	s.open(t)
	free := s.Take(t, "tcp", 8081)
	list := []core.PublishedPort{s.port("tcp", 8080), s.port("tcp", 8081), s.port("udp", 8081)}
	s.publish(t, list[:2], 8081)
	s.publish(t, list[:2], 8081)
	if s.Led != nil {
		s.led(t, "tcp", 8080, true)
	}
	free()
	s.publish(t, list)
}

func ingressInvalid(t *testing.T, s IngressSubject) {
	s.open(t)
	s.publish(t, []core.PublishedPort{s.port("tcp", 8080)})
	for _, list := range [][]core.PublishedPort{
		{s.port("tcp", 0)}, {s.port("icmp", 80)}, {s.port("tcp", 8081), s.port("tcp", 8081)}, {s.port("tcp", 8081), {Proto: "tcp", Port: 8081}},
	} {
		if _, err := s.Overlays.Publish(t.Context(), list); !errdefs.IsInvalidArgument(err) {
			t.Errorf("publish %v: %v", list, err)
		}
		s.led(t, "tcp", 8080, true)
		s.led(t, "tcp", 8081, false)
	}
}

func ingressOddBackends(t *testing.T, s IngressSubject) {
	s.open(t)
	for _, a := range []netip.Addr{{}, netip.MustParseAddr("192.0.2.9"), netip.IPv6Loopback(), s.Overlay.Subnets[0].Gateway, nth(s.Overlay, 3)} {
		odd := s.port("tcp", 8080)
		odd.Backends = append(odd.Backends, core.OverlayBackend{Addr: a})
		if _, err := s.Overlays.Publish(t.Context(), []core.PublishedPort{odd, s.port("tcp", 8081)}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("backend %s: %v", a, err)
		}
		s.led(t, "tcp", 8080, true)
		s.led(t, "tcp", 8081, true)
	}
	twice := s.port("tcp", 8080) // as while it moves
	twice.Backends = append(twice.Backends, twice.Backends...)
	s.publish(t, []core.PublishedPort{twice})
}

func ingressMoved(t *testing.T, s IngressSubject) {
	s.open(t)
	s.publish(t, []core.PublishedPort{s.port("tcp", 8080)})
	if err := s.Overlays.OpenIngress(t.Context(), on(s.Other)); err != nil {
		t.Fatal(err)
	}
	s.led(t, "tcp", 8080, false)
	if err := s.Overlays.Close(t.Context(), s.Overlay.Name); err != nil {
		t.Errorf("close the overlay on which it was: %v", err)
	}
	if err := s.Overlays.Close(t.Context(), s.Other.Name); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("close the overlay on which it is: %v", err)
	}
	s.Overlay = s.Other
	s.publish(t, []core.PublishedPort{s.port("tcp", 8080)})
}
