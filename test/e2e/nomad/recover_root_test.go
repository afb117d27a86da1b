package nomad

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/longshore/longshore/test/nodetest"
)

// TestTasksOutliveEverybody kills a task's watchers while it runs, ends the task before or after
// they are back, and asserts that the task was started once, with its real exit code and no line
// missing from its log. RECOVER_ROUNDS is the number of rounds.
func TestTasksOutliveEverybody(t *testing.T) {
	start(t, options{server: true}, func(r *rig) {
		for round := range rounds() {
			for i, victims := range [][]string{
				{"plugin"}, {"agent"}, {"keeper"}, {"nest"}, {"agent", "keeper"}, {"agent", "nest"}, {"pair"}, {"nomad"}, {"nomad, asked to"}, {"nomad", "plugin"}, {"nomad", "plugin", "agent"}, {"nomad", "plugin", "agent", "keeper"}, {"nomad", "plugin", "pair"},
			} {
				if slices.Contains(victims, "pair") && !nodetest.KernelTellsEnds() {
					continue // the task runs on, but nobody learns its exit code
				}
				for _, when := range []string{"meanwhile", "afterwards"} {
					r.survives(fmt.Sprintf("cell-%d-%d-%s", round, i, when), victims, when == "meanwhile")
				}
			}
			t.Logf("round %d: 26 cells", round+1)
		}
		r.must("system", "gc")
		r.nothingLeft()
	})
}

// TestWhatNobodyCanKnowIsLost: with agent, keeper and nest gone, Nomad learns that a task is lost.
func TestWhatNobodyCanKnowIsLost(t *testing.T) {
	start(t, options{server: true}, func(r *rig) {
		for round := range rounds() {
			for i, victims := range [][]string{{"agent", "pair"}, {"nomad", "plugin", "agent", "pair"}} {
				for _, when := range []string{"meanwhile", "afterwards"} {
					r.loses(fmt.Sprintf("lost-%d-%d-%s", round, i, when), victims, when == "meanwhile")
				}
			}
			t.Logf("round %d: 4 cells", round+1)
		}
		r.must("system", "gc")
		r.nothingLeft()
	})
}

func rounds() int {
	n, err := strconv.Atoi(os.Getenv("RECOVER_ROUNDS"))
	if err != nil {
		return 1
	}
	return n
}

// survives runs one cell.
func (r *rig) survives(name string, victims []string, endsMeanwhile bool) {
	r.t.Helper()
	r.run(job(name, "batch", once, "", `args = ["-c", "i=0; until test -e /alloc/data/go; do echo line $i; i=$((i+1)); sleep 0.02; done; echo bye $i; exit 33"]`))
	a := r.allocation(name, "running")
	dir := filepath.Join(r.dir, "data", "alloc", a.ID, "alloc")
	r.eventually("the task writes", func() bool { return strings.Contains(output(dir), "line 5\n") })
	end := func() {
		if err := os.WriteFile(filepath.Join(dir, "data", "go"), nil, 0o600); err != nil {
			r.t.Fatal(err)
		}
		r.eventually("the task has said its last", func() bool { return strings.Contains(output(dir), "bye") || !endsMeanwhile })
	}
	for _, v := range victims {
		r.kill(v)
	}
	if endsMeanwhile {
		end()
	}
	for _, v := range victims {
		r.bringBack(v)
	}
	if !endsMeanwhile {
		before := strings.Count(output(dir), "\n")
		r.eventually("the task goes on writing", func() bool { return strings.Count(output(dir), "\n") > before+5 })
		end()
	}
	a = r.allocation(name, "failed")
	if said := a.said("main"); a.started("main") != 1 || !strings.Contains(said, "Exit Code: 33") {
		r.t.Errorf("%s without %v: started %d times\n%s", name, victims, a.started("main"), said)
	}
	r.unbroken(name, victims, dir)
	if !strings.Contains(output(dir), "bye") {
		r.t.Errorf("%s without %v: the log lacks its end", name, victims)
	}
	r.purge(name)
}

// loses runs one cell without any process that could see the task's end. The task ends with 0, or
// never: Nomad must learn neither.
func (r *rig) loses(name string, victims []string, endsMeanwhile bool) {
	r.t.Helper()
	r.run(job(name, "batch", once, "", `args = ["-c", "trap '' PIPE; i=0; until test -e /alloc/data/go; do echo line $i; i=$((i+1)); sleep 0.02; done 2>/dev/null; touch /alloc/data/ended; exit 0"]`))
	a := r.allocation(name, "running")
	dir := filepath.Join(r.dir, "data", "alloc", a.ID, "alloc")
	r.eventually("the task writes", func() bool { return strings.Contains(output(dir), "line 5\n") })
	for _, v := range victims {
		r.kill(v)
	}
	ended := filepath.Join(dir, "data", "ended")
	if endsMeanwhile {
		if err := os.WriteFile(filepath.Join(dir, "data", "go"), nil, 0o600); err != nil {
			r.t.Fatal(err)
		}
		r.eventually("the task has ended", func() bool { return exists(ended) })
	}
	for _, v := range victims {
		r.bringBack(v)
	}
	a = r.allocation(name, "failed")
	said := a.said("main")
	if a.started("main") != 1 || !strings.Contains(said, "Exit Code: 255") || !strings.Contains(said, "lost: ") || strings.Contains(said, "Exit Code: 0") {
		r.t.Errorf("%s without %v: started %d times\n%s", name, victims, a.started("main"), said)
	}
	// A task without a watcher must not run on beside the next task.
	if exists(ended) != endsMeanwhile {
		r.t.Errorf("%s without %v: has the task come to its end by itself? %v", name, victims, !endsMeanwhile)
	}
	if left := nodetest.Processes("sh", "-c"); len(left) != 0 {
		r.t.Errorf("%s without %v: processes %v are left of the task", name, victims, left)
	}
	r.unbroken(name, victims, dir)
	r.purge(name)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// started says how often a task was.
func (a alloc) started(task string) (n int) {
	for _, e := range a.TaskStates[task].Events {
		if e.Type == "Started" {
			n++
		}
	}
	return n
}

// unbroken asserts that no line of the log is missing before its last, or there
// twice.
func (r *rig) unbroken(name string, victims []string, dir string) {
	r.t.Helper()
	for i, line := range strings.Split(strings.TrimSpace(output(dir)), "\n") {
		if want := "line " + strconv.Itoa(i); line != want && line != "bye "+strconv.Itoa(i) {
			r.t.Errorf("%s without %v: line %d of the log is %q", name, victims, i, line)
			break
		}
	}
}

// output returns a task's output, which is small: one file.
func output(dir string) string {
	b, _ := os.ReadFile(filepath.Join(dir, "logs", "main.stdout.0"))
	return string(b)
}

func (r *rig) kill(who string) {
	r.t.Helper()
	var pids []int
	switch who {
	case "nomad":
		r.endNomad(syscall.SIGKILL)
		return
	case "nomad, asked to":
		r.endNomad(syscall.SIGINT)
		return
	case "agent":
		r.Kill()
		return
	case "pair":
		nodetest.KillTogether(r.t, nodetest.Pair("")...)
		return
	case "keeper", "nest":
		pids = nodetest.Pair(who)
	case "plugin":
		pids = nodetest.Processes("driver", "")
	}
	if len(pids) == 0 {
		r.t.Fatalf("there is no %s to kill", who)
	}
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// bringBack starts a victim that nothing else restarts.
func (r *rig) bringBack(who string) {
	r.t.Helper()
	switch who {
	case "nomad", "nomad, asked to":
		r.startNomad()
		r.eventually("Nomad answers again", func() bool { return r.get("/v1/nodes", new([]any)) })
	case "agent":
		r.Up()
	}
}
