package swarm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestFiftyKillsUnderUpdates kills agent and keeper at random, and now and then the manager too,
// while a service is updated and scaled and other programs end by themselves. Untouched tasks keep
// their processes; every program is started once; every task's state rises to its end, its
// program's; the node's records are right.
func TestFiftyKillsUnderUpdates(t *testing.T) {
	long(t)
	beside(t, func(t *testing.T) {
		kills := 50
		if s := os.Getenv("LONGSHORE_SWARM_KILLS"); s != "" {
			var err error
			if kills, err = strconv.Atoi(s); err != nil {
				t.Fatal(err)
			}
		}
		seed := uint64(time.Now().UnixNano())
		t.Logf("%d kills, seed %d", kills, seed)
		s := newStorm(t, rand.New(rand.NewPCG(seed, 0)))
		s.run(kills)
		s.settle()
		s.verify()
	})
}

// storm is a node with work from its manager while its processes die.
type storm struct {
	*rig
	rnd    *rand.Rand
	id     string // the node's
	starts nodetest.Starts
	watch  *watcher
	before map[string]string // the processes that nobody touches, by their tasks
	jobs   []int             // the exit codes of services with programs that end
	killed map[string]int
	failed int // updates of tasks that the manager has given up
	began  time.Time
}

// replicas of the services that nobody touches, and the most of the one that is updated.
const (
	keptReplicas = 4
	mostReplicas = 5
)

func newStorm(t *testing.T, rnd *rand.Rand) *storm {
	t.Helper()
	r := newRig(t)
	// The manager keeps all tasks that have ended, and gives no node up because its agent has died
	// a few times: it lets a node open three sessions in eight seconds, and no more.
	r.docker("swarm", "update", "--task-history-limit", "1000", "--dispatcher-heartbeat", "30s")
	s := &storm{rig: r, rnd: rnd, id: r.join(), starts: r.node.NewStarts(), killed: map[string]int{}, began: time.Now()}
	s.service("kept", "exec sleep 1000", "--replicas", strconv.Itoa(keptReplicas))
	s.service("web", "exec sleep 1000", "--replicas", "3", "--update-parallelism", "2", "--update-monitor", "10ms", "--stop-grace-period", "50ms")
	r.running("web", 3)
	r.running("kept", keptReplicas)
	s.before = s.kept()
	s.watch = newWatcher(t, r.manager)
	return s
}

// service creates a service with programs that record their start, and then run a script.
func (s *storm) service(name, script string, args ...string) {
	s.t.Helper()
	args = append(args, "--constraint", "node.id=="+s.id, "--env", "TASK={{.Task.ID}}", "--mount", "type=bind,source="+s.starts.Dir+",target="+nodetest.StartsAt,
		"--", "sh", "-c", s.starts.Script(script))
	s.create(name, s.ref, args...)
}

// kept are the processes of the tasks that nobody touches.
func (s *storm) kept() map[string]string {
	s.t.Helper()
	all, running := map[string]string{}, s.node.Running()
	for _, p := range s.ps("kept") {
		all[p.ID] = p.DesiredState + " " + running[p.ID]
	}
	return all
}

// run kills until there were enough.
func (s *storm) run(kills int) {
	for done := range kills {
		s.change()
		nodetest.Pause(s.rnd.IntN(1000))
		if done%10 == 4 {
			s.killed["manager"]++
			s.manager.kill()
			s.kill()
			s.up()
		} else {
			s.kill()
		}
		s.node.KeeperBack()
		if s.rnd.IntN(3) > 0 {
			roottest.Eventually(s.t, "the node has a session", func() bool { return s.session() == "up" })
		}
		if done%10 == 9 {
			s.settle()
			s.t.Logf("%d kills in %.0f s: %v", done+1, time.Since(s.began).Seconds(), s.killed)
		}
	}
}

// change updates a service, scales it, or makes one with programs that end.
func (s *storm) change() {
	s.t.Helper()
	order := []string{"start-first", "stop-first"}[s.rnd.IntN(2)]
	switch s.rnd.IntN(4) {
	case 0:
		s.docker("service", "scale", "--detach", fmt.Sprintf("web=%d", 1+s.rnd.IntN(mostReplicas)))
	case 1:
		s.jobs = append(s.jobs, s.rnd.IntN(4))
		n := len(s.jobs)
		s.service(fmt.Sprintf("job%d", n), fmt.Sprintf("sleep 0.%d; exit %d", s.rnd.IntN(10), s.jobs[n-1]), "--replicas", "2", "--restart-condition", "none")
	default:
		s.docker("service", "update", "--detach", "--update-order", order, "--env-add", fmt.Sprintf("V=%d", s.rnd.Uint64()), "web")
	}
}

// kill kills the agent, the keeper or both, and starts the agent again.
func (s *storm) kill() {
	who := []string{"agent", "keeper", "both"}[s.rnd.IntN(3)]
	s.killed[who]++
	if who != "keeper" {
		s.node.Kill()
	}
	if who != "agent" {
		s.node.KillKeeper()
	}
	if who != "keeper" {
		nodetest.Pause(s.rnd.IntN(200))
		s.node.Up()
	}
}

// settle waits until the manager's wishes are fulfilled, and asserts that the node is right.
func (s *storm) settle() {
	s.t.Helper()
	last := ""
	defer func() {
		if s.t.Failed() {
			s.t.Logf("last: %s", last)
		}
	}()
	roottest.Eventually(s.t, "every task is where it is to be", func() bool {
		last = ""
		for _, task := range s.watch.look() {
			if task.State != task.DesiredState && !task.ended() {
				last = fmt.Sprintf("%+v", task)
				return false
			}
		}
		want, running := s.inspect("service", "web", "{{.Spec.Mode.Replicated.Replicas}} {{with .UpdateStatus}}{{.State}}{{end}}"), in(s.ps("web"), "Running")
		if last = fmt.Sprintf("%d run of %s: %+v", running, want, s.ps("web")); want != fmt.Sprintf("%d completed", running) && want != fmt.Sprintf("%d", running) {
			s.remind(want)
			return false
		}
		last = ""
		return true
	})
	s.node.Check()
	for id, was := range s.kept() {
		if s.before[id] != was {
			s.t.Errorf("task %s of those that nobody touches was %q and is %q", id, s.before[id], was)
		}
	}
	if s.t.Failed() {
		s.t.FailNow()
	}
}

// remind repeats the number of replicas to a manager that has logged a failed removal. When a task's status comes at the
// moment of a scale, swarmkit logs a conflict, keeps the task, and looks at the service again only after another change.
func (s *storm) remind(want string) {
	s.t.Helper()
	failed := s.Logged("failed to update task to REMOVE")
	if replicas, _, _ := strings.Cut(want, " "); failed > s.failed {
		s.failed = failed
		s.t.Logf("the manager has given up the removal of a task; %s replicas are declared again", replicas)
		s.docker("service", "scale", "--detach", "web="+replicas)
	}
}

// verify compares all states at the manager with the programs started, and removes the services.
func (s *storm) verify() {
	s.t.Helper()
	s.watch.stop()
	starts, ends := s.starts.Of(s.t), map[string]int{}
	jobs := map[string]int{}
	for i := range s.jobs {
		jobs[s.inspect("service", fmt.Sprintf("job%d", i+1), "{{.ID}}")] = s.jobs[i]
	}
	tasks := s.watch.look()
	for id, task := range tasks {
		// One that is removed at once may never come to its first line.
		if n := starts[id]; n > 1 || task.State == "running" && n == 0 {
			s.t.Errorf("a program was started %d times: %+v, its states %v", n, task, s.watch.seen[id])
		}
		ends[task.State]++
		code, job := jobs[task.ServiceID]
		switch {
		case job && (task.Code != code || task.State != map[bool]string{true: "complete", false: "failed"}[code == 0] || starts[id] != 1):
			s.t.Errorf("a program that was to end with %d: %+v, its states %v, started %d times", code, task, s.watch.seen[id], starts[id])
		case !job && task.ended() && task.State != "shutdown":
			s.t.Errorf("nobody has ended it: %+v, its states %v", task, s.watch.seen[id])
		}
	}
	s.t.Logf("killed %v in %.0f s; %d tasks, of which %v; %d programs of jobs; the manager was asked %d times", s.killed, time.Since(s.began).Seconds(), len(tasks), ends, 2*len(s.jobs), s.watch.asked)
	s.docker("service", "rm", "kept", "web")
	for i := range s.jobs {
		s.docker("service", "rm", fmt.Sprintf("job%d", i+1))
	}
	s.none()
	s.node.Check()
}

// seenTask is the manager's view of a task.
type seenTask struct {
	ID, ServiceID, Name, State, DesiredState, Err string
	Code                                          int
}

func (s seenTask) ended() bool {
	return slices.Contains([]string{"complete", "shutdown", "failed", "rejected"}, s.State)
}

// taskStates are a task's, in their order.
var taskStates = []string{"new", "pending", "assigned", "accepted", "preparing", "ready", "starting", "running", "complete", "shutdown", "failed", "rejected", "remove", "orphaned"} //nolint:gochecknoglobals // a table

// watcher follows the states that the manager has of all tasks.
type watcher struct {
	t    *testing.T
	m    *manager
	stop func()

	mu    sync.Mutex // guards seen, asked
	seen  map[string][]string
	asked int
}

func newWatcher(t *testing.T, m *manager) *watcher {
	t.Helper()
	w := &watcher{t: t, m: m, seen: map[string][]string{}}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_, _ = w.ask(ctx) // the manager may be dead
			case <-ctx.Done():
				return
			}
		}
	})
	w.stop = sync.OnceFunc(func() {
		cancel()
		group.Wait()
	})
	t.Cleanup(w.stop)
	return w
}

// look returns the manager's view now.
func (w *watcher) look() map[string]seenTask {
	w.t.Helper()
	all, err := w.ask(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// ask asks the manager, and notes states that are others than before.
func (w *watcher) ask(ctx context.Context) (map[string]seenTask, error) {
	w.mu.Lock() // so that answers come in their order
	defer w.mu.Unlock()
	var list []struct {
		ID, ServiceID, DesiredState string
		Slot                        int
		Status                      struct {
			State, Err      string
			ContainerStatus struct{ ExitCode int }
		}
	}
	if err := w.m.Get(ctx, "/tasks", &list); err != nil {
		return nil, err
	}
	w.asked++
	all := map[string]seenTask{}
	for _, l := range list {
		all[l.ID] = seenTask{
			ID: l.ID, ServiceID: l.ServiceID, Name: strconv.Itoa(l.Slot), State: l.Status.State, DesiredState: l.DesiredState, Err: l.Status.Err,
			Code: l.Status.ContainerStatus.ExitCode,
		}
		w.note(l.ID, l.Status.State)
	}
	return all, nil
}

// note notes a task's state. Preconditions: mu is held.
func (w *watcher) note(id, state string) {
	had := w.seen[id]
	if len(had) > 0 && had[len(had)-1] == state {
		return
	}
	if len(had) > 0 && slices.Index(taskStates, state) < slices.Index(taskStates, had[len(had)-1]) {
		w.t.Errorf("task %s went back: %s, then %s", id, strings.Join(had, ", "), state)
	}
	w.seen[id] = append(had, state)
}
