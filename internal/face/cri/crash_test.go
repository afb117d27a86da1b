package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// mortal returns a node and the Crash that kills its agent.
func mortal(t *testing.T) (*testNode, *enginetest.Crash) {
	t.Helper()
	n := newTestNode(t)
	n.shutdown()
	n.Stop()
	c := n.Crashes()
	n.Start()
	n.serve(t)
	return n, c
}

// life is a crash test of a call. Its client removes every sandbox that is listed,
// as kubelet does.
func (n *testNode) life(t *testing.T, c *enginetest.Crash, call func(ctx context.Context) error) enginetest.Life {
	return enginetest.Life{
		Node: n.Node, Crash: c, Call: call,
		Again: func() error { return call(t.Context()) },
		Restart: func() {
			n.shutdown()
			n.Start()
			n.serve(t)
		},
		Clear: func() error {
			list, err := n.ListPodSandbox(t.Context(), &v1.ListPodSandboxRequest{})
			if err != nil {
				return err
			}
			for _, p := range list.GetItems() {
				if _, err := n.StopPodSandbox(t.Context(), &v1.StopPodSandboxRequest{PodSandboxId: p.GetId()}); err != nil {
					return err
				}
				if _, err := n.RemovePodSandbox(t.Context(), &v1.RemovePodSandboxRequest{PodSandboxId: p.GetId()}); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// wantContainer asserts the one container's state.
func (n *testNode) wantContainer(ctx context.Context, want v1.ContainerState) error {
	list, err := n.ListContainers(ctx, &v1.ListContainersRequest{})
	if err == nil && (len(list.GetContainers()) != 1 || list.GetContainers()[0].GetState() != want) {
		err = fmt.Errorf("there is %v", list.GetContainers())
	}
	return err
}

// counting is a program that runs until it is killed, and must run once.
func counting(t *testing.T) enginetest.Program {
	var runs atomic.Int32
	return func(p *enginetest.Process) int {
		if n := runs.Add(1); n > 1 {
			t.Errorf("the program runs for the %dth time", n)
		}
		<-p.Killed
		return 0
	}
}

// wantAlive asserts that a container's process runs on, and is the one that is shown.
func (n *testNode) wantAlive(ctx context.Context, id string) error {
	ref := core.Ref{Container: core.ID(id)}
	c, err := n.As(core.OwnerCRI).Container(ctx, ref.Container)
	if err != nil {
		return err
	}
	p := n.Supervisor.Process(ref)
	if p == nil || p.Pid != c.Main.Pid {
		return fmt.Errorf("the process is %+v, and its record says %d", p, c.Main.Pid)
	}
	select {
	case <-p.Killed:
		return errors.New("the program was killed")
	default:
		return nil
	}
}

// TestTheAgentDiesInACall kills it after every stage of every call that makes, starts,
// stops or removes. The same call once more succeeds, or says that it was done.
func TestTheAgentDiesInACall(t *testing.T) {
	type given struct {
		*testNode
		pod, container string
	}
	for _, tc := range []struct {
		name  string
		given func(t *testing.T, n *testNode) given
		call  func(ctx context.Context, g given) error
	}{
		{
			"RunPodSandbox", func(_ *testing.T, n *testNode) given { return given{testNode: n} },
			func(ctx context.Context, g given) error {
				cfg := g.podConfig("p")
				cfg.Linux.SecurityContext.NamespaceOptions.Pid = v1.NamespaceMode_POD // it has an init
				_, err := g.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: cfg})
				if err != nil {
					return err
				}
				list, err := g.ListPodSandbox(ctx, &v1.ListPodSandboxRequest{})
				if err == nil && (len(list.GetItems()) != 1 || list.GetItems()[0].GetState() != v1.PodSandboxState_SANDBOX_READY) {
					err = fmt.Errorf("there is %v", list.GetItems())
				}
				return err
			},
		},
		{
			"CreateContainer", func(t *testing.T, n *testNode) given { return given{n, n.pod(t, "p"), ""} },
			func(ctx context.Context, g given) error {
				if _, err := g.CreateContainer(ctx, g.containerRequest(g.pod, "c", "serve")); err != nil {
					return err
				}
				return g.wantContainer(ctx, v1.ContainerState_CONTAINER_CREATED)
			},
		},
		{
			"StartContainer", func(t *testing.T, n *testNode) given {
				pod := n.pod(t, "p")
				n.Supervisor.Program("count", counting(t))
				return given{n, pod, n.container(t, pod, "c", "count")}
			},
			func(ctx context.Context, g given) error {
				_, err := g.StartContainer(ctx, &v1.StartContainerRequest{ContainerId: g.container})
				if err != nil && !strings.Contains(err.Error(), "it is running") {
					return err
				}
				if err := g.wantContainer(ctx, v1.ContainerState_CONTAINER_RUNNING); err != nil {
					return err
				}
				return g.wantAlive(ctx, g.container)
			},
		},
		{
			"ExecSync", func(t *testing.T, n *testNode) given {
				n.Supervisor.Program("probe", func(*enginetest.Process) int { return 0 })
				pod := n.pod(t, "p")
				return given{n, pod, n.running(t, pod, "c", "serve")}
			},
			func(ctx context.Context, g given) error {
				procs, err := g.Supervisor.Processes(ctx)
				if err != nil || len(procs) != 1 {
					return fmt.Errorf("before the probe there are %v, %w", procs, err)
				}
				if _, err := g.ExecSync(ctx, &v1.ExecSyncRequest{ContainerId: g.container, Cmd: []string{"probe"}}); err != nil {
					return err
				}
				return g.wantContainer(ctx, v1.ContainerState_CONTAINER_RUNNING)
			},
		},
		{
			"StopContainer", func(t *testing.T, n *testNode) given {
				pod := n.pod(t, "p")
				return given{n, pod, n.running(t, pod, "c", "serve")}
			},
			func(ctx context.Context, g given) error {
				if _, err := g.StopContainer(ctx, &v1.StopContainerRequest{ContainerId: g.container, Timeout: 10}); err != nil {
					return err
				}
				return g.wantContainer(ctx, v1.ContainerState_CONTAINER_EXITED)
			},
		},
		{
			"RemoveContainer", func(t *testing.T, n *testNode) given {
				pod := n.pod(t, "p")
				return given{n, pod, n.running(t, pod, "c", "serve")}
			},
			func(ctx context.Context, g given) error {
				_, err := g.RemoveContainer(ctx, &v1.RemoveContainerRequest{ContainerId: g.container})
				return err
			},
		},
		{
			"StopPodSandbox", func(t *testing.T, n *testNode) given {
				pod := n.pod(t, "p")
				return given{n, pod, n.running(t, pod, "c", "serve")}
			},
			func(ctx context.Context, g given) error {
				_, err := g.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: g.pod})
				return err
			},
		},
		{
			"RemovePodSandbox", func(t *testing.T, n *testNode) given {
				pod := n.pod(t, "p")
				return given{n, pod, n.running(t, pod, "c", "serve")}
			},
			func(ctx context.Context, g given) error {
				_, err := g.RemovePodSandbox(ctx, &v1.RemovePodSandboxRequest{PodSandboxId: g.pod})
				return err
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
				n, c := mortal(t)
				g := tc.given(t, n)
				return n.life(t, c, func(ctx context.Context) error { return tc.call(ctx, g) })
			})
		})
	}
}
