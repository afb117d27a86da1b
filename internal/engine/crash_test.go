package engine_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/state"
	"github.com/longshore/longshore/internal/state/bolt"
)

var errCrash = errors.New("crash")

// crasher lets the engine die at one stage, the first time that it is reached.
type crasher struct {
	mu   sync.Mutex
	at   string
	hit  chan struct{}
	dead bool
}

func (c *crasher) arm(stage string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.hit, c.dead = stage, make(chan struct{}), false
}

func (c *crasher) crashed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead
}

// point fails at the armed stage and at every one after it, because a dead engine does nothing.
func (c *crasher) point(stage string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if stage == c.at && !c.dead {
		c.dead = true
		close(c.hit)
	}
	if c.dead {
		return errCrash
	}
	return nil
}

// everything runs every verb once, as far as it gets.
func everything(ctx context.Context, n *enginetest.Node, img core.Image, tag string) error {
	client := n.As(core.OwnerCRI)
	shared := core.Namespace{Mode: core.Shared}
	if _, err := client.Images.Pull(ctx, "busybox", core.PullOptions{}); err != nil {
		return err
	}
	sb, err := client.CreateSandbox(ctx, core.SandboxConfig{
		Network: core.NetworkConfig{Egress: []string{"api.example.com"}},
		Key:     core.Key("pod" + tag), Namespaces: core.Namespaces{Net: shared, IPC: shared, UTS: shared, PID: shared},
	})
	if err != nil {
		return err
	}
	c, err := client.CreateContainer(ctx, core.ContainerConfig{
		Key: core.Key("c" + tag), Sandbox: sb.ID, Root: core.Root{Image: img.ID}, Spec: enginetest.Args("sleep"),
		Volumes: []core.VolumeMount{{Name: "data", Target: "/data"}, {Name: "mem", Target: "/mem", Options: map[string]string{"type": "tmpfs", "device": "tmpfs"}}},
	})
	if err != nil {
		return err
	}
	if err := client.StartContainer(ctx, c.ID); err != nil {
		return err
	}
	p, _, err := client.Exec(ctx, c.ID, core.ProcessConfig{Spec: &specs.Process{Args: []string{"true"}}, Ephemeral: true})
	if err != nil {
		return err
	}
	n.Supervisor.Exit(core.Ref{Container: c.ID, Process: p.ID}, 0)
	if _, err := client.Wait(ctx, core.Ref{Container: c.ID, Process: p.ID}); err != nil {
		return err
	}
	q, _, err := client.Exec(ctx, c.ID, core.ProcessConfig{Spec: &specs.Process{Args: []string{"true"}}, Quiet: true})
	if err != nil {
		return err
	}
	if err := client.RemoveProcess(ctx, core.Ref{Container: c.ID, Process: q.ID}, engine.RemoveOptions{Force: true}); err != nil {
		return err
	}
	if _, _, err := client.Exec(ctx, c.ID, core.ProcessConfig{Spec: &specs.Process{Args: []string{"true"}}, Quiet: true}); err != nil {
		return err
	}
	for _, network := range enginetest.FurtherNetworks() {
		if err := client.Attachments.Attach(ctx, sb.ID, core.Attachment{Network: network}); err != nil {
			return err
		}
	}
	if err := client.Attachments.Restrict(ctx, sb.ID, []string{"internet"}); err != nil {
		return err
	}
	if err := client.Attachments.Detach(ctx, sb.ID, core.NetworkDefault); err != nil {
		return err
	}
	grace := patience
	if err := client.StopContainer(ctx, c.ID, engine.StopOptions{Grace: &grace}); err != nil {
		return err
	}
	d, err := client.CreateContainer(ctx, core.ContainerConfig{
		Key: core.Key("d" + tag), Sandbox: sb.ID, Root: core.Root{Image: img.ID}, Spec: enginetest.Args("sleep"),
	})
	if err != nil {
		return err
	}
	if err := client.StopContainer(ctx, d.ID, engine.StopOptions{}); err != nil {
		return err
	}
	if err := client.RemoveContainer(ctx, c.ID, engine.RemoveOptions{}); err != nil {
		return err
	}
	if err := client.StopSandbox(ctx, sb.ID, engine.StopOptions{}); err != nil {
		return err
	}
	if err := client.RenewContainer(ctx, d.ID); err != nil {
		return err
	}
	if err := client.StartContainer(ctx, d.ID); err != nil {
		return err
	}
	if err := client.StopSandbox(ctx, sb.ID, engine.StopOptions{}); err != nil {
		return err
	}
	return client.RemoveSandbox(ctx, sb.ID, engine.RemoveOptions{})
}

// TestACrashAtAnyStageIsRecovered kills the engine between every two stages of every verb and
// starts it again over the same node. Then check finds no violation, everything can be removed,
// and nothing is left.
func TestACrashAtAnyStageIsRecovered(t *testing.T) {
	for _, kind := range []string{"memory", "bolt"} {
		for _, stage := range engine.Stages() {
			t.Run(kind+"/"+stage, func(t *testing.T) {
				t.Parallel()
				n := enginetest.Fakes(t)
				n.Options.Runtimes = []core.Runtime{enginetest.Bundles{Runtime: n.Runtime}}
				open := func() {}
				if kind == "bolt" {
					dir := t.TempDir()
					var s *state.Store
					open = func() {
						if s != nil {
							if err := s.Close(); err != nil {
								t.Fatal(err)
							}
						}
						var err error
						s, err = bolt.Open(bolt.Options{State: filepath.Join(dir, "state"), Root: filepath.Join(dir, "root"), BootID: "b"})
						if err != nil {
							t.Fatal(err)
						}
						n.Options.Store = s
					}
					t.Cleanup(func() { _ = s.Close() })
				}
				img := n.AddImage("busybox", ocispec.ImageConfig{}, map[string]string{"data/f": "x"})
				var c crasher
				n.Options.FailPoint = engine.CheckedFailPoint(c.point)
				open()
				n.Start()
				c.arm(stage)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- everything(ctx, n, img, "1") }()
				select {
				case <-c.hit:
				case err := <-done:
					t.Fatalf("the stage was never reached: %v", err)
				}
				cancel() // callers that wait die too
				if err := <-done; err == nil {
					t.Fatal("the crash was not told")
				}
				n.Stop()
				c.arm("")
				open()
				n.Start()
				n.Clean()
				if err := everything(t.Context(), n, img, "2"); err != nil {
					t.Fatalf("after the crash: %v", err)
				}
				sweep(t, n)
			})
		}
	}
}

// sweep removes everything and checks that nothing is left.
func sweep(t *testing.T, n *enginetest.Node) {
	t.Helper()
	all := n.Engine.All()
	list, err := all.Sandboxes(t.Context(), core.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range list {
		if err := all.RemoveSandbox(t.Context(), sb.ID, engine.RemoveOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
	}
	n.Settle()
	n.Clean()
	if left := n.Left(); len(left) > 0 {
		t.Errorf("left: %v", fmt.Sprint(left))
	}
}

func TestAStageThatNoTestDiesAtIsRefused(t *testing.T) {
	var got []string
	point := engine.CheckedFailPoint(func(stage string) error { got = append(got, stage); return nil })
	if err := point("create.root"); err != nil || !slices.Equal(got, []string{"create.root"}) {
		t.Errorf("a stage: %v, called with %q", err, got)
	}
	if err := point("create.three"); !errdefs.IsInternal(err) || len(got) != 1 {
		t.Errorf("a stage that is not among Stages: %v, called with %q", err, got)
	}
}
