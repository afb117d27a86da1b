package swarm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
	"github.com/longshore/longshore/test/nodetest"
)

// cutTime is how long the worker is cut off: far longer than managers wait for it.
const cutTime = 3 * time.Minute

// linked is a worker in a network namespace of its own.
type linked struct {
	*rig
	link *nodetest.Link
	id   string
}

// newWorkers makes a manager and its workers.
func newWorkers(t *testing.T, n int) (all []*linked) {
	t.Helper()
	m := startManager(t)
	ref, certs := nodetest.ServeBusybox(t, dockerd.ManagerIP)
	config := fmt.Sprintf("[images]\nregistry_config = [%q]\n[face.swarm]\nenabled = true\n", certs)
	for i := range n {
		link := nodetest.Plug(t, "swarm0", fmt.Sprintf("worker%d", i), fmt.Sprintf("10.99.0.%d/24", i+2))
		r := &rig{manager: m, t: t, node: nodetest.Start(t, nodetest.Options{NetNS: link.NetNS(), Config: config}), ref: ref}
		all = append(all, &linked{r, link, r.join()})
	}
	return all
}

// agrees waits until the worker has exactly the tasks that the manager reports as running there.
func (l *linked) agrees(what string) {
	l.t.Helper()
	var told, has []string
	defer func() {
		if l.t.Failed() {
			l.t.Logf("the manager has %v, the worker %v", told, has)
		}
	}()
	roottest.Eventually(l.t, "worker "+l.id+" "+what, func() bool {
		told = nil
		for line := range strings.Lines(l.docker("node", "ps", "--no-trunc", "--format", "{{.ID}} {{.CurrentState}}", l.id)) {
			if id, state, _ := strings.Cut(line, " "); strings.HasPrefix(state, "Running") {
				told = append(told, id)
			}
		}
		slices.Sort(told)
		has = slices.Sorted(maps.Keys(l.pids()))
		return slices.Equal(told, has)
	})
}

// TestAWorkerIsCutOffForMinutes: its tasks run on, one that dies again and again is restarted each
// time, and the other workers get more to do, without harm to their tasks. When it is back, manager
// and worker agree.
func TestAWorkerIsCutOffForMinutes(t *testing.T) {
	long(t)
	beside(t, func(t *testing.T) {
		all := newWorkers(t, 3)
		cut := all[0]
		cut.create("pinned", cut.ref, "--constraint", "node.id=="+cut.id, "--restart-delay", "1s", "--restart-max-attempts", "0", "--", "sleep", "1000")
		cut.create("web", cut.ref, "--replicas", "6", "--restart-delay", "1s", "--", "sleep", "1000")
		pinned := cut.running("pinned", 1)[0]
		cut.running("web", 6)
		before := cut.pids()
		if len(before) < 2 {
			t.Fatalf("tasks of the worker: %v", before)
		}
		others := []map[string]int{all[1].pids(), all[2].pids()}

		cut.link.Cut()
		since := time.Now()
		roottest.Eventually(t, "the manager gives the worker up", func() bool { return cut.nodeState(cut.id) == "down" })
		cut.eventually("web", "the other workers run all of it", func([]psTask) bool { return len(all[1].pids())+len(all[2].pids()) == 6 })
		deaths := 0
		for pid := before[pinned.ID]; time.Since(since) < cutTime; deaths++ {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatalf("after %d deaths: %v", deaths, err)
			}
			last := pid
			roottest.Eventually(t, "the task is started again", func() bool {
				pid = cut.pids()[pinned.ID]
				return pid != 0 && pid != last
			})
		}
		t.Logf("the task has died %d times in %s", deaths, time.Since(since))
		now := cut.pids()
		delete(now, pinned.ID)
		delete(before, pinned.ID)
		if !same(before, now) || deaths < 10 {
			t.Errorf("%d deaths; the worker's other tasks: %v, then %v", deaths, before, now)
		}
		cut.node.Check()

		cut.link.Mend()
		roottest.Eventually(t, "the worker is ready again", func() bool { return cut.nodeState(cut.id) == "ready" })
		cut.running("pinned", 1)
		cut.running("web", 6)
		for _, w := range all {
			w.agrees("has what the manager wants of it")
		}
		if got := cut.docker("inspect", "--type", "task", "--format", "{{.Status.State}}", pinned.ID); got != "shutdown" {
			t.Errorf("the task that was replaced meanwhile is %s", got)
		}
		for i, had := range others {
			now := all[i+1].pids()
			for id, pid := range had {
				if now[id] != pid {
					t.Errorf("the cut was noticed by task %s of another worker", id)
				}
			}
		}
		cut.docker("service", "rm", "pinned", "web")
		for _, w := range all {
			w.none()
			w.node.Check()
			w.cli("swarm", "leave")
		}
	})
}
