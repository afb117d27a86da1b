package kata

import (
	"context"
	"fmt"
	"strings"
	"testing"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/core"
)

func (*fakeMachine) LinkStats(context.Context) ([]core.NetStats, error) {
	return []core.NetStats{{Name: "eth0", RxBytes: 1, RxPackets: 2, RxErrors: 3, RxDropped: 4, TxBytes: 5, TxPackets: 6, TxErrors: 7, TxDropped: 8}}, nil
}

// TestStats: the names of a disk's figures are those that shims look for, and the links
// are the machine's.
func TestStats(t *testing.T) {
	list := []core.IOStats{{Major: 8, Minor: 1, ReadBytes: 2, WriteBytes: 3, Reads: 4, Writes: 5}}
	text := func(list []*katav1.BlkioStatsEntry) string {
		var all []string
		for _, e := range list {
			all = append(all, fmt.Sprintf("%d:%d %s %d", e.GetMajor(), e.GetMinor(), e.GetOp(), e.GetValue()))
		}
		return strings.Join(all, ", ")
	}
	if got := toIOStats(list, true); text(got.GetIoServiceBytesRecursive()) != "8:1 read 2, 8:1 write 3, 8:1 rios 4, 8:1 wios 5" || len(got.GetIoServicedRecursive()) > 0 {
		t.Errorf("cgroup v2: %v", got)
	}
	if got := toIOStats(list, false); text(got.GetIoServiceBytesRecursive()) != "8:1 Read 2, 8:1 Write 3" || text(got.GetIoServicedRecursive()) != "8:1 Read 4, 8:1 Write 5" {
		t.Errorf("cgroup v1: %v", got)
	}
	r := newRig(t)
	r.sandbox(t)
	r.run(t, "c1", "cat")
	got, err := r.StatsContainer(t.Context(), &katav1.StatsContainerRequest{ContainerId: "c1"})
	if err != nil || len(got.GetNetworkStats()) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	n := got.GetNetworkStats()[0]
	if figures := fmt.Sprint(n.GetName(), n.GetRxBytes(), n.GetRxPackets(), n.GetRxErrors(), n.GetRxDropped(), n.GetTxBytes(), n.GetTxPackets(), n.GetTxErrors(), n.GetTxDropped()); figures != "eth01 2 3 4 5 6 7 8" {
		t.Errorf("the link's figures are %s", figures)
	}
}
