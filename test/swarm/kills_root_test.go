package swarm

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestKillsUnderUpdates: while agent, keeper, nest and manager are killed at random and tasks are
// assigned, replaced and removed, untouched tasks run on as the same processes; every program is
// started once; every task's statuses rise to its end, which is its program's.
func TestKillsUnderUpdates(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		s := newStorm(t, rand.New(rand.NewPCG(seed, 0)))
		for i := range 3 {
			s.assign(s.lasting(fmt.Sprintf("kept%d", i)))
		}
		s.replace()
		for id := range s.wanted {
			s.m.Reaches(id, swarmv1.TaskState_RUNNING)
		}
		kept := s.kept()
		for i := range 8 {
			s.job()
			s.replace()
			s.forget()
			nodetest.Pause(s.rnd.IntN(250))
			if i == 3 || i == 6 {
				s.manager()
			}
			s.kill()
			s.n.KeeperBack()
		}
		s.settle()
		s.n.KillPair()
		s.n.KeeperBack()
		if now := s.kept(); now != kept {
			t.Errorf("what nobody touched was %s\nand is %s", kept, now)
		}
		s.n.Check()
		for id := range s.wanted {
			s.m.Remove(id)
		}
		roottest.Eventually(t, "nothing is left of the tasks", func() bool {
			out, err := s.n.CLI("ps", "--all", "--quiet")
			return err == nil && strings.TrimSpace(out) == ""
		})
		s.n.Check()
		t.Logf("%d tasks, %d sessions; killed: %v", len(s.all), s.m.Sessions(), s.killed)
	})
}

// storm is a node with dying processes, and the manager of its tasks.
type storm struct {
	t      *testing.T
	rnd    *rand.Rand
	n      *nodetest.Node
	m      *swarmtest.Manager
	starts nodetest.Starts
	image  string
	all    []string          // tasks that were assigned
	wanted map[string]wanted // of those that are assigned
	jobs   int
	web    []string // the tasks of one slot, which have a port one after the other
	killed map[string]int
}

// wanted is where a task is to arrive.
type wanted struct {
	state swarmv1.TaskState
	code  int32
}

func newStorm(t *testing.T, rnd *rand.Rand) *storm {
	t.Helper()
	n := nodetest.Start(t, nodetest.Options{Config: "[face.swarm]\nenabled = true\n"})
	m := swarmtest.New(t)
	m.Period = 5 * time.Second // or the node would count as cut off while an agent starts
	built, err := nodetest.BusyboxImage()
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	s := &storm{t: t, rnd: rnd, n: n, m: m, starts: n.NewStarts(), wanted: map[string]wanted{}, killed: map[string]int{}}
	s.image = imagetest.NewRegistry(t).Push("busybox", "latest", built)
	if _, err := n.CLI("swarm", "join", m.Addr, "--token", m.Token); err != nil {
		t.Fatal(err)
	}
	return s
}

// task returns one with a program that records its start, and then runs a script.
func (s *storm) task(id, script string) *swarmv1.Task {
	task := swarmtest.Task(id, s.image, "sh", "-c", s.starts.Script(script))
	c := task.GetSpec().GetContainer()
	c.Env = []string{"TASK={{.Task.ID}}"}
	c.StopGracePeriod = durationpb.New(50 * time.Millisecond)
	c.Mounts = []*swarmv1.Mount{{Type: swarmv1.Mount_BIND, Source: s.starts.Dir, Target: nodetest.StartsAt}}
	return task
}

func (s *storm) lasting(id string) *swarmv1.Task { return s.task(id, "exec sleep 1000") }

func (s *storm) assign(task *swarmv1.Task) {
	s.all = append(s.all, task.GetId())
	s.wanted[task.GetId()] = wanted{state: swarmv1.TaskState_RUNNING}
	s.m.Assign(task)
}

// job assigns a task that ends by itself.
func (s *storm) job() {
	s.jobs++
	w := wanted{state: swarmv1.TaskState_COMPLETE}
	if w.code = int32(s.rnd.IntN(4)); w.code > 0 {
		w.state = swarmv1.TaskState_FAILED
	}
	task := s.task(fmt.Sprintf("job%d", s.jobs), fmt.Sprintf("sleep 0.%d; exit %d", s.rnd.IntN(10), w.code))
	task.Spec.Restart = &swarmv1.RestartPolicy{Condition: swarmv1.RestartPolicy_NONE}
	s.assign(task)
	s.wanted[task.GetId()] = w
}

// replace acts like an update of a service: another task gets the place of the one before it,
// with a port of the node.
func (s *storm) replace() {
	id := fmt.Sprintf("web%d", len(s.web)+1)
	task := s.lasting(id)
	task.DesiredState = swarmv1.TaskState_READY
	task.Endpoint = &swarmv1.Endpoint{Ports: []*swarmv1.PortConfig{{PublishMode: swarmv1.PortConfig_HOST, TargetPort: 80, PublishedPort: 8080}}}
	s.assign(task)
	if n := len(s.web); n > 0 {
		old := s.web[n-1]
		s.wanted[old] = wanted{state: swarmv1.TaskState_SHUTDOWN}
		s.m.Want(old, swarmv1.TaskState_SHUTDOWN)
	}
	s.web = append(s.web, id)
	s.m.Want(id, swarmv1.TaskState_RUNNING)
}

// forget removes a task that has ended, if there is one, and half of the time one that may be
// anywhere on its way to its end.
func (s *storm) forget() {
	early := s.rnd.IntN(2) == 0
	for _, id := range slices.Sorted(maps.Keys(s.wanted)) {
		w := s.wanted[id]
		if w.state == swarmv1.TaskState_RUNNING || !s.ended(id) && (!early || w.state != swarmv1.TaskState_SHUTDOWN) {
			continue
		}
		delete(s.wanted, id)
		s.m.Remove(id)
		return
	}
}

// ended reports whether the manager knows of a task's end.
func (s *storm) ended(id string) bool {
	list := s.m.Statuses(id)
	return len(list) > 0 && list[len(list)-1].GetState() > swarmv1.TaskState_RUNNING
}

// kill kills one or two of agent, keeper and nest, and starts the agent again. Keeper and nest do not
// die together here: a launch within the last 10 ms would be lost.
func (s *storm) kill() {
	s.t.Helper()
	who := [][]string{{"agent"}, {"keeper"}, {"nest"}, {"agent", "keeper"}, {"agent", "nest"}}
	dead := who[s.rnd.IntN(len(who))]
	s.killed[strings.Join(dead, " and ")]++
	s.n.KeeperBack()
	var pids []int
	for _, d := range dead {
		if d == "agent" {
			s.n.Kill()
		} else {
			pids = append(pids, s.n.Processes(d)...)
		}
	}
	nodetest.KillTogether(s.t, pids...)
	if dead[0] == "agent" {
		nodetest.Pause(s.rnd.IntN(100))
		s.n.Up()
	}
}

// manager kills the manager, and the node's processes while it is away.
func (s *storm) manager() {
	s.killed["manager"]++
	s.m.Power.Kill()
	nodetest.Pause(s.rnd.IntN(200))
	s.kill()
	s.m.Power.Restart()
}

// kept are the processes of the tasks that nobody touches.
func (s *storm) kept() string {
	s.t.Helper()
	var list []string
	for id, process := range s.n.Running() {
		if strings.HasPrefix(id, "kept") {
			list = append(list, id+": "+process)
		}
	}
	slices.Sort(list)
	return strings.Join(list, "; ")
}

// settle waits until every task is where it is to be, and compares the reports and starts with
// the expected ones.
func (s *storm) settle() {
	s.t.Helper()
	for id, w := range s.wanted {
		s.m.Until(fmt.Sprintf("%s is %s", id, w.state), func() bool {
			list := s.m.Statuses(id)
			return len(list) > 0 && list[len(list)-1].GetState() == w.state
		})
		if st := s.m.Reaches(id, w.state); st.GetContainer().GetExitCode() != w.code && w.state != swarmv1.TaskState_SHUTDOWN {
			s.t.Errorf("%s has ended otherwise, want %d: %v", id, w.code, st)
		}
	}
	// A program runs before it has written its first line, and one that is taken away at once
	// may never come to it.
	roottest.Eventually(s.t, "every program that was not taken away has written that it started", func() bool {
		starts := s.starts.Of(s.t)
		for id, w := range s.wanted {
			if w.state != swarmv1.TaskState_SHUTDOWN && starts[id] == 0 {
				return false
			}
		}
		return true
	})
	starts := s.starts.Of(s.t)
	for _, id := range s.all {
		s.statuses(id)
		if starts[id] > 1 {
			s.t.Errorf("%s was started %d times; %v", id, starts[id], s.m.Statuses(id))
		}
	}
}

// statuses asserts that those of a task rise, and that no later one contradicts its running or
// its end; an agent that takes over has kept both.
func (s *storm) statuses(id string) {
	s.t.Helper()
	var end *swarmv1.TaskStatus
	ran := false
	for _, life := range s.m.Lives(id) {
		last := swarmv1.TaskState_NEW
		for _, st := range life {
			state := st.GetState()
			switch {
			case state < last, ran && state < swarmv1.TaskState_RUNNING:
				s.t.Errorf("%s went back: %v", id, s.m.Lives(id))
			case end != nil && state > swarmv1.TaskState_RUNNING && (state != end.GetState() || st.GetContainer().GetExitCode() != end.GetContainer().GetExitCode()):
				s.t.Errorf("%s has two ends: %v", id, s.m.Lives(id))
			}
			if last = state; state > swarmv1.TaskState_RUNNING {
				end = st
			}
			ran = ran || state == swarmv1.TaskState_RUNNING
		}
	}
}
