package engine_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"pgregory.net/rapid"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/asleep"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/restart"
	"github.com/longshore/longshore/internal/state"
	"github.com/longshore/longshore/internal/state/bolt"
)

// world is the state machine of the property test: random verbs of several owners, ends of
// processes, deaths of agent and keeper, and boots.
type world struct {
	t     *testing.T
	n     *enginetest.Node
	dir   string
	boots int
	store *state.Store
	crash crasher
	img   core.Image
	keys  int
}

func (w *world) open() {
	if w.store != nil {
		if err := w.store.Close(); err != nil {
			w.t.Fatal(err)
		}
	}
	var err error
	w.store, err = bolt.Open(bolt.Options{
		State: filepath.Join(w.dir, "state"), Root: filepath.Join(w.dir, "root"), BootID: fmt.Sprint(w.boots), LogBytes: 8192,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.n.Options.Store = w.store
}

func (w *world) restart() {
	w.n.Stop()
	w.crash.arm("")
	w.open()
	w.n.Start()
}

// do runs a verb. When the armed crash happens, the engine dies and is started again.
func (w *world) do(verb func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- verb(ctx) }()
	select {
	case err := <-done:
		return err
	case <-w.crash.hit:
	}
	cancel()
	<-done
	w.restart()
	return errCrash
}

// fine fails the test unless err is nil, a crash, or of a class that the verb may return.
func fine(r *rapid.T, what string, err error, allowed ...func(error) bool) {
	if err == nil || errors.Is(err, errCrash) {
		return
	}
	for _, ok := range allowed {
		if ok(err) {
			return
		}
	}
	r.Fatalf("%s: %v", what, err)
}

func (w *world) pickSandbox(r *rapid.T) core.Sandbox {
	list, err := w.n.Engine.All().Sandboxes(w.t.Context(), core.Filter{})
	if err != nil {
		r.Fatal(err)
	}
	if len(list) == 0 {
		r.Skip("no sandbox")
	}
	return rapid.SampledFrom(list).Draw(r, "sandbox")
}

func (w *world) pickContainer(r *rapid.T) core.Container {
	list, err := w.n.Engine.All().Containers(w.t.Context(), core.Filter{})
	if err != nil {
		r.Fatal(err)
	}
	if len(list) == 0 {
		r.Skip("no container")
	}
	return rapid.SampledFrom(list).Draw(r, "container")
}

func (w *world) key() core.Key { w.keys++; return core.Key(fmt.Sprint("k", w.keys)) }

func (w *world) actions() map[string]func(*rapid.T) {
	n := w.n
	return map[string]func(*rapid.T){
		"create sandbox": func(r *rapid.T) {
			shared := core.Namespace{Mode: core.Shared}
			cfg := core.SandboxConfig{Key: w.key(), Namespaces: core.Namespaces{Net: shared, IPC: shared, UTS: shared}, Network: core.NetworkConfig{Egress: rapid.SampledFrom([][]string{nil, {"none"}}).Draw(r, "egress")}}
			if rapid.Bool().Draw(r, "pid") {
				cfg.Namespaces.PID = shared
			}
			cfg.Durable = rapid.Bool().Draw(r, "durable")
			owner := rapid.SampledFrom([]core.Owner{core.OwnerCRI, core.OwnerNomad}).Draw(r, "owner")
			fine(r, "create sandbox", w.do(func(ctx context.Context) error {
				_, err := n.As(owner).CreateSandbox(ctx, cfg)
				return err
			}))
		},
		"create sandbox that joins": func(r *rapid.T) {
			c := w.pickContainer(r)
			joined, shared := core.Namespace{Mode: core.Joined, Container: c.ID}, core.Namespace{Mode: core.Shared}
			cfg := core.SandboxConfig{Key: w.key(), Namespaces: core.Namespaces{Net: joined, UTS: shared}, Durable: rapid.Bool().Draw(r, "durable")}
			if rapid.Bool().Draw(r, "ipc") {
				cfg.Namespaces.IPC = joined
			}
			if rapid.Bool().Draw(r, "pid") {
				cfg.Namespaces.PID = joined
			}
			fine(r, "create sandbox that joins", w.do(func(ctx context.Context) error {
				_, err := n.As(c.Owner).CreateSandbox(ctx, cfg)
				return err
			}), errdefs.IsInvalidArgument, errdefs.IsUnavailable, errdefs.IsFailedPrecondition)
		},
		"stop ended sandbox": func(r *rapid.T) {
			sb := w.pickSandbox(r)
			fine(r, "stop ended sandbox", w.do(func(ctx context.Context) error {
				return n.As(sb.Owner).StopSandbox(ctx, sb.ID, engine.StopOptions{IfEnded: true})
			}))
		},
		"create container": func(r *rapid.T) {
			sb := w.pickSandbox(r)
			cfg := core.ContainerConfig{Key: w.key(), Sandbox: sb.ID, Root: core.Root{Image: w.img.ID}, Spec: enginetest.Args("sleep"), Stop: core.Stop{Grace: time.Second}}
			cfg.Durable = sb.Config.Durable && rapid.Bool().Draw(r, "durable")
			cfg.Restart.Name = rapid.SampledFrom([]core.RestartName{core.RestartNever, core.RestartOnFailure, core.RestartAlways, core.RestartUnlessStopped}).Draw(r, "policy")
			if rapid.Bool().Draw(r, "nested") {
				all, _ := n.Engine.All().Containers(w.t.Context(), core.Filter{Sandbox: sb.ID})
				if len(all) > 0 {
					cfg.Parent = all[0].ID
				}
			}
			fine(r, "create container", w.do(func(ctx context.Context) error {
				_, err := n.As(sb.Owner).CreateContainer(ctx, cfg)
				return err
			}), errdefs.IsFailedPrecondition)
		},
		"start": func(r *rapid.T) {
			c := w.pickContainer(r)
			fine(r, "start", w.do(func(ctx context.Context) error { return n.As(c.Owner).StartContainer(ctx, c.ID) }), errdefs.IsFailedPrecondition)
		},
		"restart": func(r *rapid.T) {
			c := w.pickContainer(r)
			fine(r, "restart", w.do(func(ctx context.Context) error { return engine.StartDue(ctx, n.As(c.Owner), c.ID) }), errdefs.IsFailedPrecondition, errdefs.IsUnavailable)
		},
		"renew": func(r *rapid.T) {
			c := w.pickContainer(r)
			fine(r, "renew", w.do(func(ctx context.Context) error { return n.As(c.Owner).RenewContainer(ctx, c.ID) }), errdefs.IsFailedPrecondition, errdefs.IsUnavailable)
		},
		"attach": func(r *rapid.T) {
			sb := w.pickSandbox(r)
			a := core.Attachment{Network: rapid.SampledFrom(enginetest.FurtherNetworks()).Draw(r, "network")}
			fine(r, "attach", w.do(func(ctx context.Context) error { return n.As(sb.Owner).Attachments.Attach(ctx, sb.ID, a) }), errdefs.IsAlreadyExists, errdefs.IsFailedPrecondition)
		},
		"detach": func(r *rapid.T) {
			sb := w.pickSandbox(r)
			network := rapid.SampledFrom(append(enginetest.FurtherNetworks(), core.NetworkDefault)).Draw(r, "network")
			fine(r, "detach", w.do(func(ctx context.Context) error { return n.As(sb.Owner).Attachments.Detach(ctx, sb.ID, network) }), errdefs.IsNotFound, errdefs.IsFailedPrecondition)
		},
		"restrict": func(r *rapid.T) {
			sb := w.pickSandbox(r)
			list := rapid.SampledFrom([][]string{{"none"}, {"api.example.com"}, nil}).Draw(r, "list")
			fine(r, "restrict", w.do(func(ctx context.Context) error { return n.As(sb.Owner).Attachments.Restrict(ctx, sb.ID, list) }), errdefs.IsFailedPrecondition)
		},
		"exec": func(r *rapid.T) {
			c := w.pickContainer(r)
			cfg := core.ProcessConfig{Spec: &specs.Process{Args: []string{"sh"}}, Ephemeral: rapid.Bool().Draw(r, "ephemeral"), Quiet: rapid.Bool().Draw(r, "quiet")}
			fine(r, "exec", w.do(func(ctx context.Context) error {
				_, _, err := n.As(c.Owner).Exec(ctx, c.ID, cfg)
				return err
			}), errdefs.IsFailedPrecondition)
		},
		"a quiet exec ends": func(r *rapid.T) {
			procs, err := n.Supervisor.Processes(w.t.Context())
			if err != nil {
				r.Fatal(err)
			}
			list, _ := n.Engine.All().Containers(w.t.Context(), core.Filter{})
			for _, c := range list {
				for _, p := range procs {
					if p.Ref.Container != c.ID || p.Ref.Process == core.Main || c.Process(p.Ref.Process) != nil {
						continue
					}
					if rapid.Bool().Draw(r, "by itself") {
						n.Supervisor.Exit(p.Ref, 0)
					}
					fine(r, "remove quiet exec", w.do(func(ctx context.Context) error {
						return n.As(c.Owner).RemoveProcess(ctx, p.Ref, engine.RemoveOptions{Force: true})
					}))
					return
				}
			}
			r.Skip("no quiet exec")
		},
		"remove process": func(r *rapid.T) {
			c := w.pickContainer(r)
			if len(c.Execs) == 0 {
				r.Skip("no exec")
			}
			fine(r, "remove process", w.do(func(ctx context.Context) error {
				return n.As(c.Owner).RemoveProcess(ctx, core.Ref{Container: c.ID, Process: c.Execs[0].ID}, engine.RemoveOptions{Force: true})
			}))
		},
		"pause and resume": func(r *rapid.T) {
			c := w.pickContainer(r)
			fine(r, "pause", w.do(func(ctx context.Context) error { return n.As(c.Owner).PauseContainer(ctx, c.ID) }), errdefs.IsFailedPrecondition)
			if rapid.Bool().Draw(r, "resume") {
				fine(r, "resume", w.do(func(ctx context.Context) error { return n.As(c.Owner).ResumeContainer(ctx, c.ID) }), errdefs.IsFailedPrecondition, errdefs.IsNotFound)
			}
		},
		"sleep and wake": func(r *rapid.T) {
			c := w.pickContainer(r)
			fine(r, "sleep", w.do(func(ctx context.Context) error { return n.As(c.Owner).Rests.Sleep(ctx, c.ID) }), errdefs.IsFailedPrecondition)
			if rapid.Bool().Draw(r, "wake") {
				fine(r, "wake", w.do(func(ctx context.Context) error { return n.As(c.Owner).Rests.Wake(ctx, c.ID, asleep.ByRequest) }), errdefs.IsFailedPrecondition, errdefs.IsNotFound)
			}
			if rapid.Bool().Draw(r, "back") {
				n.Sleeper.Back(c.ID, core.Woken{Pages: 1})
			}
		},
		"process ends": func(r *rapid.T) {
			c := w.pickContainer(r)
			ref := core.Ref{Container: c.ID}
			if len(c.Execs) > 0 && rapid.Bool().Draw(r, "exec") {
				ref.Process = c.Execs[0].ID
			}
			n.Supervisor.Exit(ref, rapid.IntRange(0, 255).Draw(r, "code"))
		},
		"stop": func(r *rapid.T) {
			c := w.pickContainer(r)
			fine(r, "stop", w.do(func(ctx context.Context) error { return n.As(c.Owner).StopContainer(ctx, c.ID, engine.StopOptions{}) }))
		},
		"remove": func(r *rapid.T) {
			c := w.pickContainer(r)
			force := rapid.Bool().Draw(r, "force")
			fine(r, "remove", w.do(func(ctx context.Context) error {
				return n.As(c.Owner).RemoveContainer(ctx, c.ID, engine.RemoveOptions{Force: force})
			}), errdefs.IsFailedPrecondition)
		},
		"stop sandbox": func(r *rapid.T) {
			sb := w.pickSandbox(r)
			fine(r, "stop sandbox", w.do(func(ctx context.Context) error { return n.As(sb.Owner).StopSandbox(ctx, sb.ID, engine.StopOptions{}) }))
		},
		"remove sandbox": func(r *rapid.T) {
			sb := w.pickSandbox(r)
			fine(r, "remove sandbox", w.do(func(ctx context.Context) error {
				return n.As(sb.Owner).RemoveSandbox(ctx, sb.ID, engine.RemoveOptions{Force: true})
			}))
		},
		"arm a crash": func(r *rapid.T) { w.crash.arm(rapid.SampledFrom(engine.Stages()).Draw(r, "stage")) },
		"agent dies":  func(*rapid.T) { w.restart() },
		"keeper dies": func(r *rapid.T) {
			lost := rapid.Bool().Draw(r, "and its nest")
			n.Supervisor.Crash(func(core.Ref) bool { return lost })
		},
		"boot": func(*rapid.T) {
			n.Stop()
			w.boots++
			n.Reboot()
			w.crash.arm("")
			w.open()
			n.Start()
		},
		"": w.invariants,
	}
}

func (w *world) invariants(r *rapid.T) {
	n := w.n
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	if w.crash.crashed() {
		w.restart() // the crash was in the goroutine that records exits
	}
	if err := w.do(n.TrySettle); err != nil && !errors.Is(err, errCrash) {
		r.Fatal(err)
	}
	var list []engine.Violation
	for range 100 { // a dead keeper's losses are found in the background
		var err error
		if list, err = n.Engine.Check(ctx); err != nil {
			r.Fatal(err)
		}
		if len(list) == 0 {
			break
		}
		if w.crash.crashed() {
			w.restart()
		}
		if err := n.Options.Store.Wait(timeout(w.t, 50*time.Millisecond), lastSeq(n)); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			r.Fatal(err)
		}
	}
	for _, v := range list {
		r.Errorf("violation: %s", v)
	}
	for _, owner := range []core.Owner{core.OwnerCRI, core.OwnerNomad, core.OwnerMesos} {
		sbs, _ := n.As(owner).Sandboxes(ctx, core.Filter{})
		cs, _ := n.As(owner).Containers(ctx, core.Filter{})
		for _, sb := range sbs {
			if sb.Owner != owner {
				r.Errorf("%s sees %s's sandbox", owner, sb.Owner)
			}
		}
		for _, c := range cs {
			if c.Owner != owner {
				r.Errorf("%s sees %s's container", owner, c.Owner)
			}
			if _, err := n.As(core.OwnerMesos).Container(ctx, c.ID); !errdefs.IsNotFound(err) {
				r.Errorf("mesos gets %s's container: %v", owner, err)
			}
		}
	}
}

func timeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func lastSeq(n *enginetest.Node) uint64 {
	seq, _ := n.Engine.All().LastSeq(context.Background())
	return seq
}

// TestInvariantsHoldWhateverHappens is the engine's property test.
func TestInvariantsHoldWhateverHappens(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := &world{t: t, n: enginetest.Fakes(t), dir: t.TempDir()}
		w.n.Options.Runtimes = []core.Runtime{enginetest.Bundles{Runtime: w.n.Runtime}}
		w.n.Options.Restarts = restart.Rules{}
		w.img = w.n.AddImage("busybox", ocispec.ImageConfig{}, nil)
		w.n.Options.FailPoint = engine.CheckedFailPoint(w.crash.point)
		w.crash.arm("")
		w.open()
		w.n.Start()
		defer func() {
			w.n.Stop()
			if err := w.store.Close(); err != nil {
				t.Error(err)
			}
		}()
		r.Repeat(w.actions())
		w.restart()
		sweep(t, w.n)
	})
}
