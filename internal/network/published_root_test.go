package network_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/network"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/nft"
	"github.com/longshore/longshore/internal/roottest"
)

// publish publishes ports, of which these are taken.
func (r *rig) publish(list []network.Published, taken ...uint16) {
	r.t.Helper()
	got, err := r.net.Publish(r.t.Context(), list)
	if err != nil {
		r.t.Fatal(err)
	}
	if len(got) != len(taken) {
		r.t.Errorf("taken: %v, want %v", got, taken)
		return
	}
	for i, port := range taken {
		if got[i].Port != port || got[i].Err == nil {
			r.t.Errorf("taken: %v, want %v", got, taken)
		}
	}
}

// TestAPortLeadsToBackends: connections to a published port come to each backend in turn, from the
// host, from outside and from a backend itself; a port that somebody else has is none of ours, and
// keeps the others from nothing.
func TestAPortLeadsToBackends(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		o := newOutside(t)
		a, b := r.setup(1), r.setup(2)
		a.ns.Serve(t, "tcp", 80)
		b.ns.Serve(t, "udp", 80)
		behind := func(box box, port uint16) nft.Backend { return nft.Backend{Addr: box.addr(true), Port: port} }
		web := network.Published{Proto: "tcp", Port: 8080, Backends: []nft.Backend{behind(a, 80)}}
		dns := network.Published{Proto: "udp", Port: 80, Backends: []nft.Backend{behind(b, 0)}}
		r.publish([]network.Published{web, dns})
		gateway := a.req.Last.Gateways[0].String()
		wantAnswer(t, nil, "tcp", "127.0.0.1:8080", gateway)
		wantAnswer(t, nil, "udp", "127.0.0.1:80", gateway)
		wantAnswer(t, o.ns, "tcp", at(o.host4, 8080), o.addr4.String())
		wantAnswer(t, o.ns, "udp", at(o.host4, 80), o.addr4.String())
		wantAnswer(t, a.ns, "tcp", at(o.host4, 8080), gateway) // itself
		for _, proto := range []string{"tcp", "udp"} {
			if got, err := b.ns.Ask(proto, at(o.host4, map[string]uint16{"tcp": 8080, "udp": 80}[proto])); err != nil {
				t.Errorf("%s from the other sandbox: %q, %v", proto, got, err)
			}
		}
		// Two backends, of which one refuses: they take turns.
		web.Backends = append(web.Backends, behind(b, 80))
		r.publish([]network.Published{web, dns})
		served := 0
		for range 4 {
			if _, err := networktest.Ask("tcp", "127.0.0.1:8080"); err == nil {
				served++
			}
		}
		if served != 2 {
			t.Errorf("%d of 4 connections came to the first of two backends", served)
		}

		// A process of the host has the port of the second, a sandbox that of the third.
		stop, err := networktest.Serve(t, "tcp", netip.MustParseAddrPort("0.0.0.0:8081"))
		if err != nil {
			t.Fatal(err)
		}
		c := r.setup(3, port("tcp", 8082, 80))
		web.Backends = web.Backends[:1]
		second, third := web, web
		second.Port, third.Port = 8081, 8082
		r.publish([]network.Published{web, second, third}, 8081, 8082)
		wantAnswer(t, nil, "tcp", "127.0.0.1:8080", gateway)
		wantAnswer(t, nil, "tcp", "127.0.0.1:8081", "127.0.0.1")
		trouble, hint := r.net.Trouble()
		if !strings.Contains(trouble, "tcp *:8081") || !strings.Contains(trouble, "tcp *:8082: taken by sandbox "+string(c.req.Sandbox)) || hint == "" {
			t.Errorf("trouble %q, %q", trouble, hint)
		}
		stop()
		r.down(c)
		r.publish([]network.Published{web, second, third})
		wantAnswer(t, nil, "tcp", "127.0.0.1:8081", gateway)
		if trouble, _ := r.net.Trouble(); trouble != "" {
			t.Errorf("trouble %q", trouble)
		}

		// A sandbox does not get a published port, and the next agent takes all over.
		r.start()
		if err := r.net.Recover(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		r.publish([]network.Published{third})
		if _, err := r.net.Setup(t.Context(), r.request(networktest.NewNamespace(t), 4, port("tcp", 8082, 80))); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "publish") {
			t.Errorf("a sandbox takes a published port: %v", err)
		}
		if _, err := networktest.Ask("tcp", "127.0.0.1:8080"); err == nil {
			t.Error("a port that is not published any more leads somewhere")
		}
		if _, err := r.net.Publish(t.Context(), []network.Published{{Proto: "tcp"}}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("port 0: %v", err)
		}
		r.publish(nil)
		if err := r.net.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if out := networktest.Run(t, "nft list tables"); strings.Contains(out, "longshore") {
			t.Errorf("left: %s", out)
		}
	})
}
