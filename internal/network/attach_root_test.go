package network_test

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// define defines a network.
func (r *rig) define(def core.NetworkDefinition) {
	r.t.Helper()
	if _, err := r.net.Define(r.t.Context(), def); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) attach(b *box, a core.Attachment) {
	r.t.Helper()
	st, err := r.net.Attach(r.t.Context(), b.req, a)
	if err != nil {
		r.t.Fatal(err)
	}
	b.req.Last, b.req.Config = st, b.req.Config.With(a)
}

func (r *rig) detach(b *box, network string) {
	r.t.Helper()
	st, err := r.net.Detach(r.t.Context(), b.req, network)
	if err != nil {
		r.t.Fatal(err)
	}
	b.req.Last, b.req.Config = st, b.req.Config.Without(network)
}

// ip runs the program ip inside the sandbox.
func (b box) ip(t *testing.T, args ...string) string {
	t.Helper()
	var out []byte
	b.ns.Do(t, func() (err error) {
		out, err = exec.CommandContext(t.Context(), "ip", args...).CombinedOutput()
		return err
	})
	return string(out)
}

// wantWay asserts over which interface the default route leads; "" is none.
func (b box) wantWay(t *testing.T, iface string) {
	t.Helper()
	out := b.ip(t, "-4", "route", "show", "default")
	if iface == "" && out != "" || !strings.Contains(out, iface) || strings.Count(out, "default") > 1 {
		t.Errorf("default route %q, want one over %q", out, iface)
	}
}

// TestTheWayOutMoves: the default route and the ports of the host are with the first network that
// leads out, after each change, and recovery finds them where they were.
func TestTheWayOutMoves(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.define(core.NetworkDefinition{Name: "back", Internal: true})
		r.define(core.NetworkDefinition{Name: "app"})
		ns := networktest.NewNamespace(t)
		req := r.request(ns, 1, port("tcp", 18080, 80))
		req.Config.Name = "back"
		b := r.do(ns, req)
		b.wantWay(t, "")
		ns.Serve(t, "tcp", 80)
		reach := func(network string) {
			t.Helper()
			r.check(b)
			i := b.req.Last.On(network)
			b.wantWay(t, b.req.Last.Interfaces[i].Interface)
			if _, err := networktest.Ask("tcp", "127.0.0.1:18080"); err != nil {
				t.Errorf("with the way out over %s: %v", network, err)
			}
		}
		r.attach(&b, core.Attachment{Network: "app"})
		reach("app")
		r.attach(&b, core.Attachment{Network: core.NetworkDefault, Routes: []core.Route{{To: netip.MustParsePrefix("10.200.0.0/16")}}})
		reach("app")
		if out := b.ip(t, "route", "show", "10.200.0.0/16"); !strings.Contains(out, "eth2") {
			t.Errorf("route of the attachment: %q", out)
		}
		r.start()
		if err := r.net.Recover(t.Context(), []core.NetworkRequest{b.req}); err != nil {
			t.Fatal(err)
		}
		reach("app")
		r.detach(&b, "app")
		reach(core.NetworkDefault)
		r.detach(&b, core.NetworkDefault)
		b.wantWay(t, "")
		r.detach(&b, "back")
		r.attach(&b, core.Attachment{Network: "app"})
		reach("app")
		// A sandbox that never wants the default route there does not get it.
		r.detach(&b, "app")
		r.attach(&b, core.Attachment{Network: "app", NoDefault: true})
		b.wantWay(t, "")
		r.attach(&b, core.Attachment{Network: core.NetworkDefault})
		reach(core.NetworkDefault)
		r.down(b)
	})
}

// TestAnAttachmentWithoutARecordIsTakenAway: the agent died after it had attached a sandbox and
// before it recorded that, or after it had recorded that an attachment goes.
func TestAnAttachmentWithoutARecordIsTakenAway(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.define(core.NetworkDefinition{Name: "app"})
		b, other := r.setup(1), r.setup(2)
		links := networktest.Run(t, "ip -o link show type veth")
		if _, err := r.net.Attach(t.Context(), b.req, core.Attachment{Network: "app"}); err != nil {
			t.Fatal(err)
		}
		gone := other
		r.attach(&gone, core.Attachment{Network: "app"})
		r.detachUnseen(&gone)
		r.start()
		if err := r.net.Recover(t.Context(), []core.NetworkRequest{b.req, gone.req}); err != nil {
			t.Fatal(err)
		}
		if now := networktest.Run(t, "ip -o link show type veth"); strings.Count(now, "\n") != strings.Count(links, "\n") {
			t.Errorf("links before:\n%s\nafter:\n%s", links, now)
		}
		r.check(b)
		r.check(gone)
		if err := r.net.Undefine(t.Context(), "app"); err != nil {
			t.Errorf("a network that nobody is on: %v", err)
		}
		r.down(b)
		r.down(gone)
	})
}

// detachUnseen has the record say that a sandbox has left its second network.
func (r *rig) detachUnseen(b *box) {
	name := b.req.Last.Interfaces[1].Network
	b.req.Last, b.req.Config = b.req.Last.Without(name), b.req.Config.Without(name)
}
