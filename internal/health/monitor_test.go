package health_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/health"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a node with running containers, in a bubble with a clock of its own.
type rig struct {
	*enginetest.Node
	t     *testing.T
	image core.Image
	mu    sync.Mutex // guards said
	said  []health.State
}

// inBubble runs a test on a node with check as its containers' program "check".
func inBubble(t *testing.T, fn func(r *rig), check enginetest.Program) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{Node: enginetest.Fakes(t), t: t}
		r.Options.Runtimes = []core.Runtime{enginetest.Bundles{Runtime: r.Runtime}}
		r.Start()
		r.image = r.AddImage("busybox", imagespec.ImageConfig{}, nil)
		r.Supervisor.Program("check", check)
		fn(r)
		r.Settle()
		r.Clean()
	})
}

func (r *rig) running(key core.Key) core.Container {
	return r.Running(r.Pod(core.OwnerSwarm, key), key, r.image, "sleep")
}

// watch probes a container each second until the function that it returns is called.
func (r *rig) watch(c core.Container) (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	m := health.Monitor{
		Engine: r.As(c.Owner), Log: slog.New(slog.DiscardHandler), Owner: c.Owner, ID: c.ID,
		Check: &health.Check{Command: []string{"check", string(c.Key)}, Interval: time.Second, Timeout: 2 * time.Second, StartInterval: time.Second, Retries: 2},
		Changed: func(s health.State) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.said = append(r.said, s)
		},
	}
	go func() { defer close(done); m.Run(ctx) }()
	return func() { cancel(); <-done }
}

// after lets time pass, and returns the states reported until then.
func (r *rig) after(d time.Duration) []health.State {
	<-time.After(d) // by the bubble's clock
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said
}

// TestAMonitorTellsEachChange, with the last probe's output.
func TestAMonitorTellsEachChange(t *testing.T) {
	var n atomic.Int32
	inBubble(t, func(r *rig) {
		defer r.watch(r.running("a"))()
		if said := r.after(900 * time.Millisecond); len(said) != 0 || n.Load() != 0 {
			r.t.Errorf("before the first interval: %v, %d probes", said, n.Load())
		}
		said := r.after(time.Minute)
		want := []health.State{{Status: health.Healthy, Output: "probe 2"}, {Status: health.Unhealthy, Failures: 2, Output: "probe 4 \uFFFD bad"}, {Status: health.Healthy, Output: "probe 5"}}
		if len(said) != len(want) {
			r.t.Fatalf("%+v", said)
		}
		for i := range want {
			if said[i] != want[i] {
				r.t.Errorf("%d: %+v, want %+v", i, said[i], want[i])
			}
		}
	}, func(p *enginetest.Process) int {
		switch i := n.Add(1); i {
		case 1, 3:
			return 1
		case 4:
			_, _ = fmt.Fprintf(p.Stdout(), "probe %d\n\x1b\xff\t bad\n", i)
			return 1
		default:
			_, _ = fmt.Fprintf(p.Stdout(), "probe %d\n", i)
			return 0
		}
	})
}

// TestOutputIsBounded, and the program does not wait for its reader.
func TestOutputIsBounded(t *testing.T) {
	inBubble(t, func(r *rig) {
		defer r.watch(r.running("a"))()
		said := r.after(10 * time.Second)
		if len(said) != 1 || said[0].Status != health.Unhealthy || len(said[0].Output) != 4096+len("...") || !strings.HasSuffix(said[0].Output, "x...") {
			r.t.Errorf("%d: %.40v", len(said), said)
		}
	}, func(p *enginetest.Process) int {
		for range 100 {
			_, _ = io.WriteString(p.Stdout(), strings.Repeat("x", 1<<16))
		}
		return 1
	})
}

// TestAProbeThatTakesTooLong is killed, and has failed.
func TestAProbeThatTakesTooLong(t *testing.T) {
	var killed atomic.Int32
	inBubble(t, func(r *rig) {
		defer r.watch(r.running("a"))()
		said := r.after(10 * time.Second)
		if len(said) != 1 || said[0].Status != health.Unhealthy || said[0].Output != "Health check exceeded timeout (2s): so far" {
			r.t.Errorf("%+v", said)
		}
		if killed.Load() < 2 {
			r.t.Errorf("%d were killed", killed.Load())
		}
	}, func(p *enginetest.Process) int {
		_, _ = io.WriteString(p.Stdout(), "so far")
		<-p.Killed
		killed.Add(1)
		return 0
	})
}

// TestWhatIsNotTheContainersFault does not count: the keeper's death, and a pause.
func TestWhatIsNotTheContainersFault(t *testing.T) {
	inBubble(t, func(r *rig) {
		c := r.running("a")
		defer r.watch(c)()
		r.Runtime.Fail(func(call string) error {
			if call == "Exec" {
				return fmt.Errorf("the keeper is gone: %w", errdefs.ErrUnavailable)
			}
			return nil
		})
		if said := r.after(10 * time.Second); len(said) != 0 {
			r.t.Errorf("without a keeper: %+v", said)
		}
		r.Runtime.Fail(nil)
		if err := r.As(c.Owner).PauseContainer(r.t.Context(), c.ID); err != nil {
			r.t.Fatal(err)
		}
		if said := r.after(10 * time.Second); len(said) != 0 {
			r.t.Errorf("paused: %+v", said)
		}
		if err := r.As(c.Owner).ResumeContainer(r.t.Context(), c.ID); err != nil {
			r.t.Fatal(err)
		}
		if said := r.after(10 * time.Second); len(said) != 1 || said[0].Status != health.Unhealthy {
			r.t.Errorf("afterwards: %+v", said)
		}
	}, func(*enginetest.Process) int { return 1 })
}

// TestAMonitorEnds with its container, and with its caller in the middle of a probe.
func TestAMonitorEnds(t *testing.T) {
	inBubble(t, func(r *rig) {
		c, d := r.running("a"), r.running("b")
		stopped := r.watch(c)
		cut := r.watch(d)
		r.after(1500 * time.Millisecond) // both probe
		if err := r.As(c.Owner).StopContainer(r.t.Context(), c.ID, engine.StopOptions{}); err != nil {
			r.t.Fatal(err)
		}
		r.after(10 * time.Second)
		cut()
		stopped()
		procs, err := r.Supervisor.Processes(r.t.Context())
		if err != nil {
			r.t.Fatal(err)
		}
		for _, p := range procs {
			if p.Ref.Process != core.Main {
				r.t.Errorf("%v is left", p.Ref)
			}
		}
		for _, s := range r.after(0) {
			if s.Status != health.Unhealthy {
				r.t.Errorf("%+v", s)
			}
		}
	}, func(p *enginetest.Process) int { <-p.Killed; return 0 })
}

// TestACommandThatCannotRun is a failure that says why.
func TestACommandThatCannotRun(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Runtime.Fail(func(call string) error {
			if call == "Exec" {
				return &core.StartError{Err: fmt.Errorf("exec check: no such file or directory: %w", errdefs.ErrNotFound)}
			}
			return nil
		})
		defer r.watch(r.running("a"))()
		if said := r.after(10 * time.Second); len(said) != 1 || said[0].Status != health.Unhealthy || !strings.Contains(said[0].Output, "no such file") {
			r.t.Errorf("%+v", said)
		}
	}, func(*enginetest.Process) int { return 0 })
}

// TestHealthyProbesAreNotRecorded: five hundred containers that are probed each second append one
// event each, when they become healthy, and change no record after that.
func TestHealthyProbesAreNotRecorded(t *testing.T) {
	const containers, seconds = 500, 5
	var probes atomic.Int32
	inBubble(t, func(r *rig) {
		var stops []func()
		pod := r.Pod(core.OwnerSwarm, "pod")
		for i := range containers {
			stops = append(stops, r.watch(r.Running(pod, core.Key(fmt.Sprint(i)), r.image, "sleep")))
		}
		client := r.As(core.OwnerSwarm)
		before, err := client.LastSeq(r.t.Context())
		if err != nil {
			r.t.Fatal(err)
		}
		r.after(seconds*time.Second + time.Second/2)
		for _, stop := range stops {
			stop()
		}
		if got := probes.Load(); got != containers*seconds {
			r.t.Errorf("%d probes", got)
		}
		if now, err := client.LastSeq(r.t.Context()); err != nil || now != before+containers {
			r.t.Errorf("%d events, %v", now-before, err)
		}
		list, err := client.Containers(r.t.Context(), core.Filter{})
		if err != nil || len(list) != containers {
			r.t.Fatal(len(list), err)
		}
		for _, c := range list {
			if len(c.Execs) > 0 || len(c.Exits) > 0 || c.HealthNow() == nil || len(c.Health.Probes) != 1 {
				r.t.Errorf("%s has changed: %d execs, health %+v", c.Key, len(c.Execs), c.Health)
			}
		}
	}, func(*enginetest.Process) int { probes.Add(1); return 0 })
}

// health returns a container's recorded health.
func (r *rig) health(id core.ID) core.Health {
	c, err := r.As(core.OwnerSwarm).Container(r.t.Context(), id)
	if err != nil || c.HealthNow() == nil {
		r.t.Fatalf("no health is stored: %v", err)
	}
	return *c.HealthNow()
}

// TestALaterMonitorContinues: status and failures in a row are kept, the next probe is made when it
// is due, and a reported status is reported again.
func TestALaterMonitorContinues(t *testing.T) {
	var n atomic.Int32
	inBubble(t, func(r *rig) {
		c := r.running("a")
		stop := r.watch(c)
		r.after(1500 * time.Millisecond) // one failure
		stop()
		if h := r.health(c.ID); h.Status != "starting" || h.Failures != 1 || len(h.Probes) != 1 || h.Probes[0].Code != 1 || h.Probes[0].Output != "bad" {
			r.t.Errorf("%+v", h)
		}
		stop = r.watch(c)
		said := r.after(600 * time.Millisecond) // it was due after half a second
		if len(said) != 1 || said[0].Status != health.Unhealthy || said[0].Failures != 2 || n.Load() != 2 {
			r.t.Errorf("%+v after %d probes", said, n.Load())
		}
		stop()
		stop = r.watch(c)
		if said = r.after(0); len(said) != 2 || said[1].Status != health.Unhealthy || said[1].Output != "bad" || n.Load() != 2 {
			r.t.Errorf("%+v after %d probes", said, n.Load())
		}
		r.after(20 * time.Second)
		stop()
		if h := r.health(c.ID); h.Failures < 20 || len(h.Probes) != 5 {
			r.t.Errorf("%+v", h)
		}
		var events []string
		client := r.As(core.OwnerSwarm)
		last, err := client.LastSeq(r.t.Context())
		if err != nil {
			r.t.Fatal(err)
		}
		for e, err := range client.Events(r.t.Context(), 0, core.Filter{}) {
			if err != nil {
				r.t.Fatal(err)
			}
			if e.Kind == core.EventContainerHealth {
				events = append(events, e.Note)
			}
			if e.Seq == last {
				break
			}
		}
		if len(events) != 1 || events[0] != "unhealthy: bad" {
			r.t.Errorf("events %q", events)
		}
	}, func(p *enginetest.Process) int {
		n.Add(1)
		_, _ = io.WriteString(p.Stdout(), "bad")
		return 1
	})
}

// TestARunnerFollowsItsContainers: those that run already, those that are started, and those that
// are started again, from a new state.
func TestARunnerFollowsItsContainers(t *testing.T) {
	var n atomic.Int32
	inBubble(t, func(r *rig) {
		first := r.running("a")
		ctx, cancel := context.WithCancel(r.t.Context())
		done := make(chan struct{})
		runner := &health.Runner{
			Engine: r.As(core.OwnerSwarm), Log: slog.New(slog.DiscardHandler), Owner: core.OwnerSwarm,
			Check: func(c core.Container) *health.Check {
				if c.Key == "without" {
					return nil
				}
				return &health.Check{Command: []string{"check"}, Interval: time.Second, Timeout: time.Second, StartInterval: time.Second, Retries: 2}
			},
			Changed: func(_ context.Context, c core.Container, s health.State) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.said = append(r.said, health.State{Status: s.Status, Output: string(c.Key)})
			},
		}
		go func() { defer close(done); runner.Run(ctx) }()
		if said := r.after(1500 * time.Millisecond); len(said) != 1 || said[0].Output != "a" {
			r.t.Errorf("%+v", said)
		}
		r.running("b")
		r.running("without")
		if said := r.after(1500 * time.Millisecond); len(said) != 2 || said[1].Output != "b" {
			r.t.Errorf("%+v", said)
		}
		client := r.As(core.OwnerSwarm)
		if err := client.StopContainer(r.t.Context(), first.ID, engine.StopOptions{}); err != nil {
			r.t.Fatal(err)
		}
		r.after(0)
		before := n.Load()
		if r.after(10 * time.Second); n.Load() != before+10 { // only b is probed
			r.t.Errorf("%d probes", n.Load()-before)
		}
		if err := client.RenewContainer(r.t.Context(), first.ID); err != nil {
			r.t.Fatal(err)
		}
		if err := client.StartContainer(r.t.Context(), first.ID); err != nil {
			r.t.Fatal(err)
		}
		if c, err := client.Container(r.t.Context(), first.ID); err != nil || c.HealthNow() != nil {
			r.t.Errorf("a new run has the health of the last one: %+v, %v", c.Health, err)
		}
		if said := r.after(1500 * time.Millisecond); len(said) != 3 || said[2].Output != "a" || said[2].Status != health.Healthy {
			r.t.Errorf("%+v", said)
		}
		cancel()
		<-done
	}, func(*enginetest.Process) int { n.Add(1); return 0 })
}
