package runner_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/restart"
	"github.com/longshore/longshore/internal/restart/runner"
)

// rig is a node with a runner, in virtual time.
type rig struct {
	*enginetest.Node
	t    *testing.T
	end  func()
	mu   sync.Mutex // guards ran
	ran  []time.Duration
	zero time.Time
}

// inBubble calls test with a rig. The rig's program runs for a time and exits with code.
func inBubble(t *testing.T, ran time.Duration, code int, test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{Node: enginetest.Fakes(t), t: t, zero: time.Now()}
		r.Options.Restarts = restart.Rules{}
		r.Options.Runtimes = []core.Runtime{enginetest.Bundles{Runtime: r.Runtime}}
		r.Supervisor.Program("program", func(p *enginetest.Process) int {
			r.mu.Lock()
			r.ran = append(r.ran, time.Since(r.zero))
			r.mu.Unlock()
			timer := time.NewTimer(ran)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-p.Killed:
			}
			return code
		})
		r.begin()
		test(r)
		r.die()
	})
}

// begin starts an agent, and die ends it.
func (r *rig) begin() {
	r.Start()
	ctx, stop := context.WithCancel(r.t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		(&runner.Runner{All: r.Engine.All(), As: r.Engine.As, Parallel: 2, Log: slog.New(slog.DiscardHandler)}).Run(ctx)
	})
	r.end = func() { stop(); work.Wait() }
}

func (r *rig) die() {
	r.end()
	r.Stop()
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }

// run starts a container with a policy.
func (r *rig) run(policy string) core.ID {
	r.t.Helper()
	p, err := restart.Parse(policy)
	if err != nil {
		r.t.Fatal(err)
	}
	img := r.AddImage("busybox", ocispec.ImageConfig{}, nil)
	shared := core.Namespace{Mode: core.Shared}
	_, c, err := r.cli().CreatePair(r.t.Context(), engine.Pair{
		Sandbox: core.SandboxConfig{Key: "c", Namespaces: core.Namespaces{Net: shared}},
		Container: func(core.ID) (core.ContainerConfig, error) {
			return core.ContainerConfig{Key: "c", Root: core.Root{Image: img.ID}, Spec: enginetest.Args("program"), Restart: p, Stop: core.Stop{Signal: "SIGTERM"}}, nil
		},
	})
	if err == nil {
		err = r.cli().StartContainer(r.t.Context(), c.ID)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return c.ID
}

func (r *rig) cli() *engine.Client { return r.As(core.OwnerCLI) }

func (r *rig) container(id core.ID) core.Container {
	r.t.Helper()
	synctest.Wait()
	c, err := r.cli().Container(r.t.Context(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// state returns a container's state and its number of restarts.
func (r *rig) state(id core.ID) string {
	c := r.container(id)
	state := string(c.State)
	if c.Restarting() {
		state = "restarting"
	}
	return fmt.Sprintf("%s %d", state, c.Restarts.Count)
}

// starts returns when the program was started, since the beginning.
func (r *rig) starts() []time.Duration {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ran)
}

func TestACrashLoopSlowsDown(t *testing.T) {
	inBubble(t, 0, 1, func(r *rig) {
		id := r.run("on-failure:4")
		pass(time.Hour)
		ms := time.Millisecond
		if got, want := r.starts(), []time.Duration{0, 100 * ms, 300 * ms, 700 * ms, 1500 * ms}; !slices.Equal(got, want) {
			r.t.Errorf("started at %v, want %v", got, want)
		}
		if got := r.state(id); got != "exited 4" {
			r.t.Errorf("it is %s", got)
		}
		r.Clean()
	})
}

func TestALongRunResetsTheDelay(t *testing.T) {
	inBubble(t, 10*time.Second, 0, func(r *rig) {
		id := r.run("always")
		pass(25 * time.Second)
		ms := time.Millisecond
		if got, want := r.starts(), []time.Duration{0, 10100 * ms, 20200 * ms}; !slices.Equal(got, want) {
			r.t.Errorf("started at %v, want %v", got, want)
		}
		if got := r.state(id); got != "running 2" {
			r.t.Errorf("it is %s", got)
		}
	})
}

// TestPolicyExitStopAndDeath has docker's result for each policy, after an end with each status, with
// a caller's request while the program runs or in the delay, and with the agent dead meanwhile.
func TestPolicyExitStopAndDeath(t *testing.T) {
	type request func(*rig, core.ID)
	stop := func(r *rig, id core.ID) {
		if err := r.cli().StopContainer(r.t.Context(), id, engine.StopOptions{}); err != nil {
			r.t.Error(err)
		}
	}
	signal := func(sig int) request {
		return func(r *rig, id core.ID) {
			if err := r.cli().Signal(r.t.Context(), core.Ref{Container: id}, sig, core.StopRequest{}); err != nil {
				r.t.Error(err)
			}
		}
	}
	kill := func(r *rig, id core.ID) {
		if err := r.cli().KillContainer(r.t.Context(), id, core.StopRequest{}); err != nil {
			r.t.Error(err)
		}
	}
	requests := map[string]request{"nobody": nil, "stop": stop, "SIGKILL": signal(9), "SIGHUP": signal(1), "kill": kill}
	for _, policy := range []string{"no", "on-failure", "on-failure:1", "always", "unless-stopped"} {
		for code := range 2 {
			for by, do := range requests {
				for _, death := range []string{"none", "agent", "agent and keeper", "keeper"} {
					for _, delayed := range []bool{false, true} {
						if delayed && death != "none" || do == nil && delayed {
							continue
						}
						name := fmt.Sprintf("%s, code %d, %s, death of %s, in the delay %v", policy, code, by, death, delayed)
						inBubble(t, 5*time.Second, code, func(r *rig) {
							id := r.run(policy)
							again := policy == "always" || policy == "unless-stopped" || policy != "no" && code == 1
							lost := death == "agent and keeper"
							if lost && policy != "no" {
								again = true // the code is not known, which counts as a failure
							}
							if by == "SIGHUP" && policy != "no" { // the program ends by it: a failure
								again = policy != "unless-stopped"
							}
							if by == "stop" || by == "SIGKILL" || by == "kill" {
								again = false
							}
							pass(time.Second)
							if delayed {
								pass(4050 * time.Millisecond) // it has just ended
								if c := r.container(id); !c.Restarting() {
									return
								}
								// A signal in the delay reaches no program, and only a stop cancels the restart.
								again = by == "SIGHUP"
							}
							if death == "agent" {
								if do != nil {
									do(r, id)
								}
								r.die()
								pass(4 * time.Second)
								r.begin()
							}
							if death == "agent and keeper" {
								if do != nil {
									do(r, id)
									synctest.Wait()
								}
								r.die()
								r.Supervisor.Crash(func(core.Ref) bool { return true })
								r.begin()
								if do != nil && by == "SIGHUP" {
									again = policy != "unless-stopped" && policy != "no"
								}
							}
							if death == "keeper" {
								r.KeeperDies(nil)
							}
							if (death == "none" || death == "keeper") && do != nil {
								do(r, id)
							}
							synctest.Wait()
							pass(4300 * time.Millisecond)
							c := r.container(id)
							if got := c.Restarts.Count > 0 && c.State == core.ContainerRunning; got != again {
								r.t.Errorf("%s: %s with %+v, started again %v, want %v; started at %v", name, c.State, c.Restarts, got, again, r.starts())
							}
							r.Clean()
						})
					}
				}
			}
		}
	}
}

func TestAManualStartResetsTheCount(t *testing.T) {
	inBubble(t, time.Second, 1, func(r *rig) {
		id := r.run("on-failure:1")
		pass(time.Minute)
		if got := r.state(id); got != "exited 1" {
			r.t.Fatalf("it is %s", got)
		}
		if err := r.cli().RenewContainer(r.t.Context(), id); err != nil {
			r.t.Fatal(err)
		}
		if err := r.cli().StartContainer(r.t.Context(), id); err != nil {
			r.t.Fatal(err)
		}
		if got := r.state(id); got != "running 0" {
			r.t.Errorf("it is %s", got)
		}
		pass(time.Minute)
		if got := r.state(id); got != "exited 1" || len(r.starts()) != 4 {
			r.t.Errorf("it is %s, started at %v", got, r.starts())
		}
	})
}

func TestAnUpdateOfThePolicy(t *testing.T) {
	inBubble(t, time.Second, 1, func(r *rig) {
		id := r.run("always")
		pass(1050 * time.Millisecond)
		if got := r.state(id); got != "restarting 1" {
			r.t.Fatalf("it is %s", got)
		}
		if err := r.cli().Restarts.SetPolicy(id, core.RestartPolicy{}); err != nil {
			r.t.Fatal(err)
		}
		pass(time.Hour)
		if got := r.state(id); got != "exited 1" {
			r.t.Errorf("with the policy no it is %s", got)
		}
		if len(r.starts()) != 1 {
			r.t.Errorf("started at %v", r.starts())
		}
	})
}

func TestARestartThatFails(t *testing.T) {
	inBubble(t, time.Second, 1, func(r *rig) {
		id := r.run("always")
		bad := errdefs.ErrUnavailable
		r.Network.Fail(func(string) error { return bad })
		if err := r.cli().StopSandbox(r.t.Context(), r.container(id).Sandbox, engine.StopOptions{IfEnded: true}); err != nil {
			r.t.Fatal(err)
		}
		pass(1010 * time.Millisecond)
		synctest.Wait()
		r.Network.Fail(nil)
		if err := r.cli().StopSandbox(r.t.Context(), r.container(id).Sandbox, engine.StopOptions{IfEnded: true}); err != nil {
			r.t.Fatal(err)
		}
		r.Network.Fail(func(string) error { return bad })
		pass(time.Minute)
		if c := r.container(id); !c.Restarting() || c.Restarts.Error == "" || c.Restarts.Count != 1 {
			r.t.Errorf("while its network cannot be made: %s %+v", c.State, c.Restarts)
		}
		r.Network.Fail(nil)
		pass(time.Minute)
		if c := r.container(id); c.Restarts.Count < 2 || c.Restarts.Error != "" {
			r.t.Errorf("when its network can be made again: %s %+v", c.State, c.Restarts)
		}
		r.Clean()
	})
}

func TestARemovedContainerIsNotStarted(t *testing.T) {
	inBubble(t, time.Second, 1, func(r *rig) {
		id := r.run("always")
		pass(1050 * time.Millisecond)
		if err := r.cli().RemoveSandbox(r.t.Context(), r.container(id).Sandbox, engine.RemoveOptions{Force: true}); err != nil {
			r.t.Fatal(err)
		}
		pass(time.Hour)
		if len(r.starts()) != 1 {
			r.t.Errorf("started at %v", r.starts())
		}
		if left := r.Left(); len(left) > 0 {
			r.t.Errorf("left: %q", left)
		}
	})
}

// joining starts a container with the policy always that joins the namespaces of another one.
func (r *rig) joining(holder core.ID) core.ID {
	r.t.Helper()
	img := r.AddImage("busybox", ocispec.ImageConfig{}, nil)
	_, c, err := r.cli().CreatePair(r.t.Context(), engine.Pair{
		Sandbox: core.SandboxConfig{Key: "joins", Namespaces: core.Namespaces{Net: core.Namespace{Mode: core.Joined, Container: holder}}},
		Container: func(core.ID) (core.ContainerConfig, error) {
			return core.ContainerConfig{Key: "joins", Root: core.Root{Image: img.ID}, Spec: enginetest.Args("other"), Restart: core.RestartPolicy{Name: core.RestartAlways}}, nil
		},
	})
	if err == nil {
		err = r.cli().StartContainer(r.t.Context(), c.ID)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return c.ID
}

// released stops the sandboxes of ended containers, as far as no other one uses them.
func (r *rig) released(ids ...core.ID) {
	r.t.Helper()
	for _, id := range ids {
		if err := r.cli().StopSandbox(r.t.Context(), r.container(id).Sandbox, engine.StopOptions{IfEnded: true}); err != nil {
			r.t.Fatal(err)
		}
	}
}

func TestAJoinedContainerStartsWithItsHolder(t *testing.T) {
	inBubble(t, time.Hour, 0, func(r *rig) {
		holder := r.run("always")
		joins := r.joining(holder)
		if err := r.cli().StopContainer(r.t.Context(), holder, engine.StopOptions{}); err != nil {
			r.t.Fatal(err)
		}
		r.Supervisor.Exit(core.Ref{Container: joins}, 137)
		r.released(joins, holder)
		pass(20 * time.Minute)
		if c := r.container(joins); !c.Restarting() || !strings.Contains(c.Restarts.Error, "start it first") {
			r.t.Fatalf("without its holder: %s %+v", c.State, c.Restarts)
		}
		pass(10 * time.Second) // between two tries
		if err := r.cli().RenewContainer(r.t.Context(), holder); err != nil {
			r.t.Fatal(err)
		}
		if err := r.cli().StartContainer(r.t.Context(), holder); err != nil {
			r.t.Fatal(err)
		}
		pass(time.Millisecond)
		if c := r.container(joins); c.State != core.ContainerRunning || c.Restarts.Error != "" {
			r.t.Errorf("after its holder's start: %s %+v", c.State, c.Restarts)
		}
		r.Clean()
	})
}

func TestAJoinedContainerWaitsForItsHoldersStart(t *testing.T) {
	inBubble(t, time.Hour, 0, func(r *rig) {
		holder := r.run("always")
		joins := r.joining(holder)
		for _, id := range []core.ID{joins, holder} {
			r.Supervisor.Exit(core.Ref{Container: id}, 1)
			r.released(id)
		}
		r.Network.Fail(func(string) error { pass(5 * time.Second); return nil })
		pass(4 * time.Second)
		if c := r.container(joins); !c.Restarting() || c.Restarts.Error != "" {
			r.t.Errorf("while its holder is being started: %s %+v", c.State, c.Restarts)
		}
		r.Network.Fail(nil)
		pass(2 * time.Second)
		for _, id := range []core.ID{holder, joins} {
			if c := r.container(id); c.State != core.ContainerRunning || c.Restarts.Count != 1 {
				r.t.Errorf("%s: %s %+v", c.Key, c.State, c.Restarts)
			}
		}
		if got := r.container(joins).Main.Started.Sub(r.container(holder).Main.Started); got < 0 || got > time.Second {
			r.t.Errorf("started %v after its holder", got)
		}
		r.Clean()
	})
}

// TestAStartThatFailsWithItsHolder fails the pins and the launch with errors of no class.
func TestAStartThatFailsWithItsHolder(t *testing.T) {
	for name, fail := range map[string]func(*rig, func(string) error){
		"pin":    func(r *rig, fn func(string) error) { r.Pinner.Fail(fn) },
		"launch": func(r *rig, fn func(string) error) { r.Supervisor.Fail(fn) },
	} {
		inBubble(t, time.Hour, 0, func(r *rig) {
			holder := r.run("always")
			joins := r.joining(holder)
			var calls atomic.Int32
			fail(r, func(string) error {
				if calls.Add(1) > 3 {
					return nil
				}
				return errors.New("no such file or directory")
			})
			r.Supervisor.Exit(core.Ref{Container: joins}, 137)
			pass(time.Minute)
			fail(r, nil)
			pass(2 * time.Minute)
			if c := r.container(joins); c.State != core.ContainerRunning {
				r.t.Errorf("%s: it is %s: %+v", name, c.State, c.Restarts)
			}
			r.Clean()
		})
	}
}

// TestARemovedHolderEndsTheRestarts: its ID does not come back.
func TestARemovedHolderEndsTheRestarts(t *testing.T) {
	inBubble(t, time.Hour, 0, func(r *rig) {
		holder := r.run("always")
		joins := r.joining(holder)
		if err := r.cli().RemoveSandbox(r.t.Context(), r.container(holder).Sandbox, engine.RemoveOptions{Force: true}); err != nil {
			r.t.Fatal(err)
		}
		r.Supervisor.Exit(core.Ref{Container: joins}, 1)
		pass(time.Hour)
		if c := r.container(joins); c.Restarting() || !strings.Contains(c.Restarts.Error, "was removed") {
			r.t.Errorf("it is %s: %+v", c.State, c.Restarts)
		}
		r.Clean()
	})
}
