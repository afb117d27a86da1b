package network

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/kernel"
)

const table = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:  100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
ls0123: 18446744073709551615 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
 torn: 1 2 3
  odd: 1 2 3 4 5 6 7 8 x 10 11 12 13 14 15 16
`

func TestTheHostsCountersAreTurnedRound(t *testing.T) {
	got := counters([]byte(table))
	if len(got) != 2 {
		t.Errorf("%d interfaces: %+v", len(got), got)
	}
	in := kernel.OtherEnd(got["ls0123"], "net7")
	want := core.NetStats{
		Name:    "net7",
		RxBytes: 9, RxPackets: 10, RxErrors: 11, RxDropped: 12,
		TxBytes: 1<<64 - 1, TxPackets: 2, TxErrors: 3, TxDropped: 4,
	}
	if d := cmp.Diff(want, in); d != "" {
		t.Error(d)
	}
}

func FuzzCounters(f *testing.F) {
	f.Add([]byte(table))
	f.Fuzz(func(t *testing.T, text []byte) {
		for name, s := range counters(text) {
			if s.Name != name {
				t.Errorf("%q is called %q", name, s.Name)
			}
		}
	})
}
