package native

import (
	"os"
	"os/exec"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

func TestWhoIsExiting(t *testing.T) {
	for stat, want := range map[string]bool{
		"7 (a) b) S 1 7 7 0 -1 4194304 10": false,
		"7 (sh) D 1 7 7 0 -1 4194308 10":   true,
		"7 (sh) Z 1 7 7 0 -1 4194304 10":   true,
		"7 (sh) S 1":                       false,
		"":                                 false,
	} {
		if got := exitingIn([]byte(stat)); got != want {
			t.Errorf("%q: %v", stat, got)
		}
	}
	if exiting(os.Getpid()) {
		t.Error("this process is exiting")
	}
	cmd := exec.CommandContext(t.Context(), "true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	roottest.Eventually(t, "the child is exiting", func() bool { return exiting(cmd.Process.Pid) })
	if err := cmd.Wait(); err != nil || !exiting(cmd.Process.Pid) {
		t.Errorf("it is gone: %v", err)
	}
}
