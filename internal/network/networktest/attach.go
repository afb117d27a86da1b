package networktest

import (
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// attach attaches a sandbox, which must succeed, and remembers its status.
func (s Subject) attach(t *testing.T, req *core.NetworkRequest, a core.Attachment) core.Attachment {
	t.Helper()
	st, err := s.Network.Attach(t.Context(), *req, a)
	if err != nil {
		t.Fatalf("attach to %s: %v", a.Network, err)
	}
	i := st.On(a.Network)
	if i < 0 || len(st.Interfaces) != len(req.Last.Interfaces)+1 || len(st.Interfaces[i].Addrs) == 0 {
		t.Fatalf("attached to %s: %+v", a.Network, st)
	}
	req.Last, req.Config = st, req.Config.With(a)
	if err := s.Network.Check(t.Context(), *req); err != nil {
		t.Errorf("check after attach to %s: %v", a.Network, err)
	}
	return st.Interfaces[i]
}

func (s Subject) detach(t *testing.T, req *core.NetworkRequest, network string) {
	t.Helper()
	st, err := s.Network.Detach(t.Context(), *req, network)
	if err != nil || st.On(network) >= 0 {
		t.Fatalf("detach from %s: %+v, %v", network, st, err)
	}
	req.Last, req.Config = st, req.Config.Without(network)
	if err := s.Network.Check(t.Context(), *req); err != nil {
		t.Errorf("check after detach from %s: %v", network, err)
	}
}

func (s Subject) wantInterfaces(t *testing.T, req core.NetworkRequest, want ...string) {
	t.Helper()
	stats, err := s.Network.Stats(t.Context(), []core.NetworkRequest{req})
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, i := range stats[req.Sandbox] {
		have = append(have, i.Name)
	}
	if slices.Sort(have); !slices.Equal(have, want) {
		t.Errorf("counters of %v, want %v", have, want)
	}
}

// contractAttach: a sandbox is on several networks, from its creation on or later.
func contractAttach(t *testing.T, s Subject) {
	app, back := s.Further[0], s.Further[1]
	one := s.must(t, 1)
	first := one.Last.Interfaces[0]
	second := s.attach(t, &one, core.Attachment{Network: app})
	if one.Last.Addrs[0] != first.Addrs[0].Addr() || !slices.Contains(one.Last.Addrs, second.Addrs[0].Addr()) || second.Interface == first.Interface {
		t.Errorf("attached: %+v", one.Last)
	}
	s.wantInterfaces(t, one, "eth0", "eth1")
	for _, network := range []string{core.NetworkDefault, app} {
		if _, err := s.Network.Attach(t.Context(), one, core.Attachment{Network: network}); !errdefs.IsAlreadyExists(err) {
			t.Errorf("attached twice to %s: %v", network, err)
		}
	}
	if _, err := s.Network.Attach(t.Context(), one, core.Attachment{Network: "no-such-network"}); !errdefs.IsNotFound(err) {
		t.Errorf("attached to no network: %v", err)
	}
	// An address that somebody has.
	two := s.must(t, 2)
	if _, err := s.Network.Attach(t.Context(), two, core.Attachment{Network: app, Addrs: second.Addrs}); !errdefs.IsAlreadyExists(err) {
		t.Errorf("an address of another: %v", err)
	}
	if err := s.Network.Check(t.Context(), two); err != nil {
		t.Errorf("check after a refused attach: %v", err)
	}
	// Detach is idempotent, and Teardown removes attached interfaces too.
	s.detach(t, &one, app)
	s.detach(t, &one, app)
	s.wantInterfaces(t, one, "eth0")
	s.attach(t, &one, core.Attachment{Network: app, Addrs: second.Addrs})
	s.attach(t, &one, core.Attachment{Network: back, Interface: "back0"})
	s.wantInterfaces(t, one, "back0", "eth0", "eth1")
	s.wantSandboxes(t, 1, 2)
	s.down(t, one)
	s.wantSandboxes(t, 2)
	// The first one, and the last one, may go before the sandbox.
	s.attach(t, &two, core.Attachment{Network: back})
	s.detach(t, &two, core.NetworkDefault)
	s.detach(t, &two, back)
	if len(two.Last.Addrs) != 0 || two.Config.Name != core.NetworkNone {
		t.Errorf("on no network: %+v, %+v", two.Last, two.Config)
	}
	s.wantSandboxes(t)
	s.attach(t, &two, core.Attachment{Network: app})
	s.wantSandboxes(t, 2)
	s.down(t, two)
	// All at once, and none when one of them is refused.
	req := core.NetworkRequest{
		Sandbox: SandboxID(3), Owner: core.OwnerCLI, Namespace: s.Namespace(t),
		Config: core.NetworkConfig{Name: app, Attach: []core.Attachment{{}, {Network: back}, {Network: core.NetworkDefault}}},
	}
	st, err := s.Network.Setup(t.Context(), req)
	if err != nil || len(st.Interfaces) != 3 || st.On(app) != 0 || st.On(back) != 1 || st.On(core.NetworkDefault) != 2 {
		t.Fatalf("three networks: %+v, %v", st, err)
	}
	req.Last = st
	if err := s.Network.Check(t.Context(), req); err != nil {
		t.Errorf("check: %v", err)
	}
	s.wantInterfaces(t, req, "eth0", "eth1", "eth2")
	bad := core.NetworkRequest{
		Sandbox: SandboxID(4), Owner: core.OwnerCLI, Namespace: s.Namespace(t),
		Config: core.NetworkConfig{Name: back, Attach: []core.Attachment{{}, {Network: app, Addrs: st.Interfaces[0].Addrs}}},
	}
	if st, err := s.Network.Setup(t.Context(), bad); !errdefs.IsAlreadyExists(err) {
		t.Errorf("an address of another: %+v, %v", st, err)
	}
	s.wantSandboxes(t, 3)
	s.down(t, req)
	s.wantSandboxes(t)
}
