package server

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestPauseProgramWaitsUntilItIsKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pause")
	if err := os.WriteFile(path, pauseProgram(), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for state := ""; state != "S"; { // sleeping; one that has ended is none of these
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		if state = strings.Fields(string(stat))[2]; state == "Z" {
			t.Fatalf("it ended by itself: %v", cmd.Wait())
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !ws.Signaled() || ws.Signal() != syscall.SIGTERM {
		t.Fatalf("ended by %v", cmd.ProcessState)
	}
}
