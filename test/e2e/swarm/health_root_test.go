package swarm

import (
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// checkedImage pushes an image of busybox with a health check and a shell of its own.
func checkedImage(t *testing.T, check *core.HealthCheck) string {
	t.Helper()
	files, err := imagetest.Busybox("/bin/busybox", nodetest.Applets...)
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	return imagetest.NewRegistry(t).Push("checked", "latest", imagetest.Image{
		Layers: [][]imagetest.File{files}, Docker: true, Health: check, Shell: []string{"/bin/sh", "-c"},
		Config: ocispec.ImageConfig{Cmd: []string{"sleep", "1000"}, Env: []string{"PATH=/bin"}},
	}.Build())
}

// TestHealthChecks: a task runs once it is healthy. An unhealthy one fails with its check's output,
// and is replaced. The service's check precedes the image's.
func TestHealthChecks(t *testing.T) {
	beside(t, func(t *testing.T) {
		r := newRig(t)
		r.patient()
		r.join()
		checked := checkedImage(t, &core.HealthCheck{Test: []string{"CMD-SHELL", "echo the image says no; exit 1"}, Interval: 50 * time.Millisecond, Retries: 2})

		// It is healthy when somebody has made the file, and not before.
		r.create("later", r.ref, "--health-cmd", "test -e /ready", "--health-interval", "50ms", "--health-retries", "1000000", "--", "sleep", "1000")
		starting := r.eventually("later", "it is starting", func(l []psTask) bool { return in(l, "Starting") == 1 })[0]
		r.exec(starting.ID, "touch", "/ready")
		if l := r.running("later", 1); l[0].ID != starting.ID {
			t.Errorf("another task runs: %+v", l)
		}

		// A running task fails when its check does, also when its program ends well then.
		r.create("spoilt", r.ref, "--health-cmd", "test ! -e /spoilt || { echo it is spoilt; exit 1; }", "--health-interval", "50ms", "--health-retries", "3", "--restart-delay", "0s", "--stop-grace-period", "1m",
			"--", "sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done")
		first := r.running("spoilt", 1)[0]
		r.exec(first.ID, "touch", "/spoilt")
		l := r.eventually("spoilt", "another one runs", func(l []psTask) bool { return in(l, "Failed") == 1 && in(l, "Running") == 1 })
		for _, p := range l {
			if (p.ID == first.ID) != strings.HasPrefix(p.CurrentState, "Failed") || p.ID == first.ID && !strings.Contains(p.Error, "unhealthy container: it is spoilt") {
				t.Errorf("%+v", p)
			}
		}

		// Its record names the cause.
		const why = "exited with code 0 after SIGTERM, because its health check has failed"
		if events := r.cli("events", "--since", "0", "--no-follow", "--json", "--kind", "container.exited"); strings.Count(events, `"`+why+`"`) != 1 {
			t.Errorf("the event log lacks %q:\n%s", why, events)
		}

		r.create("image", checked, "--restart-condition", "none")
		if l := r.eventually("image", "it has failed", func(l []psTask) bool { return in(l, "Failed") == 1 }); !strings.Contains(l[0].Error, "the image says no") {
			t.Errorf("the image's check: %q", l[0].Error)
		}
		r.create("none", checked, "--no-healthcheck")
		r.running("none", 1)
		r.create("own", checked, "--health-cmd", "true")
		r.running("own", 1)
		r.create("slow", r.ref, "--restart-condition", "none", "--health-cmd", "echo begun; sleep 1000", "--health-interval", "50ms", "--health-timeout", "100ms", "--health-retries", "1", "--", "sleep", "1000")
		if l := r.eventually("slow", "it has failed", func(l []psTask) bool { return in(l, "Failed") == 1 }); !strings.Contains(l[0].Error, "Health check exceeded timeout (100ms)") {
			t.Errorf("a probe that hangs: %q", l[0].Error)
		}

		// Probes do not fill the log of events: its process events are our own two execs.
		if n := strings.Count(r.cli("events", "--since", "0", "--no-follow", "--json", "--kind", "process.started"), "process.started"); n != 2 {
			t.Errorf("%d events of processes that were started", n)
		}

		// A new agent starts its checks again, but no task.
		before := r.pids()
		r.node.Kill()
		r.node.Up()
		roottest.Eventually(t, "the agent has a session again", func() bool { return r.session() == "up" })
		if now := r.pids(); !same(before, now) {
			t.Errorf("the agent's death was noticed: %v, then %v", before, now)
		}
		second := r.running("spoilt", 1)[0]
		r.exec(second.ID, "touch", "/spoilt")
		r.eventually("spoilt", "the next one has failed too", func(l []psTask) bool { return in(l, "Failed") == 2 && in(l, "Running") == 1 })
		for _, name := range []string{"later", "spoilt", "image", "none", "own", "slow"} {
			r.docker("service", "rm", name)
		}
		r.none()
		r.node.Check()
	})
}

// TestAnUpdateThatIsNotHealthy is rolled back by the manager.
func TestAnUpdateThatIsNotHealthy(t *testing.T) {
	beside(t, func(t *testing.T) {
		r := newRig(t)
		r.join()
		r.create("web", r.ref, "--env", "GOOD=yes", "--health-cmd", "[ $GOOD = yes ]", "--health-interval", "50ms", "--health-retries", "2",
			"--update-monitor", "1h", "--rollback-monitor", "100ms", "--update-failure-action", "rollback", "--", "sleep", "1000")
		r.running("web", 1)
		r.docker("service", "update", "--detach", "--env-add", "GOOD=no", "web")
		r.updated("web", "rollback_completed")
		r.running("web", 1)
		if got := r.inspect("service", "web", "{{.Spec.TaskTemplate.ContainerSpec.Env}}"); got != "[GOOD=yes]" {
			t.Errorf("after the update that failed: %s", got)
		}
		if l := r.ps("web"); in(l, "Failed") == 0 {
			t.Errorf("no task has failed: %+v", l)
		}
		r.docker("service", "rm", "web")
		r.none()
		r.node.Check()
	})
}

// exec runs a command in a task's container.
func (r *rig) exec(task string, args ...string) {
	r.t.Helper()
	for _, c := range r.containers() {
		if c.Key == task {
			r.cli(append([]string{"exec", "--force", c.ID}, args...)...)
			return
		}
	}
	r.t.Fatalf("task %s has no container", task)
}
