package main

import (
	"strings"
	"testing"

	"github.com/longshore/longshore/test/bench/server"
)

func TestALineComparesWithTheBetterPeer(t *testing.T) {
	all := map[string]samples{
		server.Longshore:  {podStart: {3, 1, 2}, podsPerSec: {100}, memory: {-1}},
		server.Containerd: {podStart: {20}, podsPerSec: {25}, memory: {5}},
		server.CRIO:       {podStart: {10}, podsPerSec: {10}},
	}
	others := []string{server.Containerd, server.CRIO}
	for _, c := range []struct {
		line   comparison
		fields string
	}{
		{comparison{label: "p50", name: podStart, at: 0.5, wanted: 0.25}, "p50 2.00 20.00 10.00 0.200 <= 0.250"},
		{comparison{label: "p99", name: podStart, at: 0.99, wanted: 0.25}, "p99 3.00 20.00 10.00 0.300 <= 0.250 missed"},
		{comparison{label: "rate", name: podsPerSec, at: 0.5, wanted: 5, more: true}, "rate 100.00 25.00 10.00 4.000 >= 5.000 missed"},
		{comparison{label: "rate", name: podsPerSec, at: 0.5, wanted: 4, more: true}, "rate 100.00 25.00 10.00 4.000 >= 4.000"},
		{comparison{label: "one peer", name: memory, at: 0.5, wanted: 0.25}, "one peer -1.00 5.00 NaN -0.200 <= 0.250"},
		{comparison{label: "nobody's", name: execSync, at: 0.5, wanted: 0.25}, ""},
		{comparison{label: "a part", name: podStart, at: 0.5, note: "see the sum"}, "a part 2.00 20.00 10.00 0.200 see the sum"},
		{comparison{label: "crun", name: podStart, at: 0.5, wanted: 0.25, ours: server.LongshoreCrun}, ""},
	} {
		if got := strings.Join(strings.Fields(c.line.format(all, others)), " "); got != c.fields {
			t.Errorf("%q, want %q", got, c.fields)
		}
	}
}
