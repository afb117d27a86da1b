package dockerclients_test

import (
	"os"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// TestLazydocker has lazydocker, which LAZYDOCKER names, show a container and its log on a terminal, and stop and restart it.
func TestLazydocker(t *testing.T) {
	program := os.Getenv("LAZYDOCKER")
	if program == "" {
		t.Skip("no lazydocker: LAZYDOCKER names its program, which is no Go module to be had")
	}
	roottest.Run(t, func(t *testing.T) {
		r := startDocker(t)
		r.docker("run", "-d", "--name", "shown", "--stop-signal", "KILL", "busybox", "sh", "-c", "echo first line; sleep 1000")
		t.Setenv("TERM", "xterm")
		s := r.begin("script", "-qec", "stty rows 50 cols 200; "+program, "/dev/null")
		s.reads("shown")
		s.reads("first line") // of its log
		s.writes("3")         // the panel of the containers
		s.writes("s")
		s.reads("Confirm")
		s.writes("\r")
		s.reads("exited")
		r.shows("exited", "inspect", "-f", "{{.State.Status}}", "shown")
		s.writes("r")
		s.reads("restarting")
		s.reads("running")
		r.shows("running", "inspect", "-f", "{{.State.Status}}", "shown")
		s.writes("q")
		if code, rest := s.ends(); code != 0 {
			t.Errorf("exit code %d: %q", code, rest)
		}
		r.docker("rm", "-f", "shown")
		r.empty()
	})
}
