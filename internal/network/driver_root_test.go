package network_test

import (
	"bytes"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/testdata/wire"
	"github.com/longshore/longshore/internal/roottest"
)

// wireLines is how many lines a driver to read has at most.
const wireLines = 150

func TestADriverToReadIsShort(t *testing.T) {
	src, err := os.ReadFile("testdata/wire/wire.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(src, []byte("\n")); n >= wireLines {
		t.Errorf("the driver has %d lines, want fewer than %d", n, wireLines)
	}
}

// The interface of the suite is the interface of drivers.
var (
	_ networktest.Driver = network.Driver(nil)
	_ network.Driver     = networktest.Driver(nil)
)

func newWire(kv core.KV) *wire.Driver {
	return &wire.Driver{KV: kv, Range: netip.MustParsePrefix("10.66.0.0/24")}
}

func TestADriverToReadKeepsTheContract(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.DriverContract(t, func(*testing.T) networktest.DriverSubject {
			kv := &networktest.KV{}
			return networktest.DriverSubject{
				Driver: newWire(kv), Network: wire.Network, Restart: func(*testing.T) networktest.Driver { return newWire(kv) },
			}
		})
	})
}

// TestANetworkOfAnAddedDriver: a sandbox is on the default network and on one of a driver that Network does not know
// otherwise, from its start or later.
func TestANetworkOfAnAddedDriver(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		d := newWire(&networktest.KV{})
		r.net.Add(d, d.Has)
		one := r.setup(1)
		ns := networktest.NewNamespace(t)
		req := r.request(ns, 2)
		req.Config.Attach = []core.Attachment{{Network: core.NetworkDefault}, {Network: wire.Network}}
		two := r.do(ns, req)
		st, err := r.net.Attach(t.Context(), one.req, core.Attachment{Network: wire.Network})
		if err != nil {
			t.Fatal(err)
		}
		one.req.Last = st
		for _, b := range []box{one, two} {
			if i := b.req.Last.On(wire.Network); i != 1 || b.req.Last.Interfaces[i].Interface != "eth1" || b.req.Last.On(core.NetworkDefault) != 0 {
				t.Fatalf("interfaces: %+v", b.req.Last)
			}
			r.check(b)
		}
		two.ns.Serve(t, "tcp", 80)
		wantAnswer(t, one.ns, "tcp", at(two.req.Last.Addrs[1], 80), one.req.Last.Addrs[1].String())
		wantAnswer(t, one.ns, "tcp", at(two.req.Last.Addrs[0], 80), one.req.Last.Addrs[0].String())
		if err := r.net.Recover(t.Context(), []core.NetworkRequest{one.req}); err != nil {
			t.Fatal(err)
		}
		if got := d.Holders(); !slices.Equal(got, []core.ID{one.req.Sandbox}) {
			t.Errorf("after Recover %v have an address", got)
		}
		if st, err = r.net.Detach(t.Context(), one.req, wire.Network); err != nil || st.On(wire.Network) >= 0 {
			t.Errorf("detach: %+v, %v", st, err)
		}
		one.req.Last = st
		r.check(one)
		r.down(one)
		if ids, err := r.net.Sandboxes(t.Context()); err != nil || len(ids) != 0 {
			t.Errorf("after teardown: %v, %v", ids, err)
		}
	})
}
