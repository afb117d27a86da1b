package nomad

import (
	"strings"
	"testing"
)

// TestAServiceFromPullToStop is the way of a service job: pulled, running, looked
// at, signalled, stopped, gone.
func TestAServiceFromPullToStop(t *testing.T) {
	start(t, options{}, func(r *rig) {
		r.run(`
job "web" {
  group "g" {
    task "main" {
      driver = "longshore"
      config {
        image   = "IMAGE"
        command = "/bin/sh"
        args    = ["-c", "trap 'echo got USR1' USR1; trap 'echo bye; exit 0' TERM; echo up as $(id -u) with $GREETING; while true; do sleep 0.1; done"]
        labels  = { team = "blue" }
      }
      env { GREETING = "hello" }
      resources {
        cpu    = 100
        memory = 32
      }
    }
  }
}`)
		a := r.allocation("web", "running")
		logs := func(want string) {
			t.Helper()
			var out string
			r.eventually("the log says "+want, func() bool {
				out, _ = r.nomad("alloc", "logs", a.ID, "main")
				return strings.Contains(out, want)
			})
		}
		logs("up as 0 with hello")
		if out, err := r.nomad("alloc", "exec", "-i=false", "-t=false", a.ID, "/bin/sh", "-c", "echo $GREETING from $NOMAD_TASK_NAME; cat /proc/self/cgroup; ls /alloc /local /secrets; exit 3"); err == nil ||
			!strings.Contains(err.Error(), "exit status 3") || !strings.Contains(out, "hello from main") || !strings.Contains(out, "logs") {
			t.Errorf("exec: %q, %v", out, err)
		}
		if out, err := r.nomadIn("through\n", "alloc", "exec", "-i", "-t=false", a.ID, "/bin/cat"); err != nil || out != "through\n" {
			t.Errorf("exec with input: %q, %v", out, err)
		}
		r.must("alloc", "signal", "-s", "SIGUSR1", a.ID, "main")
		logs("got USR1")
		r.eventually("there are figures", func() bool {
			out, err := r.nomad("alloc", "status", "-stats", a.ID)
			return err == nil && strings.Contains(out, "Memory Stats") && strings.Contains(out, "RSS") && strings.Contains(out, "Percent")
		})
		if out, err := r.CLI("ps", "--json"); err != nil || !strings.Contains(out, `"nomad"`) || !strings.Contains(out, "com.hashicorp.nomad.job_id") && !strings.Contains(out, "web") {
			t.Errorf("ps: %s, %v", out, err)
		}
		r.must("job", "stop", "-purge", "-detach", "web")
		r.nothingLeft()
	})
}
