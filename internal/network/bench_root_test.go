package network_test

import (
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
