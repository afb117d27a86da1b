package nomad

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// ticks returns a job with a task that counts until the end.
func ticks(name, group string) string {
	return job(name, "service", group, "", `args = ["-c", "i=0; while true; do echo line $i; i=$((i+1)); sleep 0.02; done"]`)
}

// goesOn waits until a task has written more, and asserts that it is still the one
// that was started.
func (r *rig) goesOn(a alloc, container string) {
	r.t.Helper()
	dir := filepath.Join(r.dir, "data", "alloc", a.ID, "alloc")
	before := strings.Count(output(dir), "\n")
	r.eventually("the task goes on writing", func() bool { return strings.Count(output(dir), "\n") > before+5 })
	now := r.look(a)
	if now.ClientStatus != "running" || now.started("main") != 1 {
		r.t.Errorf("%s is %s and was started %d times:\n%s", a.JobID, now.ClientStatus, now.started("main"), now.said("main"))
	}
	if got := r.container(); got != container {
		r.t.Errorf("%s is container %q, and was %q", a.JobID, got, container)
	}
}

// container is the one that the node has.
func (r *rig) container() string {
	r.t.Helper()
	out, err := r.CLI("ps", "-q")
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// TestAgentsAreUpgradedUnderTasks: an older Nomad is replaced by the one that is tested,
// then plugin and agent by files of their own, and a task that runs does not notice.
// NOMAD_BEFORE is the older one.
func TestAgentsAreUpgradedUnderTasks(t *testing.T) {
	before := os.Getenv("NOMAD_BEFORE")
	if before == "" {
		t.Skip("needs an older Nomad: set NOMAD_BEFORE to its binary")
	}
	start(t, options{server: true, binary: before}, func(r *rig) {
		r.run(ticks("old", ""))
		a := r.allocation("old", "running")
		dir := filepath.Join(r.dir, "data", "alloc", a.ID, "alloc")
		r.eventually("the task writes", func() bool { return strings.Contains(output(dir), "line 5\n") })
		container := r.container()
		was := r.node().Attributes["nomad.version"]

		r.stopNomad()
		r.binary = os.Getenv("NOMAD")
		r.startNomad()
		var is string
		r.eventually("the node is one of the new Nomad", func() bool {
			is = r.node().Attributes["nomad.version"]
			return is != "" && is != was
		})
		t.Logf("Nomad %s became %s", was, is)
		r.waitForDriver("longshore")
		r.eventually("the new Nomad has the task", func() bool { return r.look(a).ClientStatus == "running" })
		r.goesOn(a, container)

		plugin := filepath.Join(r.dir, "plugins", "driver")
		if err := os.Remove(plugin); err != nil {
			t.Fatal(err)
		}
		r.copyPlugin(plugin)
		r.kill("plugin")
		r.Kill()
		r.Up()
		r.waitForDriver("longshore")
		r.goesOn(a, container)
		if out := r.must("alloc", "exec", a.ID, "/bin/echo", "at your service"); !strings.Contains(out, "at your service") {
			t.Errorf("an exec says %q", out)
		}
		r.unbroken("old", []string{"nomad", "plugin", "agent"}, dir)
		r.run(job("new", "batch", once, "", `args = ["-c", "echo done"]`))
		r.logged(r.allocation("new", "complete"), "done")
		r.purge("old", "new")
		r.must("system", "gc")
		r.nothingLeft()
	})
}

// TestANodeIsAwayAndComesBack: the node's tasks run on, unknown to the server meanwhile, and are
// its tasks again.
func TestANodeIsAwayAndComesBack(t *testing.T) {
	start(t, options{apart: true}, func(r *rig) {
		r.run(ticks("away", `
    disconnect {
      lost_after = "1h"
      replace    = false
    }`))
		a := r.allocation("away", "running")
		dir := filepath.Join(r.dir, "data", "alloc", a.ID, "alloc")
		r.eventually("the task writes", func() bool { return strings.Contains(output(dir), "line 5\n") })
		container := r.container()
		if err := r.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		r.eventually("the server does not know what has become of it", func() bool { return r.look(a).ClientStatus == "unknown" })
		before := strings.Count(output(dir), "\n")
		r.eventually("the task goes on writing", func() bool { return strings.Count(output(dir), "\n") > before+5 })
		if err := r.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		r.eventually("it is back", func() bool { return r.look(a).ClientStatus == "running" })
		r.goesOn(a, container)
		if all := r.allocs("away"); len(all) != 1 {
			t.Errorf("%d allocations were made", len(all))
		}
		r.unbroken("away", nil, dir)
		r.purge("away")
		r.must("system", "gc")
		r.nothingLeft()
	})
}
