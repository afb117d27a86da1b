package dockerclients_test

import (
	"os"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestLazydocker has lazydocker, which LAZYDOCKER names, show a container and its log on a terminal.
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
		_ = s.cmd.Process.Kill()
		s.ends()
		r.docker("rm", "-f", "shown")
		r.empty()
	})
}

// TestDozzle has dozzle, which DOZZLE names, list a container, follow its log, and stop it.
func TestDozzle(t *testing.T) {
	program := os.Getenv("DOZZLE")
	if program == "" {
		t.Skip("no dozzle: DOZZLE names its program, which is no Go module to be had")
	}
	roottest.Run(t, func(t *testing.T) {
		r := startDocker(t)
		id := r.docker("run", "-d", "--name", "shown", "--stop-signal", "KILL", "busybox", "sh", "-c", "echo first line; sleep 1000")[:12]
		server := r.begin(program, "--addr", "127.0.0.1:18090", "--no-analytics", "--enable-actions", "--release-check-mode", "manual")
		const site = "http://127.0.0.1:18090/api"
		nodetest.Eventually(t, "dozzle serves", func() bool {
			code, _, _ := r.output("", "/bin/busybox", "wget", "-q", "-O-", site+"/version")
			return code == 0
		})
		events := r.begin("/bin/busybox", "wget", "-q", "-O-", site+"/events/stream")
		list := events.reads(`"name":"shown"`)
		_, host, _ := strings.Cut(list+events.reads("}"), `"host":"`)
		host, _, _ = strings.Cut(host, `"`)
		if !strings.Contains(list, id) || host == "" {
			t.Fatalf("dozzle's list: %q", list)
		}
		container := site + "/hosts/" + host + "/containers/" + id
		log := r.begin("/bin/busybox", "wget", "-q", "-O-", container+"/logs/stream?stdout&stderr&levels=unknown&levels=info")
		log.reads("first line")
		if code, _, errs := r.output("", "/bin/busybox", "wget", "-q", "-O-", "--post-data", "", container+"/actions/stop"); code != 0 {
			t.Errorf("stop: %q", errs)
		}
		r.shows("exited", "inspect", "-f", "{{.State.Status}}", "shown")
		events.reads(`"name":"die"`)
		for _, s := range []*session{log, events, server} {
			_ = s.cmd.Process.Kill()
			s.ends()
		}
		r.docker("rm", "shown")
		r.empty()
	})
}
