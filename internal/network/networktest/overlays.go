package networktest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Overlays is the part of a driver of overlays that is not Driver's: the port of the face that opens them.
type Overlays interface {
	Able(ctx context.Context, encrypted bool) error
	Open(ctx context.Context, o core.Overlay) error
	Close(ctx context.Context, name string) error
	List() []core.Overlay
	SetPeers(ctx context.Context, name string, set map[string]core.OverlayPeer, drop []string) error
	Prune(ctx context.Context, name string) error
	SetNames(ctx context.Context, name string, byName map[string][]netip.Addr, owners map[netip.Addr]string) error
	SetServices(ctx context.Context, name string, services []core.OverlayService) error
	SetKeys(ctx context.Context, keys []core.OverlayKey) error
	SetGossip(ctx context.Context, port uint16, members []netip.Addr) error
	OpenIngress(ctx context.Context, in core.Ingress) error
	CloseIngress(ctx context.Context) error
	Publish(ctx context.Context, ports []core.PublishedPort) ([]core.TakenPort, error)
}

// OverlaySubject is an Overlays under test, and the network of its sandboxes.
type OverlaySubject struct {
	Overlays Overlays
	Subject
	// Local is an address of the node's.
	Local netip.Addr
	// Restart starts again as the next agent does, with these live sandboxes.
	Restart func(t *testing.T, live ...core.NetworkRequest) OverlaySubject
}

// OverlayContract tests Overlays and a core.Network with sandboxes on them. subject is called
// for each part.
func OverlayContract(t *testing.T, subject func(t *testing.T) OverlaySubject) {
	for name, part := range map[string]func(*testing.T, OverlaySubject){
		"Open": overlaysOpen, "Refused": overlaysRefused, "Told": overlaysCalls, "Sandboxes": overlaysSandboxes, "Attach": overlaysAttach, "Restart": overlaysRestart, "Ingress": overlaysIngress,
	} {
		t.Run(name, func(t *testing.T) {
			s := subject(t)
			if err := s.Overlays.Able(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			part(t, s)
		})
	}
}

// overlay returns the definition of one with the range 10.199.n.0/24.
func (s OverlaySubject) overlay(n int) core.Overlay {
	r := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 199, byte(n), 0}), 24)
	return core.Overlay{
		Name: fmt.Sprintf("o%d", n), MTU: 1400, Local: s.Local,
		Subnets: []core.OverlaySubnet{{Range: r, Gateway: r.Addr().Next(), VNI: uint32(5000 + n)}},
	}
}

func (s OverlaySubject) open(t *testing.T, numbers ...int) {
	t.Helper()
	for _, n := range numbers {
		if err := s.Overlays.Open(t.Context(), s.overlay(n)); err != nil {
			t.Fatalf("open: %v", err)
		}
	}
}

func (s OverlaySubject) close(t *testing.T, numbers ...int) {
	t.Helper()
	for _, n := range numbers {
		if err := s.Overlays.Close(t.Context(), s.overlay(n).Name); err != nil {
			t.Errorf("close: %v", err)
		}
	}
}

// wantOpen checks which overlays are open.
func (s OverlaySubject) wantOpen(t *testing.T, numbers ...int) {
	t.Helper()
	list := s.Overlays.List()
	if len(list) != len(numbers) {
		t.Errorf("open: %+v, want %v", list, numbers)
		return
	}
	for i, n := range numbers {
		if want := s.overlay(n); list[i].Name != want.Name || !slices.Equal(list[i].Subnets, want.Subnets) || list[i].MTU != want.MTU || list[i].Local != want.Local {
			t.Errorf("open: %+v, want %+v", list[i], want)
		}
	}
}

// at is an interface on overlay n, with the last byte of its address.
func (s OverlaySubject) at(n int, last byte) core.Attachment {
	o := s.overlay(n)
	return core.Attachment{
		Network: core.OverlayNetwork(o.Name), Addrs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 199, byte(n), last}), 24)},
	}
}

// task sets a sandbox up that is on overlays, and on the default network.
func (s OverlaySubject) task(t *testing.T, n int, attach ...core.Attachment) (core.NetworkRequest, error) {
	t.Helper()
	req := core.NetworkRequest{Sandbox: SandboxID(n), Owner: core.OwnerCLI, Namespace: s.Namespace(t)}
	req.Config.Attach = append(attach, core.Attachment{Network: core.NetworkDefault})
	req.Config.Name = attach[0].Network
	st, err := s.Network.Setup(t.Context(), req)
	req.Last = st
	return req, err
}

func (s OverlaySubject) mustTask(t *testing.T, n int, attach ...core.Attachment) core.NetworkRequest {
	t.Helper()
	req, err := s.task(t, n, attach...)
	if err != nil {
		t.Fatalf("setup: %v", err)
	}
	return req
}

func overlaysOpen(t *testing.T, s OverlaySubject) {
	s.wantOpen(t)
	s.close(t, 1) // one that never was
	s.open(t, 2, 1)
	s.open(t, 1)
	s.wantOpen(t, 1, 2)
	taken := s.overlay(3)
	taken.Subnets[0].VNI = s.overlay(1).Subnets[0].VNI
	if err := s.Overlays.Open(t.Context(), taken); !errdefs.IsAlreadyExists(err) {
		t.Errorf("an id of another: %v", err)
	}
	s.close(t, 1, 1)
	s.wantOpen(t, 2)
	if err := s.Overlays.Open(t.Context(), taken); err != nil {
		t.Errorf("an id that was another's: %v", err)
	}
	s.close(t, 2, 3)
	s.wantOpen(t)
}

func overlaysRefused(t *testing.T, s OverlaySubject) {
	for name, change := range map[string]func(*core.Overlay){
		"no name": func(o *core.Overlay) { o.Name = "" }, "a path": func(o *core.Overlay) { o.Name = "../o" }, "a line": func(o *core.Overlay) { o.Name = "o\no" },
		"no subnet": func(o *core.Overlay) { o.Subnets = nil }, "no id": func(o *core.Overlay) { o.Subnets[0].VNI = 0 }, "id": func(o *core.Overlay) { o.Subnets[0].VNI = 1 << 24 },
		"id twice": func(o *core.Overlay) {
			o.Subnets = append(o.Subnets, s.overlay(2).Subnets...)
			o.Subnets[1].VNI = o.Subnets[0].VNI
		},
		"range twice": func(o *core.Overlay) {
			o.Subnets = append(o.Subnets, o.Subnets...)
			o.Subnets[1].VNI++
		},
		"gateway": func(o *core.Overlay) { o.Subnets[0].Gateway = netip.MustParseAddr("10.198.1.1") }, "range": func(o *core.Overlay) { o.Subnets[0].Range = netip.PrefixFrom(o.Subnets[0].Gateway, 24) },
		"nowhere": func(o *core.Overlay) { o.Local = netip.Addr{} }, "no mtu": func(o *core.Overlay) { o.MTU = 0 }, "mtu": func(o *core.Overlay) { o.MTU = 65500 },
	} {
		o := s.overlay(1)
		change(&o)
		if err := s.Overlays.Open(t.Context(), o); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.wantOpen(t)
}

// overlaysCalls: calls for a network that is not open are refused, and one bad peer does not affect
// the others.
func overlaysCalls(t *testing.T, s OverlaySubject) {
	ctx, name := t.Context(), s.overlay(1).Name
	tell := func() (errs []error) {
		return []error{
			s.Overlays.SetPeers(ctx, name, nil, []string{"gone"}), s.Overlays.SetNames(ctx, name, nil, nil), s.Overlays.SetServices(ctx, name, nil), s.Overlays.Prune(ctx, name),
		}
	}
	for i, err := range tell() {
		if !errdefs.IsNotFound(err) {
			t.Errorf("call %d for none: %v", i, err)
		}
	}
	s.open(t, 1)
	for i, err := range tell() {
		if err != nil {
			t.Errorf("call %d: %v", i, err)
		}
	}
	addr := func(last byte) netip.Addr { return s.at(1, last).Addrs[0].Addr() }
	node := netip.MustParseAddr("192.0.2.99")
	good := core.OverlayPeer{Addr: addr(9), MAC: "02:42:0a:c7:01:09", Node: node}
	for what, p := range map[string]core.OverlayPeer{
		"nothing": {}, "the gateway": {Addr: addr(1), MAC: good.MAC, Node: node}, "another range": {Addr: s.at(2, 9).Addrs[0].Addr(), MAC: good.MAC, Node: node}, "many": {Addr: addr(9), MAC: "01:00:5e:00:00:01", Node: node}, "no mac": {Addr: addr(9), MAC: "", Node: node},
		"here": {Addr: addr(9), MAC: good.MAC, Node: s.Local}, "nowhere": {Addr: addr(9), MAC: good.MAC, Node: netip.Addr{}},
	} {
		if err := s.Overlays.SetPeers(ctx, name, map[string]core.OverlayPeer{"bad": p, "good": good}, nil); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := s.Overlays.SetPeers(ctx, name, map[string]core.OverlayPeer{"good": good, "moved": good}, []string{"none"}); err != nil {
		t.Error(err)
	}
	vip := core.OverlayService{Addr: addr(100), Backends: []core.OverlayBackend{{Addr: addr(9)}, {Addr: addr(10), Draining: true}}}
	if err := s.Overlays.SetServices(ctx, name, []core.OverlayService{vip, {Addr: addr(101)}}); err != nil {
		t.Error(err)
	}
	if err := s.Overlays.SetNames(ctx, name, map[string][]netip.Addr{"web": {addr(100)}}, map[netip.Addr]string{addr(9): "web.1"}); err != nil {
		t.Error(err)
	}
	s.close(t, 1)
}

func overlaysSandboxes(t *testing.T, s OverlaySubject) {
	s.open(t, 1, 2)
	one := s.mustTask(t, 1, s.at(1, 7), s.at(2, 7))
	for i, want := range []core.Attachment{s.at(1, 7), s.at(2, 7), {Network: core.NetworkDefault}} {
		if len(one.Last.Interfaces) != 3 {
			t.Fatalf("interfaces: %+v", one.Last.Interfaces)
		}
		have := one.Last.Interfaces[i]
		if have.Network != want.Network || have.Interface != fmt.Sprintf("eth%d", i) || want.Addrs != nil && !slices.Equal(have.Addrs, want.Addrs) || !slices.Contains(one.Last.Addrs, have.Addrs[0].Addr()) {
			t.Errorf("interface %d: %+v, want %+v", i, have, want)
		}
	}
	if one.Last.Addrs[0] != s.at(1, 7).Addrs[0].Addr() {
		t.Errorf("the first address: %v", one.Last.Addrs)
	}
	if err := s.Network.Check(t.Context(), one); err != nil {
		t.Errorf("check: %v", err)
	}
	for what, c := range map[string]struct {
		a  core.Attachment
		is func(error) bool
	}{
		"of another": {s.at(1, 7), errdefs.IsAlreadyExists}, "the gateway": {s.at(1, 1), errdefs.IsInvalidArgument}, "not open": {s.at(3, 7), errdefs.IsNotFound},
		"none": {core.Attachment{Network: s.at(1, 7).Network}, errdefs.IsInvalidArgument}, "of another network": {core.Attachment{Network: s.at(1, 7).Network, Addrs: s.at(2, 9).Addrs}, errdefs.IsInvalidArgument},
	} {
		if _, err := s.task(t, 2, c.a); !c.is(err) {
			t.Errorf("address %s: %v", what, err)
		}
		s.wantSandboxes(t, 1)
	}
	if err := s.Overlays.Close(t.Context(), s.overlay(1).Name); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("closed with a sandbox: %v", err)
	}
	gone := one
	gone.Namespace, gone.Last = "", core.NetworkStatus{} // after a crash nothing is known of it
	s.down(t, gone)
	s.down(t, one)
	s.wantSandboxes(t)
	two := s.mustTask(t, 2, s.at(1, 7)) // the address is free
	s.down(t, two)
	s.close(t, 1, 2)
}

func overlaysAttach(t *testing.T, s OverlaySubject) {
	s.open(t, 1, 2)
	one := s.must(t, 1)
	s.attach(t, &one, s.at(1, 7))
	s.attach(t, &one, s.at(2, 7))
	if _, err := s.Network.Attach(t.Context(), one, s.at(2, 8)); !errdefs.IsAlreadyExists(err) {
		t.Errorf("attached twice: %v", err)
	}
	if _, err := s.Network.Attach(t.Context(), one, s.at(3, 8)); !errdefs.IsNotFound(err) {
		t.Errorf("attached to none: %v", err)
	}
	s.detach(t, &one, s.at(1, 7).Network)
	s.detach(t, &one, s.at(1, 7).Network)
	s.close(t, 1)
	s.detach(t, &one, core.NetworkDefault)
	s.wantSandboxes(t, 1)
	s.detach(t, &one, s.at(2, 7).Network)
	s.wantSandboxes(t)
	s.attach(t, &one, s.at(2, 7))
	s.wantSandboxes(t, 1)
	s.down(t, one)
	s.close(t, 2)
}

// overlaysRestart: the next agent knows the networks and their sandboxes, and removes interfaces of
// unrecorded sandboxes.
func overlaysRestart(t *testing.T, s OverlaySubject) {
	s.open(t, 1, 2)
	one := s.mustTask(t, 1, s.at(1, 7))
	lost := s.mustTask(t, 2, s.at(1, 8), s.at(2, 8))
	s = s.Restart(t, one)
	s.wantOpen(t, 1, 2)
	s.down(t, lost)
	s.wantSandboxes(t, 1)
	if err := s.Network.Check(t.Context(), one); err != nil {
		t.Errorf("check: %v", err)
	}
	s.open(t, 1)
	if err := s.Overlays.Prune(t.Context(), s.overlay(1).Name); err != nil {
		t.Error(err)
	}
	s.close(t, 2)
	if err := s.Overlays.Close(t.Context(), s.overlay(1).Name); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("closed with a sandbox: %v", err)
	}
	s.down(t, one)
	s.close(t, 1)
	s = s.Restart(t)
	s.wantOpen(t)
}

func overlaysIngress(t *testing.T, s OverlaySubject) {
	ctx := t.Context()
	if _, err := s.Overlays.Publish(ctx, nil); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("published without an ingress: %v", err)
	}
	in := core.Ingress{Network: s.overlay(1).Name, Addrs: s.at(1, 200).Addrs}
	if err := s.Overlays.OpenIngress(ctx, in); !errdefs.IsNotFound(err) {
		t.Errorf("an ingress on no network: %v", err)
	}
	s.open(t, 1)
	if err := s.Overlays.OpenIngress(ctx, core.Ingress{Network: in.Network}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("an ingress without an address: %v", err)
	}
	for range 2 {
		if err := s.Overlays.OpenIngress(ctx, in); err != nil {
			t.Fatal(err)
		}
	}
	port := core.PublishedPort{Proto: "tcp", Port: 18080, Backends: []core.OverlayBackend{{Addr: s.at(1, 9).Addrs[0].Addr()}}}
	if taken, err := s.Overlays.Publish(ctx, []core.PublishedPort{port}); err != nil || len(taken) != 0 {
		t.Errorf("publish: %+v, %v", taken, err)
	}
	if err := s.Overlays.Close(ctx, in.Network); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("closed with the ingress: %v", err)
	}
	s.wantSandboxes(t)
	for range 2 {
		if err := s.Overlays.CloseIngress(ctx); err != nil {
			t.Error(err)
		}
	}
	s.close(t, 1)
}
