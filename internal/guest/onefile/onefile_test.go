package onefile

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestAsked(t *testing.T) {
	for args, want := range map[string]bool{
		"longshore-keeper start /run/x": true,
		"longshore-keeper":              true,
		"/.init init":                   true,
		"/dev/.init init sh":            true,
		"/init":                         false,
		"/init init longshore-keeper":   false,
		"/sbin/init quiet":              false,
		"longshore-guest --listen x":    false,
		"kata-agent":                    false,
		"/longshore-keeper/init":        false,
	} {
		if got := Asked(strings.Fields(args)); got != want {
			t.Errorf("Asked(%q) = %v", args, got)
		}
	}
	if Asked(nil) {
		t.Error("without a name there is no program")
	}
}

// TestTheAgentIsNotMadeReady starts this test's own file as the keeper's program: its main
// is never reached, and neither are the inits of the packages that the agent has beside it.
func TestTheAgentIsNotMadeReady(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "probe")
	cmd.Args[0] = "longshore-keeper"
	if out, err := cmd.CombinedOutput(); err != nil || len(out) != 0 {
		t.Errorf("probe: %v, %q", err, out)
	}
	cmd = exec.CommandContext(t.Context(), self, "start")
	cmd.Args[0] = "longshore-keeper"
	if out, err := cmd.CombinedOutput(); err == nil || !strings.HasPrefix(string(out), "usage: longshore-keeper") {
		t.Errorf("too few arguments: %v, %q", err, out)
	}
}
