package swarm_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face/swarm/session"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/state"
)

// cut has no call of the node answered any more, and ends its session.
func (r *rig) cut() {
	r.t.Helper()
	r.cutUnnoticed()
	r.lost()
}

// lost ends the session, and waits until the node has found that out.
func (r *rig) lost() {
	r.t.Helper()
	r.Drop(false)
	roottest.Eventually(r.t, "the session is lost", func() bool { return r.face.Status().Session == string(session.Down) })
}

// cutUnnoticed makes all calls of the node fail.
func (r *rig) cutUnnoticed() {
	r.Hook(func(string) error { return status.Error(codes.Unavailable, "nobody is here") })
}

// back ends cutUnnoticed.
func (r *rig) back() { r.Hook(nil) }

// restarting is a task with a restart policy and a lasting program.
func restarting(id string, condition swarmv1.RestartPolicy_RestartCondition, change ...func(*swarmv1.RestartPolicy)) *swarmv1.Task {
	t := swarmtest.Task(id, image, "sleep")
	t.GetSpec().Restart = &swarmv1.RestartPolicy{Condition: condition, Delay: durationpb.New(time.Millisecond)}
	for _, fn := range change {
		fn(t.GetSpec().GetRestart())
	}
	return t
}

const (
	never     = swarmv1.RestartPolicy_NONE
	onFailure = swarmv1.RestartPolicy_ON_FAILURE
	always    = swarmv1.RestartPolicy_ANY
)

// running assigns a task and waits until it runs.
func (r *rig) running(t *swarmv1.Task) core.Container {
	r.t.Helper()
	r.Assign(t)
	r.Reaches(t.GetId(), swarmv1.TaskState_RUNNING)
	return r.container(t.GetId())
}

// ends ends a task's program, and waits until that is recorded.
func (r *rig) ends(id string, code int) {
	r.t.Helper()
	c := r.container(id)
	r.Supervisor.Exit(core.Ref{Container: c.ID}, code)
	if _, err := r.As(core.OwnerSwarm).Wait(r.t.Context(), core.Ref{Container: c.ID}); err != nil {
		r.t.Fatal(err)
	}
}

// startedAgain waits until a task's program was started n times in all, and returns the
// container of the last time.
func (r *rig) startedAgain(id string, n int) core.Container {
	r.t.Helper()
	for e, err := range r.As(core.OwnerSwarm).Events(r.t.Context(), 0, core.Filter{Kinds: []core.EventKind{core.EventContainerStarted}}) {
		if err != nil {
			r.t.Fatal(err)
		}
		if e.Key == core.Key(id) {
			n--
		}
		if n == 0 {
			break
		}
	}
	return r.container(id)
}

// tells waits until a task is reported running in a container.
func (r *rig) tells(id string, c core.Container) (found *swarmv1.TaskStatus) {
	r.t.Helper()
	r.Until(id+" is told with its container "+string(c.ID), func() bool {
		for _, s := range r.Statuses(id) {
			if s.GetState() == swarmv1.TaskState_RUNNING && s.GetContainer().GetContainerId() == string(c.ID) {
				found = s
			}
		}
		return found != nil
	})
	return found
}

// secret has a task want a secret, and assigns that.
func (r *rig) secret(t *swarmv1.Task) *swarmv1.Task {
	t.GetSpec().GetContainer().Secrets = []*swarmv1.SecretReference{{SecretId: "s", SecretName: "password", Target: &swarmv1.SecretReference_File{File: &swarmv1.FileTarget{Name: "password"}}}}
	r.Change(func(_ map[string]*swarmv1.Task, secrets map[string]*swarmv1.Secret, _ map[string]*swarmv1.Config) {
		secrets["s"] = &swarmv1.Secret{Id: "s", Spec: &swarmv1.SecretSpec{Data: []byte("planted-secret")}}
	})
	return t
}

// TestATaskIsStartedAgainWhileCutOff: a new container in the sandbox that the task had, with its
// secrets, twice; the managers hear of it when they are back, and the task runs on.
func TestATaskIsStartedAgainWhileCutOff(t *testing.T) {
	r := newRig(t)
	r.join()
	first := r.running(r.secret(restarting("a", always)))
	r.running(restarting("b", always))
	r.cut()
	r.ends("a", 7)
	second := r.startedAgain("a", 2)
	if second.ID == first.ID || second.Sandbox != first.Sandbox || second.State != core.ContainerRunning {
		t.Errorf("first %+v, second %+v", first, second)
	}
	if data, err := os.ReadFile(filepath.Join(r.state, "files", string(second.Sandbox), "0")); err != nil || string(data) != "planted-secret" {
		t.Errorf("its secret: %q, %v", data, err)
	}
	r.ends("a", 0)
	third := r.startedAgain("a", 3)
	r.Forget()
	r.back()
	s := r.tells("a", third)
	if !strings.Contains(s.GetMessage(), "started again 2 times") || s.GetErr() != "" || s.GetContainer().GetPid() != int32(third.Main.Pid) {
		t.Errorf("told %v", s)
	}
	r.rises("a", swarmv1.TaskState_RUNNING)
	list, err := r.As(core.OwnerSwarm).Containers(t.Context(), core.Filter{})
	if err != nil || len(list) != 2 {
		t.Errorf("containers %+v, %v", list, err)
	}
	// With a manager its end is the manager's.
	r.running(restarting("c", always)) // by then the node has its assignments, not only the answer to its statuses
	r.ends("a", 3)
	if s := r.Reaches("a", swarmv1.TaskState_FAILED); s.GetContainer().GetExitCode() != 3 || s.GetContainer().GetContainerId() != string(third.ID) {
		t.Errorf("told %v", s)
	}
	for _, id := range []string{"a", "b", "c"} {
		r.Remove(id)
		r.gone(id)
	}
	if err := r.face.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.clean()
	for key := range r.kv.All("") {
		t.Errorf("%s is kept", key)
	}
}

// TestAnEndBeforeTheCutIsFound: a task that ends while the node still takes its managers for
// reachable is not lost. Its end, which reached no manager, does not count.
func TestAnEndBeforeTheCutIsFound(t *testing.T) {
	r := newRig(t)
	r.join()
	r.running(r.secret(restarting("a", always)))
	r.Hook(func(call string) error {
		if call == "UpdateTaskStatus" { // which no answer comes to, and its session is not lost before
			<-t.Context().Done()
		}
		return nil
	})
	r.ends("a", 7)
	r.happens("a", core.EventSandboxStopped) // the managers are being told
	r.cut()
	second := r.startedAgain("a", 2)
	r.Forget()
	r.back()
	r.tells("a", second)
	r.rises("a", swarmv1.TaskState_RUNNING)
}

// TestOutputOfATaskThatIsStartedAgain continues where it was, in the task's log.
func TestOutputOfATaskThatIsStartedAgain(t *testing.T) {
	r := newRig(t)
	r.join()
	r.running(restarting("a", always))
	r.Subscribe(subscription("f", &swarmv1.LogSubscriptionOptions{Follow: true}, ofService()))
	r.writes("a", line(1, "stdout", "F", "one"), line(1, "stdout", "F", "more"))
	r.publishes("f", "one\nmore\n")
	r.cut()
	r.ends("a", 7)
	r.startedAgain("a", 2)
	r.writes("a", line(1, "stdout", "F", "two"), line(2, "stdout", "F", "three"))
	r.back()
	r.publishes("f", "one\nmore\ntwo\nthree\n")
}

// TestWhatIsNotStartedAgain is reported as it ended, when the managers are back.
func TestWhatIsNotStartedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		task *swarmv1.Task
		code int
		off  bool
		want swarmv1.TaskState
	}{
		"it is not to be":       {task: restarting("a", never), code: 7, want: swarmv1.TaskState_FAILED},
		"it ended well":         {task: restarting("a", onFailure), want: swarmv1.TaskState_COMPLETE},
		"not so soon":           {task: restarting("a", always, func(p *swarmv1.RestartPolicy) { p.Delay = durationpb.New(time.Hour) }), code: 7, want: swarmv1.TaskState_FAILED},
		"the option is off":     {task: restarting("a", always), code: 7, off: true, want: swarmv1.TaskState_FAILED},
		"no policy, so not yet": {task: swarmtest.Task("a", image, "sleep"), want: swarmv1.TaskState_COMPLETE},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if c.off {
				r.down()
				r.config.LocalRestarts = false
				r.start()
			}
			r.join()
			first := r.running(c.task)
			r.running(restarting("other", always))
			r.cut()
			r.ends("a", c.code)
			r.ends("other", 7) // which is started again, so that the first one could have been
			if !c.off {
				r.startedAgain("other", 2)
			}
			r.Forget()
			r.back()
			s := r.Reaches("a", c.want)
			if got := s.GetContainer(); got.GetExitCode() != int32(c.code) || got.GetContainerId() != string(first.ID) {
				t.Errorf("told %v", s)
			}
			r.rises("a", c.want)
		})
	}
}

// TestTheMaximumIsObeyed: the node abandons a task that keeps failing when its policy says so, also
// after a restart of the agent.
func TestTheMaximumIsObeyed(t *testing.T) {
	r := newRig(t)
	r.join()
	r.running(restarting("a", onFailure, func(p *swarmv1.RestartPolicy) { p.MaxAttempts = 2 }))
	r.cut()
	r.ends("a", 7)
	r.startedAgain("a", 2)
	r.ends("a", 7)
	r.startedAgain("a", 3)
	r.down()
	r.start() // the two restarts are remembered
	last := r.container("a")
	r.ends("a", 9)
	r.happens("a", core.EventSandboxStopped)
	r.Forget()
	r.back()
	if s := r.Reaches("a", swarmv1.TaskState_FAILED); s.GetContainer().GetExitCode() != 9 || s.GetContainer().GetContainerId() != string(last.ID) {
		t.Errorf("told %v", s)
	}
}

// TestTheManagersWordWins when they are back: a task that they have replaced meanwhile is
// shut down, and one that they have forgotten is removed.
func TestTheManagersWordWins(t *testing.T) {
	r := newRig(t)
	r.join()
	for _, id := range []string{"replaced", "forgotten"} {
		r.running(restarting(id, always))
	}
	r.cut()
	for _, id := range []string{"replaced", "forgotten"} {
		r.ends(id, 7)
		r.startedAgain(id, 2)
	}
	r.Want("replaced", swarmv1.TaskState_SHUTDOWN)
	r.Remove("forgotten")
	r.back()
	r.Reaches("replaced", swarmv1.TaskState_SHUTDOWN)
	r.gone("forgotten")
	r.rises("replaced", swarmv1.TaskState_SHUTDOWN)
	if c := r.container("replaced"); c.State != core.ContainerExited {
		t.Errorf("it is %s", c.State)
	}
}

// TestANodeThatIsNotWanted is not cut off: its managers answer. Its ended tasks stay so.
func TestANodeThatIsNotWanted(t *testing.T) {
	r := newRig(t)
	r.join()
	r.running(restarting("a", always))
	r.Hook(func(string) error {
		return status.Error(codes.PermissionDenied, "Permission denied: node node1 was removed from swarm")
	})
	r.Drop(false)
	roottest.Eventually(t, "it is known that the node was removed", func() bool { return strings.Contains(r.face.Status().Error, "was removed") })
	r.ends("a", 7)
	r.happens("a", core.EventSandboxStopped)
	if c := r.container("a"); c.State != core.ContainerExited {
		t.Errorf("it is %s", c.State)
	}
}

// TestARestartThatFails counts, and its reason is reported.
func TestARestartThatFails(t *testing.T) {
	r := newRig(t)
	r.join()
	r.running(restarting("a", always, func(p *swarmv1.RestartPolicy) { p.MaxAttempts = 1 }))
	r.cut()
	failed := make(chan struct{}, 1)
	r.Policy.Does(enginetest.Hooks{Asked: refusing("create container a", failed)})
	r.ends("a", 7)
	<-failed
	r.happens("a", core.EventSandboxStopped) // as its end stands
	r.Policy.Does(enginetest.Hooks{})
	r.back()
	s := r.Reaches("a", swarmv1.TaskState_FAILED)
	if !strings.Contains(s.GetErr(), "could not be started again") || !strings.Contains(s.GetErr(), "not here") || s.GetContainer().GetExitCode() != 7 {
		t.Errorf("told %v", s)
	}
	r.Remove("a")
	r.gone("a")
}

// boots is a boot of the node's machine: everything is gone but the disk.
func (r *rig) boots() {
	r.t.Helper()
	r.down()
	if err := os.RemoveAll(filepath.Join(r.state, "files")); err != nil {
		r.t.Fatal(err)
	}
	r.Reboot()
	r.Options.Store = state.NewMemory(64)
	r.start()
}

// TestABootWithoutAManager: tasks come back by their restart policies, but for those that need
// something of a manager: a secret, or an image that is here no more.
func TestABootWithoutAManager(t *testing.T) {
	r := newRig(t)
	r.join()
	had := map[string]core.Container{}
	for _, task := range []*swarmv1.Task{restarting("plain", onFailure), restarting("stays", never), r.secret(restarting("secret", always))} {
		had[task.GetId()] = r.running(task)
	}
	r.cut()
	r.Forget()
	r.boots()
	plain := r.startedAgain("plain", 1)
	if plain.ID == had["plain"].ID || plain.State != core.ContainerRunning {
		t.Errorf("%+v", plain)
	}
	for _, id := range []string{"stays", "secret"} {
		if _, err := r.As(core.OwnerSwarm).SandboxByKey(t.Context(), core.Key(id)); err == nil {
			t.Errorf("%s is there", id)
		}
	}
	r.back()
	if s := r.tells("plain", plain); !strings.Contains(s.GetMessage(), "started again once") {
		t.Errorf("told %v", s)
	}
	if s := r.Reaches("stays", swarmv1.TaskState_FAILED); s.GetErr() == "" {
		t.Errorf("told %v", s)
	}
	secret := r.startedAgain("secret", 1)
	r.tells("secret", secret)
	if data, err := os.ReadFile(filepath.Join(r.state, "files", string(secret.Sandbox), "0")); err != nil || string(data) != "planted-secret" {
		t.Errorf("its secret: %q, %v", data, err)
	}
	for _, id := range []string{"plain", "secret"} {
		r.rises(id, swarmv1.TaskState_RUNNING)
	}
}

// TestAFailedRemovalIsTriedAgain, also by the next agent, while no manager can be reached.
func TestAFailedRemovalIsTriedAgain(t *testing.T) {
	r := newRig(t)
	r.join()
	r.running(restarting("a", always))
	failed := make(chan struct{}, 100)
	r.Network.Fail(func(call string) error {
		if call != "Teardown" {
			return nil
		}
		select {
		case failed <- struct{}{}:
		default:
		}
		return errdefs.ErrFailedPrecondition
	})
	r.Remove("a")
	<-failed
	<-failed
	r.cut()
	r.down()
	r.start()
	<-failed
	r.Network.Fail(nil)
	r.gone("a")
	r.down()
	r.start()
	if s := r.face.Status(); s.Tasks != 0 {
		t.Errorf("%+v", s)
	}
	for key := range r.kv.All("task/") {
		t.Errorf("%s is kept", key)
	}
}

// refusing refuses a question, and says so each time that there is room for it.
func refusing(question string, said chan<- struct{}) func(context.Context, string) error {
	return func(_ context.Context, asked string) error {
		if asked != question {
			return nil
		}
		select {
		case said <- struct{}{}:
		default:
		}
		return fmt.Errorf("not here: %w", errdefs.ErrPermissionDenied)
	}
}

// TestRecordsAreBounded: hundreds of tasks, one after the other, leave nothing in the
// store, however they ended.
func TestRecordsAreBounded(t *testing.T) {
	r := newRig(t)
	r.join()
	ends := map[string]swarmv1.TaskState{"well": swarmv1.TaskState_COMPLETE, "badly": swarmv1.TaskState_FAILED, "sleep": swarmv1.TaskState_RUNNING}
	for round := range 20 {
		want := map[string]swarmv1.TaskState{}
		r.Change(func(tasks map[string]*swarmv1.Task, _ map[string]*swarmv1.Secret, _ map[string]*swarmv1.Config) {
			clear(tasks)
			for command, end := range ends {
				for n := range 5 {
					id := fmt.Sprintf("%s-%d-%d", command, round, n)
					tasks[id], want[id] = swarmtest.Task(id, image, command), end
				}
			}
		})
		for id, end := range want {
			r.Reaches(id, end)
		}
		n := 0
		for range r.kv.All("") {
			n++
		}
		if most := 2*len(want) + 1; n > most { // those before may not be gone yet
			t.Fatalf("%d records in round %d, of %d tasks", n, round, len(want))
		}
		r.Forget()
	}
	if err := r.face.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.clean()
}

// TestAnUnhealthyTaskIsStartedAgainWhileCutOff: as one with a failed program, also when that ends
// with 0 at the signal; it is reported again when it is healthy again.
func TestAnUnhealthyTaskIsStartedAgainWhileCutOff(t *testing.T) {
	r := newRig(t)
	r.join()
	var ill, probes atomic.Int32
	r.Supervisor.Program("check", func(*enginetest.Process) int {
		probes.Add(1)
		return int(ill.Load())
	})
	task := checkedTask("a", nil)
	task.GetSpec().Restart = restarting("a", onFailure).GetSpec().GetRestart()
	first := r.running(task)
	r.cut()
	ill.Store(1)
	second := r.startedAgain("a", 2)
	if second.ID == first.ID {
		t.Errorf("the container is the same: %+v", second)
	}
	ill.Store(0)
	r.back()
	s := r.tells("a", r.container("a"))
	if !strings.Contains(s.GetMessage(), "started again") {
		t.Errorf("told with %q", s.GetMessage())
	}
	r.removes("a")
}
