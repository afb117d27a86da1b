package network_test

import (
	"io"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/vxlan"
	"github.com/longshore/longshore/internal/roottest"
)

// paceEnv must be 1 to measure; make bench-network does that.
const paceEnv = "LONGSHORE_NETWORK_PACE"

func measures(t *testing.T) {
	t.Helper()
	if os.Getenv(paceEnv) != "1" {
		t.Skipf("measures and asserts nothing: set %s=1", paceEnv)
	}
}

// TestBuiltinPace prints how long setup and teardown take, and asserts nothing about it.
func TestBuiltinPace(t *testing.T) {
	measures(t)
	roottest.Run(t, func(t *testing.T) {
		for _, ports := range [][]core.Port{nil, {{Proto: "tcp", Host: 8080, Container: 80}, {Proto: "tcp", Host: 8081, Container: 81}}, {{Proto: "udp", Host: 8081, Container: 81}}} {
			r := newRig(t, nil)
			var up, down []time.Duration
			for i := range 60 {
				ns := networktest.NewNamespace(t)
				start := time.Now()
				b := r.do(ns, r.request(ns, i, ports...))
				up = append(up, time.Since(start))
				start = time.Now()
				if err := r.net.Teardown(t.Context(), b.req); err != nil {
					t.Fatal(err)
				}
				down = append(down, time.Since(start))
				b.ns.Close()
			}
			slices.Sort(up)
			slices.Sort(down)
			t.Logf("%d ports: setup p50 %s p99 %s, teardown p50 %s p99 %s", len(ports), up[30], up[59], down[30], down[59])
		}
	})
}

// TestPublishedPortPace prints the cost of a published port beside that of a sandbox's host port,
// from another machine to a task of this node, and asserts nothing about it.
func TestPublishedPortPace(t *testing.T) {
	measures(t)
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		o := newOutside(t)
		m := newMesh(t, r, meshRange)
		m.openIngress()
		m.serve(m.task(11, 0), 11, "tcp", 8080)
		m.publish([]core.PublishedPort{m.port("tcp", 8080, 11)})
		box := r.setup(1, port("tcp", 8081, 8080))
		m.serve(box.ns, 1, "tcp", 8080)
		const rounds, connections, echoes, bulk = 5, 300, 1000, 16 << 20
		least := map[string]time.Duration{}
		for range rounds {
			for name, p := range map[string]uint16{"published": 8080, "host": 8081} {
				for what, do := range map[string]func(session){
					"connection": func(session) {
						for range connections {
							s, err := dial(t, o.ns, "tcp", at(o.host4, p))
							if err != nil {
								t.Fatal(err)
							}
							_ = s.Close()
						}
					},
					"echo": func(s session) {
						for range echoes {
							s.echo(t)
						}
					},
					"MiB there and back": func(s session) {
						go func() { _, _ = s.Write(make([]byte, bulk)) }()
						if _, err := io.CopyN(io.Discard, s.r, bulk); err != nil {
							t.Error(err)
						}
					},
				} {
					s, err := dial(t, o.ns, "tcp", at(o.host4, p))
					if err != nil {
						t.Fatal(err)
					}
					start := time.Now()
					do(s)
					took := time.Since(start) / time.Duration(map[string]int{"connection": connections, "echo": echoes, "MiB there and back": bulk >> 20}[what])
					if was, ok := least[name+what]; !ok || took < was {
						least[name+what] = took
					}
					_ = s.Close()
				}
			}
		}
		for _, what := range []string{"connection", "echo", "MiB there and back"} {
			p, h := least["published"+what], least["host"+what]
			t.Logf("%s: published port %s, host port %s: %.2f times", what, p, h, float64(p)/float64(h))
		}
	})
}

// TestOverlayPace prints the costs of a large overlay, and asserts nothing about them: other nodes'
// messages, tasks that come and go, and a service that changes for all tasks of this node.
func TestOverlayPace(t *testing.T) {
	measures(t)
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		def := anOverlay(1)
		def.Subnets[0].Range = netip.MustParsePrefix("10.96.0.0/13")
		def.Subnets[0].Gateway = netip.MustParseAddr("10.96.0.1")
		start := time.Now()
		r.open(def)
		t.Logf("open: %s", time.Since(start))
		addr := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 97, byte(n >> 8), byte(n)}) }
		const endpoints, services, tasks = 2000, 200, 8
		peers := map[string]core.OverlayPeer{}
		for n := range endpoints {
			a := addr(n + 1)
			peers[a.String()] = core.OverlayPeer{Addr: a, MAC: vxlan.MACFor(a), Node: netip.AddrFrom4([4]byte{192, 0, 2, byte(n%200 + 2)})}
		}
		start = time.Now()
		if err := r.net.Overlays.SetPeers(t.Context(), def.Name, peers, nil); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d peers: %s", endpoints, time.Since(start))
		start = time.Now()
		if err := r.net.Overlays.SetPeers(t.Context(), def.Name, peers, nil); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d peers again: %s", endpoints, time.Since(start))
		list := make([]core.OverlayService, services)
		for i := range list {
			list[i].Addr = netip.AddrFrom4([4]byte{10, 98, 0, byte(i + 1)})
			for n := range endpoints / services {
				list[i].Backends = append(list[i].Backends, core.OverlayBackend{Addr: addr(i*endpoints/services + n + 1)})
			}
		}
		if err := r.net.Overlays.SetServices(t.Context(), def.Name, list); err != nil {
			t.Fatal(err)
		}
		var up, down []time.Duration
		var boxes []box
		for n := range tasks {
			ns := networktest.NewNamespace(t)
			req := r.request(ns, n)
			a := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 99, 0, byte(n + 1)}), 13)
			req.Config.Attach = []core.Attachment{{Network: "overlay:net1", Addrs: []netip.Prefix{a}}, {Network: core.NetworkDefault}}
			start := time.Now()
			boxes = append(boxes, r.do(ns, req))
			up = append(up, time.Since(start))
		}
		for what, change := range map[string]func(){
			"nothing": func() {}, "one backend": func() { list[7].Backends = list[7].Backends[1:] }, "all services": func() {
				for i := range list {
					list[i].Backends = list[i].Backends[1:]
				}
			},
		} {
			change()
			start := time.Now()
			if err := r.net.Overlays.SetServices(t.Context(), def.Name, list); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d services for %d tasks, %s changed: %s", services, tasks, what, time.Since(start))
		}
		var live []core.NetworkRequest
		for _, b := range boxes {
			live = append(live, b.req)
		}
		r.start()
		start = time.Now()
		if err := r.net.Recover(t.Context(), live); err != nil {
			t.Fatal(err)
		}
		t.Logf("adopted: %s", time.Since(start))
		start = time.Now()
		err := r.net.Overlays.SetPeers(t.Context(), def.Name, peers, nil)
		t.Logf("%d peers that are known: %s, %v", endpoints, time.Since(start), err)
		start = time.Now()
		err = r.net.Overlays.SetServices(t.Context(), def.Name, list)
		t.Logf("%d services of an earlier agent: %s, %v", services, time.Since(start), err)
		for _, b := range boxes {
			start := time.Now()
			r.down(b)
			down = append(down, time.Since(start))
		}
		slices.Sort(up)
		slices.Sort(down)
		t.Logf("tasks: setup p50 %s max %s, teardown p50 %s max %s", up[tasks/2], up[tasks-1], down[tasks/2], down[tasks-1])
	})
}
