package view

import (
	"testing"
	"time"

	"github.com/longshore/longshore/internal/core"
)

func TestOnlyWhatIsKnownIsTold(t *testing.T) {
	st := core.Stats{At: time.Unix(5, 5e8)}
	st.CPU.User, st.Memory.Usage, st.Pids.Processes = core.Known(1500000000), core.Known(77), core.Known(3)
	st.Net = []core.NetStats{{RxBytes: 1, TxBytes: 2}, {RxBytes: 10, TxBytes: 20}}
	r := Statistics(st)
	if r.GetTimestamp() != 5.5 || r.GetCpusUserTimeSecs() != 1.5 || r.GetMemTotalBytes() != 77 || r.GetProcesses() != 3 || r.GetNetRxBytes() != 11 || r.GetNetTxBytes() != 22 {
		t.Errorf("%v", r)
	}
	if r.CpusSystemTimeSecs != nil || r.MemLimitBytes != nil || r.Threads != nil || r.MemUnevictableBytes != nil {
		t.Errorf("what nobody knows is told: %v", r)
	}
	if r := Statistics(core.Stats{}); r.NetRxBytes != nil {
		t.Errorf("without interfaces: %v", r)
	}
}

func TestMachineMetrics(t *testing.T) {
	all, err := MachineMetrics(time.Now().Add(-time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range all {
		got[f.Name] = f.Value
	}
	has, err := MachineResources(t.TempDir(), 2)
	if err != nil || len(has) != 4 || has[1].GetName() != "mem" || has[2].GetScalar().GetValue() < 1 || has[3].GetScalar().GetValue() != 2 {
		t.Fatalf("resources %v, %v", has, err)
	}
	total := uint64(got["system/mem_total_bytes"])
	if float64(total>>20) != has[1].GetScalar().GetValue() || got["slave/uptime_secs"] < 60 || got["system/cpus_total"] != has[0].GetScalar().GetValue() {
		t.Errorf("%v, with resources %v", got, has)
	}
}
