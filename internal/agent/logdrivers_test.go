package agent

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/logs/ship"
)

// TestLogDriverFinding: a service that is down for a moment is none.
func TestLogDriverFinding(t *testing.T) {
	now := time.Now()
	down := ship.Trouble{Name: "web", Owner: "cri", Driver: "syslog", Since: now.Add(-failingPatience), Err: errors.New("refused")}
	short, stopped := down, down
	short.Since, stopped.Stopped, stopped.Name = now, true, "bad"
	for _, tt := range []struct {
		list []ship.Trouble
		want control.FindingStatus
		says string
	}{
		{nil, control.FindingOK, "7 logs are followed"},
		{[]ship.Trouble{short}, control.FindingOK, ""},
		{[]ship.Trouble{down, short}, control.FindingWarn, "1 containers do not arrive, such as web (cri): syslog: refused"},
		{[]ship.Trouble{down, stopped}, control.FindingFail, "1 containers have a log driver that cannot start, such as bad (cri)"},
	} {
		if f := logDriverFinding(tt.list, 7, now); f.Status != tt.want || !strings.Contains(f.Detail, tt.says) {
			t.Errorf("%+v, want %v %q", f, tt.want, tt.says)
		}
	}
}
