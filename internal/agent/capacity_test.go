package agent

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/control"
)

// TestALowLimitOfDescriptorsIsRaised runs itself with few descriptors.
func TestALowLimitOfDescriptorsIsRaised(t *testing.T) {
	const inside = "LONGSHORE_TEST_RAISE"
	if os.Getenv(inside) != "" {
		before, after := raiseFiles()
		fmt.Printf("from %d to %d\n", before, after)
		return
	}
	for _, c := range []struct{ limit, want string }{
		{"70000", "from 70000 to 70000\n"}, // fails without CAP_SYS_RESOURCE, or where the limit is low
		{"256", "from 256 to 65536\n"},
	} {
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "ulimit -n "+c.limit+" || exit 9; exec \"$0\" -test.run=^TestALowLimitOfDescriptorsIsRaised$", os.Args[0])
		cmd.Env = append(os.Environ(), inside+"=1")
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() == 9 || os.Geteuid() != 0 {
			t.Skip("this process may not raise a hard limit")
		}
		if err != nil || !strings.HasPrefix(string(out), c.want) {
			t.Errorf("with %s: %v: %s, want %s", c.limit, err, out, c.want)
		}
	}
}

func TestTheTightestLimitIsNamed(t *testing.T) {
	headrooms := []headroom{{"descriptors", 8000, "raise them"}, {"inotify", 128, "raise that"}, {"pids", 5000, "raise pids"}}
	f := roomFinding(headrooms)
	if f.Status != control.FindingOK || f.Detail != "for about 128 more containers: descriptors 8000, inotify 128, pids 5000" {
		t.Errorf("%+v", f)
	}
	headrooms[2].containers = 20
	if f = roomFinding(headrooms); f.Status != control.FindingWarn || f.Hint != "raise pids" || !strings.HasPrefix(f.Detail, "for about 20 more") {
		t.Errorf("%+v", f)
	}
}
