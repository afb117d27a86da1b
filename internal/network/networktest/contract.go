package networktest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/longshore/longshore/internal/core"
)

// Subject is a core.Network under test.
type Subject struct {
	Network core.Network
	// Namespace makes a new network namespace and returns its path. A fake may return any path.
	Namespace func(t *testing.T) string
	// Ports says that the network forwards ports and keeps claims of them.
	Ports bool
	// Ranges says that SetRanges takes effect.
	Ranges bool
	// Further are two more networks that sandboxes may be on; without them that is not tested.
	Further []string
}

// SandboxID makes an ID as the engine's are.
func SandboxID(n int) core.ID { return core.ID(fmt.Sprintf("%011x%053x", n, n)) }

// Contract tests a network against the contract of core.Network. subject is called for each part;
// parts that need root run if the caller is root.
func Contract(t *testing.T, subject func(t *testing.T) Subject) {
	t.Run("Setup", func(t *testing.T) { contractSetup(t, subject(t)) })
	t.Run("Teardown", func(t *testing.T) { contractTeardown(t, subject(t)) })
	t.Run("Again", func(t *testing.T) { contractAgain(t, subject(t)) })
	t.Run("Stats", func(t *testing.T) { contractStats(t, subject(t)) })
	t.Run("Host", func(t *testing.T) { contractHost(t, subject(t)) })
	t.Run("Ports", func(t *testing.T) {
		s := subject(t)
		if !s.Ports {
			t.Skip("forwards no ports")
		}
		contractPorts(t, s)
	})
	t.Run("ChosenPorts", func(t *testing.T) {
		s := subject(t)
		if !s.Ports {
			t.Skip("forwards no ports")
		}
		contractChosenPorts(t, s)
	})
	t.Run("Attach", func(t *testing.T) {
		s := subject(t)
		if len(s.Further) < 2 {
			t.Skip("has one network")
		}
		contractAttach(t, s)
	})
	t.Run("Ranges", func(t *testing.T) {
		s := subject(t)
		if !s.Ranges {
			t.Skip("has no ranges")
		}
		contractRanges(t, s)
	})
}

// ContractWithout tests a network that makes no interfaces against the parts of the contract about
// the host's network and about unknown sandboxes.
func ContractWithout(t *testing.T, network core.Network) {
	s := Subject{Network: network}
	t.Run("Host", func(t *testing.T) { contractHost(t, s) })
	t.Run("Teardown", func(t *testing.T) {
		for range 2 {
			s.down(t, core.NetworkRequest{Sandbox: SandboxID(9)})
		}
		s.wantSandboxes(t)
	})
	t.Run("Stats", func(t *testing.T) {
		for _, reqs := range [][]core.NetworkRequest{nil, {{Sandbox: SandboxID(9)}}} {
			if got, err := network.Stats(t.Context(), reqs); err != nil || len(got) != 0 {
				t.Errorf("stats of nobody: %+v, %v", got, err)
			}
		}
	})
}

func (s Subject) setup(t *testing.T, n int, ports ...core.Port) (core.NetworkRequest, error) {
	t.Helper()
	req := core.NetworkRequest{
		Sandbox: SandboxID(n), Owner: core.OwnerCLI, Namespace: s.Namespace(t), Config: core.NetworkConfig{Ports: ports},
	}
	st, err := s.Network.Setup(t.Context(), req)
	req.Last = st
	return req, err
}

func (s Subject) must(t *testing.T, n int, ports ...core.Port) core.NetworkRequest {
	t.Helper()
	req, err := s.setup(t, n, ports...)
	if err != nil {
		t.Fatalf("setup: %v", err)
	}
	return req
}

func (s Subject) down(t *testing.T, req core.NetworkRequest) {
	t.Helper()
	if err := s.Network.Teardown(t.Context(), req); err != nil {
		t.Errorf("teardown: %v", err)
	}
}

func (s Subject) wantSandboxes(t *testing.T, want ...int) {
	t.Helper()
	var ids []core.ID
	for _, n := range want {
		ids = append(ids, SandboxID(n))
	}
	got, err := s.Network.Sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	slices.Sort(ids)
	if diff := cmp.Diff(ids, slices.Clip(got)); diff != "" && len(ids)+len(got) > 0 {
		t.Errorf("sandboxes: %s", diff)
	}
}

func contractSetup(t *testing.T, s Subject) {
	info, err := s.Network.Info(t.Context())
	if err != nil || !info.Ready {
		t.Fatalf("not ready: %+v, %v", info, err)
	}
	s.wantSandboxes(t)
	one, two := s.must(t, 1), s.must(t, 2)
	for _, req := range []core.NetworkRequest{one, two} {
		if req.Last.Mode != info.Mode {
			t.Errorf("mode %q, want %q", req.Last.Mode, info.Mode)
		}
		if len(req.Last.Addrs) == 0 || !req.Last.Addrs[0].IsValid() {
			t.Fatalf("no address: %+v", req.Last)
		}
		if err := s.Network.Check(t.Context(), req); err != nil {
			t.Errorf("check: %v", err)
		}
	}
	if one.Last.Addrs[0] == two.Last.Addrs[0] {
		t.Errorf("both have %s", one.Last.Addrs[0])
	}
	s.wantSandboxes(t, 1, 2)
	s.down(t, one)
	s.wantSandboxes(t, 2)
	s.down(t, two)
	s.wantSandboxes(t)
}

func contractTeardown(t *testing.T, s Subject) {
	s.down(t, core.NetworkRequest{Sandbox: SandboxID(9)}) // one that never existed
	req := s.must(t, 1)
	gone := req
	gone.Namespace, gone.Last = "", core.NetworkStatus{} // after a crash nothing is known of it
	s.down(t, gone)
	s.down(t, gone)
	s.down(t, req)
	s.wantSandboxes(t)
	if err := s.Network.Check(t.Context(), req); err == nil {
		t.Error("check finds nothing missing after teardown")
	}
}

func contractAgain(t *testing.T, s Subject) {
	req := s.must(t, 1)
	s.down(t, req)
	again := s.must(t, 1) // in a new namespace
	if err := s.Network.Check(t.Context(), again); err != nil {
		t.Errorf("check: %v", err)
	}
	s.down(t, again)
	req = again
	req.Config.Name = "no-such-network"
	if _, err := s.Network.Setup(t.Context(), req); err == nil {
		t.Error("setup of an unknown network succeeds")
	}
	s.wantSandboxes(t)
	req.Config.Name = core.NetworkNone
	st, err := s.Network.Setup(t.Context(), req)
	if err != nil || len(st.Addrs) != 0 {
		t.Errorf("loopback only: %+v, %v", st, err)
	}
	s.wantSandboxes(t)
}

func contractStats(t *testing.T, s Subject) {
	one, two := s.must(t, 1), s.must(t, 2)
	none := core.NetworkRequest{Sandbox: SandboxID(3), Namespace: s.Namespace(t), Config: core.NetworkConfig{Name: core.NetworkNone}}
	host := core.NetworkRequest{Sandbox: SandboxID(4)}
	for _, req := range []*core.NetworkRequest{&none, &host} {
		st, err := s.Network.Setup(t.Context(), *req)
		if err != nil {
			t.Fatal(err)
		}
		req.Last = st
	}
	all := []core.NetworkRequest{one, none, two, host, {Sandbox: SandboxID(9)}}
	got, err := s.Network.Stats(t.Context(), all)
	if err != nil || len(got) != 2 {
		t.Fatalf("stats of two sandboxes with a network, one without and one of the host's: %+v, %v", got, err)
	}
	for _, req := range []core.NetworkRequest{one, two} {
		if n := got[req.Sandbox]; len(n) != 1 || n[0].Name != "eth0" {
			t.Errorf("sandbox %s: %+v", req.Sandbox.Short(), n)
		}
	}
	if got, err := s.Network.Stats(t.Context(), nil); err != nil || len(got) != 0 {
		t.Errorf("stats of nobody: %+v, %v", got, err)
	}
	s.down(t, one)
	s.down(t, two)
}

func contractHost(t *testing.T, s Subject) {
	req := core.NetworkRequest{Sandbox: SandboxID(1)}
	st, err := s.Network.Setup(t.Context(), req)
	if err != nil || st.Mode != "host" {
		t.Errorf("host network: %+v, %v", st, err)
	}
	req.Last = st
	if err := s.Network.Check(t.Context(), req); err != nil {
		t.Errorf("check: %v", err)
	}
	s.down(t, req)
	s.wantSandboxes(t)
}

func contractPorts(t *testing.T, s Subject) {
	port := core.Port{Proto: "tcp", Host: 18080, Container: 80}
	one := s.must(t, 1, port)
	if got := one.Last.Ports; !slices.Equal(got, []core.Port{port}) {
		t.Errorf("ports: %v", got)
	}
	_, err := s.setup(t, 2, port)
	if !errdefs.IsFailedPrecondition(err) {
		t.Errorf("port of another: %v", err)
	}
	s.wantSandboxes(t, 1) // nothing is left of the one that failed
	udp := port
	udp.Proto = "udp"
	two := s.must(t, 2, udp)
	s.down(t, one)
	three := s.must(t, 3, port)
	s.down(t, two)
	s.down(t, three)
	if _, err := s.setup(t, 4, core.Port{Proto: "icmp", Host: 1, Container: 1}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("unknown protocol: %v", err)
	}
	s.wantSandboxes(t)
}

// contractChosenPorts: the network chooses the host ports that nobody has named.
func contractChosenPorts(t *testing.T, s Subject) {
	free := core.Port{Proto: "tcp", Container: 80}
	named := core.Port{Proto: "udp", Host: 18053, Container: 53}
	one, two := s.must(t, 1, free, named, free), s.must(t, 2, free)
	for _, req := range []core.NetworkRequest{one, two} {
		if err := s.Network.Check(t.Context(), req); err != nil {
			t.Errorf("check: %v", err)
		}
	}
	seen := map[uint16]bool{}
	got := slices.Concat(one.Last.Ports, two.Last.Ports)
	if len(got) != 4 || got[1] != named {
		t.Fatalf("ports: %+v", got)
	}
	for _, p := range []core.Port{got[0], got[2], got[3]} {
		if p.Host == 0 || seen[p.Host] || p.Proto != "tcp" || p.Container != 80 {
			t.Errorf("chosen ports: %+v", got)
		}
		seen[p.Host] = true
	}
	if one.Config.Ports[0].Host != 0 {
		t.Error("the request was changed")
	}
	// A request for a chosen port fails until the port is released.
	taken := core.Port{Proto: "tcp", Host: got[0].Host, Container: 80}
	if _, err := s.setup(t, 3, taken); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a port that was chosen for another: %v", err)
	}
	s.down(t, one)
	three := s.must(t, 3, taken)
	s.down(t, two)
	s.down(t, three)
	s.wantSandboxes(t)
}

func contractRanges(t *testing.T, s Subject) {
	ctx := t.Context()
	before, err := s.Network.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	one := s.must(t, 1)
	for _, bad := range [][]string{{"10.0.0.0/33"}, {"no range"}, {}, {"10.99.0.0/24", "10.99.0.128/25"}} {
		if err := s.Network.SetRanges(ctx, bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("SetRanges(%q): %v", bad, err)
		}
	}
	if now, err := s.Network.Info(ctx); err != nil || !slices.Equal(now.Ranges, before.Ranges) {
		t.Errorf("ranges after bad ones: %v, want %v (%v)", now.Ranges, before.Ranges, err)
	}
	if err := s.Network.SetRanges(ctx, []string{"10.99.7.13/24"}); err != nil {
		t.Fatal(err)
	}
	now, err := s.Network.Info(ctx)
	if err != nil || len(now.Ranges) != 1 || now.Ranges[0].String() != "10.99.7.0/24" {
		t.Errorf("ranges %v, %v", now.Ranges, err)
	}
	two := s.must(t, 2)
	if !now.Ranges[0].Contains(two.Last.Addrs[0]) {
		t.Errorf("%s is not of %s", two.Last.Addrs[0], now.Ranges[0])
	}
	for _, req := range []core.NetworkRequest{one, two} {
		if err := s.Network.Check(ctx, req); err != nil {
			t.Errorf("check of %v: %v", req.Last.Addrs, err)
		}
	}
	// Without network, gateway and broadcast a /30 has one address.
	if err := s.Network.SetRanges(ctx, []string{"10.98.0.0/30"}); err != nil {
		t.Fatal(err)
	}
	three := s.must(t, 3)
	if _, err := s.setup(t, 4); !errdefs.IsResourceExhausted(err) {
		t.Errorf("a range with one address gave two: %v", err)
	}
	s.wantSandboxes(t, 1, 2, 3)
	for _, req := range []core.NetworkRequest{one, two, three} {
		s.down(t, req)
	}
}
