package agent

import (
	"testing"
	"time"

	"github.com/longshore/longshore/internal/core"
)

func TestExitReason(t *testing.T) {
	at := time.Unix(1000, 0)
	for want, a := range map[string]core.Autopsy{
		reasonCompleted:  {Exit: core.Exit{At: at}},
		reasonFailed:     {Exit: core.Exit{Code: 3, At: at}},
		reasonSignal:     {Exit: core.Exit{Code: 139, Signal: 11, At: at}},
		reasonMemory:     {Exit: core.Exit{Code: 137, Signal: 9, At: at}, OOM: &core.OOM{Main: true}},
		reasonRequested:  {Exit: core.Exit{Code: 143, Signal: 15, At: at}, StopRequest: &core.StopRequest{Stop: true, Signal: 15, At: at}},
		reasonUnhealthy:  {Exit: core.Exit{Code: 137, Signal: 9, At: at}, StopRequest: &core.StopRequest{Stop: true, Signal: 9, At: at, Call: core.UnhealthyCall}},
		reasonNotStarted: {Exit: core.Exit{Code: 127, At: at}, Start: "no such file"},
		reasonLost:       {Exit: core.Exit{Code: 137, Lost: true, At: at}},
	} {
		if got := exitReason(&a); got != want {
			t.Errorf("%+v: %s, want %s", a, got, want)
		}
	}
	child := core.Autopsy{Exit: core.Exit{Code: 1, At: at}, OOM: &core.OOM{Kills: 1}}
	if got := exitReason(&child); got != reasonFailed {
		t.Errorf("a child ran out of memory: %s", got)
	}
}
