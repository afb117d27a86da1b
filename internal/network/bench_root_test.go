package network_test

import (
	"io"
	"slices"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestBuiltinPace prints how long setup and teardown take, and asserts nothing about it.
func TestBuiltinPace(t *testing.T) {
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

// TestPublishedPortPace prints what the way of a published port costs beside that of a sandbox's
// host port, from another machine to a task of this node, and asserts nothing about it.
func TestPublishedPortPace(t *testing.T) {
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
