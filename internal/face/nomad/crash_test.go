package nomad_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
)

// mortal is a rig with an agent that a Crash kills. Its calls are the relay's, which makes one
// again, and says so, when the agent has died over it.
type mortal struct {
	*rig
	crash *enginetest.Crash
	task  *nomaddriver.TaskConfig
}

func newMortal(t *testing.T) mortal {
	t.Helper()
	r := newRig(t, nil)
	r.stop()
	r.Stop()
	m := mortal{rig: r, crash: r.Crashes(), task: r.task("aaaaaaaa", nil)}
	r.start()
	return m
}

func (m mortal) life(call func(ctx context.Context, d nomaddriver.DriverClient) error) enginetest.Life {
	try := func(ctx context.Context, retry bool) error {
		return call(plugin.Caller{Name: "longshore", Retry: retry}.Outgoing(ctx), nomaddriver.NewDriverClient(nomadtest.Dial(m.t, m.socket)))
	}
	return enginetest.Life{
		Node: m.Node, Crash: m.crash, Restart: m.restart,
		Call:  func(ctx context.Context) error { return try(ctx, false) },
		Again: func() error { return try(m.t.Context(), true) },
		Clear: func() error {
			_, err := m.Driver.DestroyTask(m.t.Context(), &nomaddriver.DestroyTaskRequest{TaskId: m.task.GetId(), Force: true})
			if err != nil && strings.Contains(err.Error(), "task not found for given id") {
				return nil
			}
			return err
		},
	}
}

// TestTheAgentDiesInAStart kills it after every stage of a task's start. The start that the relay
// makes again finds the task, or makes it again.
func TestTheAgentDiesInAStart(t *testing.T) {
	enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
		m := newMortal(t)
		return m.life(func(ctx context.Context, d nomaddriver.DriverClient) error {
			resp, err := d.StartTask(ctx, &nomaddriver.StartTaskRequest{Task: m.task})
			if err != nil {
				return err
			}
			if _, err := d.RecoverTask(ctx, &nomaddriver.RecoverTaskRequest{Handle: resp.GetHandle()}); err != nil {
				return fmt.Errorf("the handle: %w", err)
			}
			c, err := m.As(core.OwnerNomad).ContainerByKey(ctx, core.Key(m.task.GetId()))
			if err == nil && c.State != core.ContainerRunning {
				err = fmt.Errorf("the task is %s", c.State)
			}
			return err
		})
	})
}

// TestTheAgentDiesInAStop does the same to the end of a task.
func TestTheAgentDiesInAStop(t *testing.T) {
	enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
		m := newMortal(t)
		m.run(m.task)
		return m.life(func(ctx context.Context, d nomaddriver.DriverClient) error {
			_, err := d.StopTask(ctx, &nomaddriver.StopTaskRequest{TaskId: m.task.GetId()})
			if err != nil {
				return err
			}
			resp, err := d.InspectTask(ctx, &nomaddriver.InspectTaskRequest{TaskId: m.task.GetId()})
			if err == nil && resp.GetTask().GetState() != nomaddriver.TaskState_EXITED {
				err = fmt.Errorf("the task is %s", resp.GetTask().GetState())
			}
			return err
		})
	})
}

// TestTheAgentDiesInADestroy: after the destroy that the relay makes again nobody
// knows the task, and its name is free.
func TestTheAgentDiesInADestroy(t *testing.T) {
	enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
		m := newMortal(t)
		m.run(m.task)
		l := m.life(func(ctx context.Context, d nomaddriver.DriverClient) error {
			if _, err := d.DestroyTask(ctx, &nomaddriver.DestroyTaskRequest{TaskId: m.task.GetId(), Force: true}); err != nil {
				return err
			}
			if _, err := d.InspectTask(ctx, &nomaddriver.InspectTaskRequest{TaskId: m.task.GetId()}); err == nil {
				return errors.New("the task is still known")
			}
			return nil
		})
		again := l.Again
		l.Again = func() error {
			if err := again(); err != nil {
				return err
			}
			_, err := m.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: m.task})
			return err
		}
		return l
	})
}
