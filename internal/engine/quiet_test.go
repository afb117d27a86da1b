package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/roottest"
)

// probe is the config of a quiet exec of a program that runs until it is killed.
func probe(id core.ProcessID) core.ProcessConfig {
	return core.ProcessConfig{ID: id, Quiet: true, Spec: &specs.Process{Args: []string{"sh"}}, IO: core.IO{Hold: true}}
}

// quietRig is a node with a running container.
func quietRig(t *testing.T) (*enginetest.Node, core.Container) {
	t.Helper()
	n := enginetest.New(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	return n, n.Running(n.Pod(core.OwnerCRI, "pod"), "c", img, "sleep")
}

func startProbe(t *testing.T, n *enginetest.Node, c core.Container, id core.ProcessID) core.Ref {
	t.Helper()
	p, _, err := n.As(c.Owner).Exec(t.Context(), c.ID, probe(id))
	if err != nil {
		t.Fatal(err)
	}
	return core.Ref{Container: c.ID, Process: p.ID}
}

// noTrace fails the test when the keeper has a process of the container beside the main one, or the
// record or the log knows of one.
func noTrace(t *testing.T, n *enginetest.Node, c core.Container) {
	t.Helper()
	n.Settle()
	n.Clean()
	// The exit of a process without a record may be taken after that.
	roottest.Eventually(t, "the keeper has no process but the main ones", func() bool {
		procs, err := n.Supervisor.Processes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(procs, func(p core.Supervised) bool { return p.Ref.Process != core.Main })
	})
	if now, err := n.As(c.Owner).Container(t.Context(), c.ID); err == nil && (len(now.Execs) > 0 || len(now.Exits) > 0) {
		t.Errorf("execs on record %v, exits %v", now.Execs, now.Exits)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	last := lastSeq(n)
	for e, err := range n.Engine.All().Events(ctx, 0, core.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Process != core.Main {
			t.Errorf("event %s of process %s", e.Kind, e.Process)
		}
		if e.Seq >= last {
			return
		}
	}
}

// TestAQuietExecIsAProcessLikeOthers, for clients that have its name: it has streams, signals, an
// end and a removal. The store is never written.
func TestAQuietExecIsAProcessLikeOthers(t *testing.T) {
	n := enginetest.Fakes(t)
	store := &countingStore{Store: n.Options.Store}
	n.Options.Store = store
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	n.Start()
	c := n.Running(n.Pod(core.OwnerCRI, "pod"), "c", img, "sleep")
	store.since()
	seq := lastSeq(n)
	client := n.As(core.OwnerCRI)
	cfg := probe("q")
	cfg.IO.TTY, cfg.IO.Stdin = true, core.StdinOpen
	cfg.Attach = &core.StreamOptions{Stdin: true, Stdout: true, Exclusive: true}
	p, streams, err := client.Exec(t.Context(), c.ID, cfg)
	if err != nil || p.ID != "q" || p.Pid == 0 || streams == nil {
		t.Fatalf("%+v, %v, %v", p, streams, err)
	}
	ref := core.Ref{Container: c.ID, Process: "q"}
	if _, _, err := client.Exec(t.Context(), c.ID, probe("q")); !errdefs.IsAlreadyExists(err) {
		t.Errorf("another one of the same name: %v", err)
	}
	if _, _, err := client.Exec(t.Context(), c.ID, core.ProcessConfig{ID: "q", Spec: cfg.Spec}); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a recorded one of the same name: %v", err)
	}
	if err := client.Resize(t.Context(), ref, core.Size{Cols: 80, Rows: 24}); err != nil || n.Supervisor.Process(ref).Size.Cols != 80 {
		t.Errorf("resize: %v", err)
	}
	if err := client.CloseStdin(t.Context(), ref); err != nil {
		t.Errorf("close stdin: %v", err)
	}
	if err := client.RemoveProcess(t.Context(), ref, engine.RemoveOptions{}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("removed while it runs: %v", err)
	}
	wait := client.JoinWait(ref)
	if err := client.Signal(t.Context(), ref, int(unix.SIGTERM), core.StopRequest{}); err != nil {
		t.Errorf("signal: %v", err)
	}
	if a, err := wait(t.Context()); err != nil || a.Exit.Signal != int(unix.SIGTERM) || a.Verdict == "" {
		t.Errorf("wait: %+v, %v", a, err)
	}
	if a, err := client.Wait(t.Context(), ref); err != nil || a.Exit.Signal != int(unix.SIGTERM) {
		t.Errorf("wait after the end: %+v, %v", a, err)
	}
	for range 2 { // the second time it is gone
		if err := client.RemoveProcess(t.Context(), ref, engine.RemoveOptions{}); err != nil {
			t.Error(err)
		}
	}
	if _, err := client.Wait(t.Context(), ref); !errdefs.IsNotFound(err) {
		t.Errorf("wait after the removal: %v", err)
	}
	if u := store.since(); u.containerWrites+u.sandboxWrites != 0 || lastSeq(n) != seq {
		t.Errorf("the store was written: %+v, %d events", u, lastSeq(n)-seq)
	}
	noTrace(t, n, c)
}

// TestWhatAQuietExecCannotBe, and that only its owner reaches it.
func TestWhatAQuietExecCannotBe(t *testing.T) {
	n, c := quietRig(t)
	for name, edit := range map[string]func(*core.ProcessConfig){
		"sinks":     func(p *core.ProcessConfig) { p.IO.Sinks = []core.Sink{{Path: "/x", Stdout: true}} },
		"data":      func(p *core.ProcessConfig) { p.Data = []byte("x") },
		"kept exit": func(p *core.ProcessConfig) { p.KeepExit = true },
	} {
		cfg := probe("q")
		edit(&cfg)
		if _, _, err := n.As(c.Owner).Exec(t.Context(), c.ID, cfg); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := n.Engine.All().Exec(t.Context(), c.ID, probe("q")); !errdefs.IsInvalidArgument(err) {
		t.Errorf("the unscoped view: %v", err)
	}
	ref := startProbe(t, n, c, "q")
	if _, err := n.As(core.OwnerNomad).Wait(t.Context(), ref); !errdefs.IsNotFound(err) {
		t.Errorf("another owner waits: %v", err)
	}
	if err := n.As(core.OwnerNomad).RemoveProcess(t.Context(), ref, engine.RemoveOptions{Force: true}); err != nil || n.Supervisor.Process(ref) == nil {
		t.Errorf("another owner removes: %v", err)
	}
	if err := n.As(c.Owner).RemoveProcess(t.Context(), ref, engine.RemoveOptions{Force: true}); err != nil {
		t.Error(err)
	}
	noTrace(t, n, c)
}

// TestAQuietExecEndsWithItsAgent: the next one kills it and forgets it, also one that had ended
// when the agent died.
func TestAQuietExecEndsWithItsAgent(t *testing.T) {
	n, c := quietRig(t)
	runs, ended := startProbe(t, n, c, "runs"), startProbe(t, n, c, "ended")
	killed := n.Supervisor.Process(runs).Killed
	n.Supervisor.Exit(ended, 3)
	n.Settle()
	n.Restart()
	select {
	case <-killed:
	default:
		t.Error("it runs on")
	}
	if _, err := n.As(c.Owner).Wait(t.Context(), runs); !errdefs.IsNotFound(err) {
		t.Errorf("wait: %v", err)
	}
	noTrace(t, n, c)
	if now, err := n.As(c.Owner).Container(t.Context(), c.ID); err != nil || now.State != core.ContainerRunning {
		t.Errorf("its container: %s, %v", now.State, err)
	}
}

// TestAQuietExecEndsWithItsContainer, by any cause: a waiting client hears of it.
func TestAQuietExecEndsWithItsContainer(t *testing.T) {
	for name, end := range map[string]func(n *enginetest.Node, c core.Container) error{
		"its program ends": func(n *enginetest.Node, c core.Container) error {
			n.Supervisor.Exit(core.Ref{Container: c.ID}, 0)
			return nil
		},
		"a stop": func(n *enginetest.Node, c core.Container) error {
			return n.As(c.Owner).StopContainer(context.Background(), c.ID, engine.StopOptions{})
		},
		"a removal": func(n *enginetest.Node, c core.Container) error {
			return n.As(c.Owner).RemoveContainer(context.Background(), c.ID, engine.RemoveOptions{Force: true})
		},
		"its sandbox's removal": func(n *enginetest.Node, c core.Container) error {
			return n.As(c.Owner).RemoveSandbox(context.Background(), c.Sandbox, engine.RemoveOptions{Force: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, c := quietRig(t)
			// Nothing but the engine's own signal ends it, as in a cgroup that is shared with others.
			n.Cgroups.Fail(func(call string) error {
				if call == "Kill" {
					n.Supervisor.Exit(core.Ref{Container: c.ID}, 137)
					return errdefs.ErrNotFound
				}
				return nil
			})
			wait := n.As(c.Owner).JoinWait(startProbe(t, n, c, "q"))
			if err := end(n, c); err != nil {
				t.Fatal(err)
			}
			if a, err := wait(t.Context()); err != nil || a.Exit.Signal != int(unix.SIGKILL) {
				t.Errorf("%+v, %v", a, err)
			}
			n.Cgroups.Fail(nil)
			if err := n.As(c.Owner).RemoveSandbox(t.Context(), c.Sandbox, engine.RemoveOptions{Force: true}); err != nil {
				t.Error(err)
			}
			noTrace(t, n, c)
			if left := n.Left(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestAContainerEndsBeforeItsProbeIsKnown: the container's end could not kill it, so its start does.
func TestAContainerEndsBeforeItsProbeIsKnown(t *testing.T) {
	n := enginetest.Fakes(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	var c core.Container
	n.Options.FailPoint = func(stage string) error {
		if stage != "exec.launch" {
			return nil
		}
		n.Supervisor.Exit(core.Ref{Container: c.ID}, 0)
		_, err := n.As(core.OwnerCRI).Wait(context.Background(), core.Ref{Container: c.ID})
		return err
	}
	n.Start()
	c = n.Running(n.Pod(core.OwnerCRI, "pod"), "c", img, "sleep")
	n.Cgroups.Fail(func(call string) error {
		if call == "Kill" {
			return errdefs.ErrNotFound
		}
		return nil
	})
	if _, _, err := n.As(core.OwnerCRI).Exec(t.Context(), c.ID, probe("q")); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("exec: %v", err)
	}
	noTrace(t, n, c)
}

// TestAQuietExecAndItsKeepersDeath: it continues if the next keeper has it; if not, a waiting
// client hears that it was lost.
func TestAQuietExecAndItsKeepersDeath(t *testing.T) {
	n, c := quietRig(t)
	kept, lost := startProbe(t, n, c, "kept"), startProbe(t, n, c, "lost")
	client := n.As(c.Owner)
	ends := client.JoinWait(kept)
	wait := client.JoinWait(lost)
	n.KeeperDies(func(r core.Ref) bool { return r == lost })
	if a, err := wait(t.Context()); err != nil || !a.Exit.Lost {
		t.Errorf("the one that is gone: %+v, %v", a, err)
	}
	n.Supervisor.Exit(kept, 4)
	if a, err := ends(t.Context()); err != nil || a.Exit.Code != 4 {
		t.Errorf("the other: %+v, %v", a, err)
	}
	for _, ref := range []core.Ref{kept, lost} {
		if err := client.RemoveProcess(t.Context(), ref, engine.RemoveOptions{}); err != nil {
			t.Error(err)
		}
	}
	noTrace(t, n, c)
}

// TestAQuietExecThatCouldNotBeRemoved is removed when its end is seen, or when there is a keeper
// again. Its caller does not come back.
func TestAQuietExecThatCouldNotBeRemoved(t *testing.T) {
	down := func(calls ...string) func(string) error {
		return func(call string) error {
			for _, c := range calls {
				if c == call {
					return fmt.Errorf("%s: %w", call, errdefs.ErrUnavailable)
				}
			}
			return nil
		}
	}
	for name, c := range map[string]struct {
		fails []string // while it is removed
		after func(n *enginetest.Node, ref core.Ref)
	}{
		"its end comes later":      {[]string{"Signal"}, func(n *enginetest.Node, ref core.Ref) { n.Supervisor.Exit(ref, 0) }},
		"it has ended":             {[]string{"Forget"}, func(n *enginetest.Node, _ core.Ref) { n.KeeperDies(nil) }},
		"the next keeper has it":   {[]string{"Signal"}, func(n *enginetest.Node, _ core.Ref) { n.KeeperDies(nil) }},
		"its keeper's nest died":   {[]string{"Signal"}, func(n *enginetest.Node, ref core.Ref) { n.KeeperDies(func(r core.Ref) bool { return r == ref }) }},
		"its container is removed": {[]string{"Forget"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n, ct := quietRig(t)
			ref := startProbe(t, n, ct, "q")
			n.Supervisor.Fail(down(c.fails...))
			if err := n.As(ct.Owner).RemoveProcess(t.Context(), ref, engine.RemoveOptions{Force: true}); !errdefs.IsUnavailable(err) {
				t.Errorf("the removal: %v", err)
			}
			n.Supervisor.Fail(nil)
			if c.after != nil {
				c.after(n, ref)
				roottest.Eventually(t, "it is forgotten", func() bool { return n.Supervisor.Process(ref) == nil })
				noTrace(t, n, ct)
			}
			if err := n.As(ct.Owner).RemoveSandbox(t.Context(), ct.Sandbox, engine.RemoveOptions{Force: true}); err != nil {
				t.Fatal(err)
			}
			n.Settle()
			if left := n.Left(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestALaunchThatItsKeepersDeathCutOff leaves a process that nobody knows: it is killed when the
// next keeper tells of it.
func TestALaunchThatItsKeepersDeathCutOff(t *testing.T) {
	n, c := quietRig(t)
	ref := core.Ref{Container: c.ID, Process: "cut"}
	if _, err := n.Supervisor.Start(t.Context(), ref, func(p *enginetest.Process) int { <-p.Killed; return 0 }, core.IO{Hold: true}, nil); err != nil {
		t.Fatal(err)
	}
	known := startProbe(t, n, c, "known")
	n.KeeperDies(nil)
	roottest.Eventually(t, "it is forgotten", func() bool { return n.Supervisor.Process(ref) == nil })
	if p := n.Supervisor.Process(known); p == nil {
		t.Error("one that is known was killed too")
	}
	if err := n.As(c.Owner).RemoveProcess(t.Context(), known, engine.RemoveOptions{Force: true}); err != nil {
		t.Error(err)
	}
	noTrace(t, n, c)
}

// TestTheCallersTimeWasOver before the removal began: the process is ended all the same.
func TestTheCallersTimeWasOver(t *testing.T) {
	n, c := quietRig(t)
	ref := startProbe(t, n, c, "q")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.As(c.Owner).RemoveProcess(ctx, ref, engine.RemoveOptions{Force: true}); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	roottest.Eventually(t, "it is forgotten", func() bool { return n.Supervisor.Process(ref) == nil })
	noTrace(t, n, c)
}

// TestTheCallersTimeIsOver before the process has ended: it is removed all the same.
func TestTheCallersTimeIsOver(t *testing.T) {
	n, c := quietRig(t)
	ref := startProbe(t, n, c, "q")
	acked := make(chan struct{})
	n.Supervisor.Fail(func(call string) error {
		if call == "Ack" {
			<-acked
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := n.As(c.Owner).RemoveProcess(ctx, ref, engine.RemoveOptions{Force: true})
	close(acked)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	roottest.Eventually(t, "it is forgotten", func() bool { return n.Supervisor.Process(ref) == nil })
	n.Supervisor.Fail(nil)
	noTrace(t, n, c)
}
