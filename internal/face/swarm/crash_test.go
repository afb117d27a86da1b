package swarm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face/swarm/session"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/roottest"
)

// mortal is a rig with an agent that a Crash kills: nothing is kept and nothing reported from then
// on. The face's records pass stages of their own.
type mortal struct {
	*rig
	crash *enginetest.Crash
	// cutOff leaves the node's calls unanswered.
	cutOff atomic.Bool
	delay  time.Duration // of the task's restart policy
	had    int           // the number of the task's statuses at the agent's death
}

// mortalKV is a store that dies with its agent, also before and after each change for a task.
// A session's writes have no stage: they may be before the task or after it.
type mortalKV struct {
	core.KV
	node  *enginetest.Node
	crash *enginetest.Crash
}

func (d mortalKV) Put(key string, value []byte) error {
	what, _, task := strings.Cut(key, "/")
	switch {
	case !task && d.crash.Dead():
		return enginetest.ErrCrash
	case !task:
		return d.KV.Put(key, value)
	}
	t := &swarmv1.Task{}
	if proto.Unmarshal(value, t) == nil && t.GetId() != "" {
		what += " " + t.GetStatus().GetState().String()
	}
	return d.around("keep "+what, func() error { return d.KV.Put(key, value) })
}

func (d mortalKV) Delete(key string) error {
	what, _, _ := strings.Cut(key, "/")
	return d.around("forget "+what, func() error { return d.KV.Delete(key) })
}

func (d mortalKV) around(what string, do func() error) error {
	if err := d.node.Options.FailPoint("face." + what + ".before"); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return d.node.Options.FailPoint("face." + what + ".after")
}

// id is the task of these tests.
const id = "task"

func newMortal(t *testing.T) *mortal {
	t.Helper()
	r := newRig(t)
	r.down()
	m := &mortal{rig: r, crash: r.Crashes(), delay: time.Hour}
	r.kv = mortalKV{r.kv, r.Node, m.crash}
	r.Hook(func(string) error {
		if m.cutOff.Load() || m.crash.Dead() {
			return status.Error(codes.Unavailable, "nobody is here")
		}
		return nil
	})
	r.start()
	r.join()
	return m
}

// give assigns the task, which has all that a task can leave behind.
func (m *mortal) give(command string, edits ...func(*swarmv1.Task)) {
	task := restarting(id, always, func(p *swarmv1.RestartPolicy) { p.Delay = durationpb.New(m.delay) })
	c := task.GetSpec().GetContainer()
	c.Args = []string{command}
	c.Secrets = []*swarmv1.SecretReference{{SecretId: "s", SecretName: "password", Target: &swarmv1.SecretReference_File{File: &swarmv1.FileTarget{Name: "password"}}}}
	c.Mounts = []*swarmv1.Mount{{Type: swarmv1.Mount_VOLUME, Target: "/data"}}
	for _, edit := range edits {
		edit(task)
	}
	m.Change(func(tasks map[string]*swarmv1.Task, secrets map[string]*swarmv1.Secret, _ map[string]*swarmv1.Config) {
		tasks[id] = task
		secrets["s"] = &swarmv1.Secret{Id: "s", Spec: &swarmv1.SecretSpec{Data: []byte("planted-secret")}}
	})
}

// reached waits until the living agent reports the task in a state.
func (m *mortal) reached(ctx context.Context, s swarmv1.TaskState) (found *swarmv1.TaskStatus, err error) {
	err = m.Await(ctx, func() bool {
		list := m.Statuses(id)
		if i := slices.IndexFunc(list[m.had:], func(st *swarmv1.TaskStatus) bool { return st.GetState() == s }); i >= 0 {
			found = list[m.had+i]
		}
		return found != nil
	})
	if err != nil {
		return nil, fmt.Errorf("it is never %s: %w: %v", s, err, m.Statuses(id))
	}
	// An agent that comes after one which died when it had told an end, and had not kept
	// it, begins before that. Managers do not listen to states that they are past.
	m.risesIn(m.Statuses(id)[m.had:], s)
	return found, nil
}

// runs waits until the task runs, once.
func (m *mortal) runs(ctx context.Context) error {
	st, err := m.reached(ctx, swarmv1.TaskState_RUNNING)
	if err != nil {
		return err
	}
	return m.runsAs(ctx, st)
}

// runsAs asserts that the task runs, once, as reported.
func (m *mortal) runsAs(ctx context.Context, st *swarmv1.TaskStatus) error {
	list, err := m.As(core.OwnerSwarm).Containers(ctx, core.Filter{})
	if err == nil && (len(list) != 1 || list[0].State != core.ContainerRunning || string(list[0].ID) != st.GetContainer().GetContainerId()) {
		err = fmt.Errorf("containers %+v, told %v", list, st)
	}
	return err
}

// isGone waits until nothing of the task is on the node.
func (m *mortal) isGone(ctx context.Context) error {
	engine := m.As(core.OwnerSwarm)
	if _, err := engine.SandboxByKey(ctx, id); errdefs.IsNotFound(err) {
		return nil
	}
	for _, err := range engine.Events(ctx, 0, core.Filter{Kinds: []core.EventKind{core.EventSandboxRemoved}}) {
		if err != nil {
			return err
		}
		if _, err := engine.SandboxByKey(ctx, id); errdefs.IsNotFound(err) {
			return nil
		}
	}
	return ctx.Err()
}

// left fails on the task's records and volumes.
func (m *mortal) left(ctx context.Context) error {
	var list []string
	for key := range m.kv.All("") {
		if strings.Contains(key, id) {
			list = append(list, "record "+key)
		}
	}
	volumes, err := m.As(core.OwnerSwarm).Volumes.List(ctx)
	for _, v := range volumes {
		list = append(list, "volume "+v.Name)
	}
	if len(list) > 0 {
		err = errors.Join(err, fmt.Errorf("left: %v", list))
	}
	return err
}

func (m *mortal) life(call func(ctx context.Context) error, again func(ctx context.Context) error) enginetest.Life {
	return enginetest.Life{
		Node: m.Node, Crash: m.crash, Call: call,
		Restart: func() {
			m.had = len(m.Statuses(id))
			m.stop()
			m.Drop(true) // a call of the dead one that is still under way is refused
			m.Stop()
			m.start()
		},
		Again: func() error {
			ctx, cancel := context.WithTimeout(m.t.Context(), swarmtest.Patience)
			defer cancel()
			return again(ctx)
		},
		Clear: func() error {
			ctx, cancel := context.WithTimeout(m.t.Context(), swarmtest.Patience)
			defer cancel()
			m.Remove(id)
			if err := m.isGone(ctx); err != nil {
				return err
			}
			roottest.Eventually(m.t, "the agent has taken up its work", func() bool { return m.face.Status().Session == string(session.Up) })
			m.stop() // its removal has ended
			err := m.left(ctx)
			if dirs := m.leftInDirs(); len(dirs) > 0 {
				err = errors.Join(err, fmt.Errorf("left: %v", dirs))
			}
			return err
		},
	}
}

// TestTheAgentDiesOverATasksStart kills it after every stage of a task until it runs. After the
// manager's next COMPLETE the task runs, once.
func TestTheAgentDiesOverATasksStart(t *testing.T) {
	enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
		m := newMortal(t)
		return m.life(func(ctx context.Context) error {
			m.give("sleep")
			return m.runs(ctx)
		}, m.runs)
	})
}

// TestTheAgentDiesOverATasksEnd does the same to a task that ends by itself. Its end is reported in
// any case.
func TestTheAgentDiesOverATasksEnd(t *testing.T) {
	enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
		m := newMortal(t)
		m.give("sleep")
		if err := m.runs(t.Context()); err != nil {
			t.Fatal(err)
		}
		ends := func(ctx context.Context) error {
			st, err := m.reached(ctx, swarmv1.TaskState_FAILED)
			if err == nil && (st.GetContainer().GetExitCode() != 9 || st.GetErr() == "") {
				err = fmt.Errorf("told %v", st)
			}
			return err
		}
		return m.life(func(ctx context.Context) error {
			m.Supervisor.Exit(core.Ref{Container: m.container(id).ID}, 9)
			return ends(ctx)
		}, ends)
	})
}

// TestTheAgentDiesOverAShutdown does the same to a task that is no longer wanted.
func TestTheAgentDiesOverAShutdown(t *testing.T) {
	enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
		m := newMortal(t)
		m.give("sleep")
		if err := m.runs(t.Context()); err != nil {
			t.Fatal(err)
		}
		ends := func(ctx context.Context) error {
			if _, err := m.reached(ctx, swarmv1.TaskState_SHUTDOWN); err != nil {
				return err
			}
			if c := m.container(id); c.State != core.ContainerExited {
				return fmt.Errorf("its container is %s", c.State)
			}
			return nil
		}
		return m.life(func(ctx context.Context) error {
			m.Want(id, swarmv1.TaskState_SHUTDOWN)
			return ends(ctx)
		}, ends)
	})
}

// TestTheAgentDiesOverAnEarlyShutdown does the same to a task that was never healthy, and so never
// ran for its managers. The next agent knows that it was to end: it does not take it for one that
// has failed.
func TestTheAgentDiesOverAnEarlyShutdown(t *testing.T) {
	enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
		m := newMortal(t)
		m.fails(1, 1<<30)
		m.give("sleep", func(task *swarmv1.Task) {
			task.Spec.Restart.Condition = swarmv1.RestartPolicy_NONE
			task.GetSpec().GetContainer().Healthcheck = &swarmv1.HealthConfig{Test: []string{"CMD", "check"}, StartPeriod: durationpb.New(time.Hour), StartInterval: durationpb.New(time.Hour), Interval: durationpb.New(time.Hour)}
		})
		m.Until("it waits to be healthy", func() bool {
			list := m.Statuses(id)
			return len(list) > 0 && list[len(list)-1].GetMessage() == "waiting to be healthy"
		})
		ends := func(ctx context.Context) error {
			_, err := m.reached(ctx, swarmv1.TaskState_SHUTDOWN)
			return err
		}
		return m.life(func(ctx context.Context) error {
			m.Want(id, swarmv1.TaskState_SHUTDOWN)
			return ends(ctx)
		}, ends)
	})
}

// TestTheAgentDiesOverARemoval: after the manager's next COMPLETE, which does not have the
// task, nothing of it is left.
func TestTheAgentDiesOverARemoval(t *testing.T) {
	enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
		m := newMortal(t)
		m.give("sleep")
		if err := m.runs(t.Context()); err != nil {
			t.Fatal(err)
		}
		return m.life(func(ctx context.Context) error {
			m.Remove(id)
			return m.isGone(ctx)
		}, m.isGone)
	})
}

// TestTheAgentDiesOverARestart kills it after every stage of a restart while no manager can be
// reached. When one can, the task runs, once, and is reported with its new container, or as it
// ended.
func TestTheAgentDiesOverARestart(t *testing.T) {
	enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
		m := newMortal(t)
		m.delay = 0
		m.give("sleep")
		if err := m.runs(t.Context()); err != nil {
			t.Fatal(err)
		}
		first := m.container(id)
		m.cutOff.Store(true)
		m.lost()
		back := func(ctx context.Context) error {
			m.cutOff.Store(false)
			var last *swarmv1.TaskStatus
			err := m.Await(ctx, func() bool {
				list := m.Statuses(id)
				last = list[len(list)-1]
				return last.GetState() == swarmv1.TaskState_FAILED || last.GetContainer().GetContainerId() != string(first.ID)
			})
			if err != nil {
				return fmt.Errorf("%w: told %v", err, last)
			}
			m.risesIn(m.Statuses(id)[m.had:], last.GetState())
			if last.GetState() == swarmv1.TaskState_FAILED {
				if last.GetContainer().GetExitCode() != 9 || last.GetErr() == "" {
					err = fmt.Errorf("told %v", last)
				}
				return err
			}
			return m.runsAs(ctx, last)
		}
		return m.life(func(ctx context.Context) error {
			m.Supervisor.Exit(core.Ref{Container: first.ID}, 9)
			for e, err := range m.As(core.OwnerSwarm).Events(ctx, 0, core.Filter{Kinds: []core.EventKind{core.EventContainerStarted}}) {
				if err != nil {
					return err
				}
				if e.Container != first.ID {
					return back(ctx)
				}
			}
			return ctx.Err()
		}, back)
	})
}
