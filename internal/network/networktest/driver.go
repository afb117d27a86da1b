package networktest

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/longshore/longshore/internal/core"
)

// Driver is network.Driver. Package network is not imported, so that tests of other modules can use this package without
// the libraries that the drivers link.
type Driver interface {
	Attach(ctx context.Context, req core.NetworkRequest, st core.NetworkStatus) (core.NetworkStatus, error)
	Detach(ctx context.Context, req core.NetworkRequest, network string) error
	Release(ctx context.Context, req core.NetworkRequest, network string) error
	Check(ctx context.Context, req core.NetworkRequest) error
	Recover(ctx context.Context, live []core.NetworkRequest) error
	Holders() []core.ID
}

// DriverSubject is a driver with one network, on the real kernel.
type DriverSubject struct {
	Driver Driver
	// Network is the name of the network in requests, and Status its name in NetworkStatus; "": the same.
	Network, Status string
	// Attachment returns the interface that sandbox n requests; nil: one with the network's name alone.
	Attachment func(n int) core.Attachment
	// Restart stops the driver and returns one that has read the same store, as the next agent does. It does not
	// call Recover.
	Restart func(t *testing.T) Driver
}

// driverPort is where sandboxes answer.
const driverPort = 8080

// DriverContract tests a driver against the contract of network.Driver. It needs root; subject is called for each part.
func DriverContract(t *testing.T, subject func(t *testing.T) DriverSubject) {
	for _, part := range []struct {
		name string
		test func(*testing.T, DriverSubject)
	}{
		{"Attach", driverAttach},
		{"Together", driverTogether},
		{"Failed", driverFailed},
		{"Detach", driverDetach},
		{"Release", driverRelease},
		{"Check", driverCheck},
		{"Recover", driverRecover},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(t, subject(t)) })
	}
}

// driven is a sandbox of the suite.
type driven struct {
	ns  *Namespace
	req core.NetworkRequest
}

// box returns sandbox n with a namespace, not attached yet.
func (s DriverSubject) box(t *testing.T, n int) driven {
	t.Helper()
	a := core.Attachment{Network: s.Network}
	if s.Attachment != nil {
		a = s.Attachment(n)
	}
	ns := NewNamespace(t)
	return driven{ns, core.NetworkRequest{
		Sandbox: SandboxID(n), Owner: core.OwnerCLI, Namespace: ns.Path, Config: core.NetworkConfig{Name: s.Network, Attach: []core.Attachment{a}},
	}}
}

func (s DriverSubject) attach(t *testing.T, n int) driven {
	t.Helper()
	b := s.box(t, n)
	var err error
	if b.req.Last, err = s.Driver.Attach(t.Context(), b.req, core.NetworkStatus{}); err != nil {
		t.Fatalf("attach sandbox %d: %v", n, err)
	}
	if i := b.req.Last.On(s.status()); i < 0 || len(b.req.Last.Interfaces[i].Addrs) == 0 || len(b.req.Last.Addrs) == 0 || b.req.Last.Mode == "" {
		t.Fatalf("sandbox %d: %+v", n, b.req.Last)
	}
	return b
}

func (s DriverSubject) status() string {
	if s.Status != "" {
		return s.Status
	}
	return s.Network
}

func (s DriverSubject) detach(t *testing.T, b driven) {
	t.Helper()
	if err := s.Driver.Detach(t.Context(), b.req, s.status()); err != nil {
		t.Errorf("detach: %v", err)
	}
	if err := s.Driver.Release(t.Context(), b.req, s.status()); err != nil {
		t.Errorf("release from one network: %v", err)
	}
}

func (s DriverSubject) release(t *testing.T, req core.NetworkRequest) {
	t.Helper()
	if err := s.Driver.Release(t.Context(), req, ""); err != nil {
		t.Errorf("release: %v", err)
	}
}

func (s DriverSubject) holders(t *testing.T, want ...int) {
	t.Helper()
	ids := []core.ID{}
	for _, n := range want {
		ids = append(ids, SandboxID(n))
	}
	got := append([]core.ID{}, s.Driver.Holders()...)
	slices.Sort(got)
	if diff := cmp.Diff(ids, slices.Compact(got)); diff != "" {
		t.Errorf("holders: %s", diff)
	}
}

// whole checks that nothing of the sandboxes' interfaces is missing.
func (s DriverSubject) whole(t *testing.T, boxes ...driven) {
	t.Helper()
	for _, b := range boxes {
		if err := s.Driver.Check(t.Context(), b.req); err != nil {
			t.Errorf("check of sandbox %s: %v", b.req.Sandbox.Short(), err)
		}
	}
}

// asks has one sandbox ask another one, which must see its address.
func asks(t *testing.T, from, to driven) {
	t.Helper()
	saw, err := from.ns.Ask("tcp", netip.AddrPortFrom(to.req.Last.Addrs[0], driverPort).String())
	if want := from.req.Last.Addrs[0].String(); err != nil || saw != want {
		t.Errorf("sandbox %s asked %s: seen as %q, %v; want %q", from.req.Sandbox.Short(), to.req.Sandbox.Short(), saw, err, want)
	}
}

func findLink(name string) error {
	_, err := net.InterfaceByName(name)
	return err
}

// driverAttach: two sandboxes have addresses of their own, and reach each other.
func driverAttach(t *testing.T, s DriverSubject) {
	s.holders(t)
	one, two := s.attach(t, 1), s.attach(t, 2)
	if one.req.Last.Addrs[0] == two.req.Last.Addrs[0] {
		t.Errorf("both have %s", one.req.Last.Addrs[0])
	}
	s.whole(t, one, two)
	s.holders(t, 1, 2)
	two.ns.Serve(t, "tcp", driverPort)
	asks(t, one, two)
	s.release(t, one.req)
	s.release(t, two.req)
}

// driverTogether: calls for several sandboxes may come at the same time.
func driverTogether(t *testing.T, s DriverSubject) {
	const many = 6
	var boxes [many]driven
	var errs [many]error
	for i := range boxes {
		boxes[i] = s.box(t, i+1)
	}
	var all sync.WaitGroup
	for i := range boxes {
		all.Go(func() {
			boxes[i].req.Last, errs[i] = s.Driver.Attach(t.Context(), boxes[i].req, core.NetworkStatus{})
			s.Driver.Holders()
		})
	}
	all.Wait()
	addrs := map[string]bool{}
	for i, b := range boxes {
		if errs[i] != nil {
			t.Fatalf("attach: %v", errs[i])
		}
		addrs[b.req.Last.Addrs[0].String()] = true
	}
	if len(addrs) != many {
		t.Errorf("%d sandboxes have the addresses %v", many, addrs)
	}
	s.whole(t, boxes[:]...)
	for i, b := range boxes {
		all.Go(func() { errs[i] = s.Driver.Release(t.Context(), b.req, "") })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			t.Errorf("release: %v", err)
		}
	}
	s.holders(t)
}

// driverFailed: nothing is left of an Attach that fails, and the next one succeeds.
func driverFailed(t *testing.T, s DriverSubject) {
	b := s.box(t, 1)
	gone := b.req
	gone.Namespace += "-gone"
	if st, err := s.Driver.Attach(t.Context(), gone, core.NetworkStatus{}); err == nil {
		t.Errorf("attach without a namespace: %+v", st)
	}
	s.holders(t)
	one := s.attach(t, 1)
	s.whole(t, one)
	s.release(t, one.req)
	s.holders(t)
}

// driverDetach: a sandbox leaves a network and comes back; others stay on it.
func driverDetach(t *testing.T, s DriverSubject) {
	one, two := s.attach(t, 1), s.attach(t, 2)
	for range 2 { // it is idempotent
		s.detach(t, one)
	}
	s.holders(t, 2)
	name := one.req.Last.Interfaces[one.req.Last.On(s.status())].Interface
	if err := one.ns.Try(func() error { return findLink(name) }); err == nil {
		t.Errorf("link %s exists", name)
	}
	if err := s.Driver.Check(t.Context(), one.req); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("check of a sandbox that has left: %v", err)
	}
	s.whole(t, two)
	var err error
	if one.req.Last, err = s.Driver.Attach(t.Context(), one.req, core.NetworkStatus{}); err != nil {
		t.Fatalf("attach again: %v", err)
	}
	two.ns.Serve(t, "tcp", driverPort)
	asks(t, one, two)
	s.release(t, one.req)
	s.release(t, two.req)
	s.holders(t)
}

// driverRelease: addresses are free after Release, also when the caller knows only the ID of the sandbox.
func driverRelease(t *testing.T, s DriverSubject) {
	s.release(t, core.NetworkRequest{Sandbox: SandboxID(9)}) // one that never existed
	one := s.attach(t, 1)
	one.ns.Close()
	for _, req := range []core.NetworkRequest{{Sandbox: one.req.Sandbox}, one.req} { // after a crash the caller knows the ID alone
		s.release(t, req)
		s.holders(t)
	}
	if err := s.Driver.Check(t.Context(), one.req); err == nil {
		t.Error("check finds nothing missing after Release")
	}
}

// driverCheck: Check finds a link that the sandbox has removed.
func driverCheck(t *testing.T, s DriverSubject) {
	one := s.attach(t, 1)
	s.whole(t, one)
	name := one.req.Last.Interfaces[one.req.Last.On(s.status())].Interface
	Run(t, "nsenter --net="+one.ns.Path+" ip link del "+name)
	if err := s.Driver.Check(t.Context(), one.req); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("check of a sandbox without its link: %v", err)
	}
	s.release(t, one.req)
	s.holders(t)
}

// driverRecover: the next agent finds the sandboxes that live as they were, and releases the others.
func driverRecover(t *testing.T, s DriverSubject) {
	one, two, gone := s.attach(t, 1), s.attach(t, 2), s.attach(t, 3)
	two.ns.Serve(t, "tcp", driverPort)
	s.Driver = s.Restart(t)
	gone.ns.Close()
	for range 2 {
		if err := s.Driver.Recover(t.Context(), []core.NetworkRequest{one.req, two.req}); err != nil {
			t.Fatalf("recover: %v", err)
		}
	}
	s.holders(t, 1, 2)
	s.whole(t, one, two)
	asks(t, one, two)
	four := s.attach(t, 4)
	asks(t, four, two)
	for _, b := range []driven{one, two, four} {
		s.release(t, b.req)
	}
	s.holders(t)
}
