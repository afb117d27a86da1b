package boot_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/restart"
	"github.com/longshore/longshore/internal/state/bolt"
)

// rig is a node with its files on a disk.
type rig struct {
	*enginetest.Node
	t     *testing.T
	dir   string
	boots int
	img   core.Image
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{Node: enginetest.Fakes(t), t: t, dir: t.TempDir()}
	r.Options.Runtimes = []core.Runtime{enginetest.Bundles{Runtime: r.Runtime}}
	r.Options.Restarts = restart.Rules{}
	r.open()
	r.Start()
	t.Cleanup(func() {
		r.Stop()
		_ = r.Options.Store.Close()
	})
	r.img = r.AddImage("busybox", ocispec.ImageConfig{}, nil)
	return r
}

// eventLimit is the number of events that the log keeps.
const eventLimit = 256

func (r *rig) open() {
	r.t.Helper()
	s, err := bolt.Open(bolt.Options{State: filepath.Join(r.dir, "state"), Root: filepath.Join(r.dir, "root"), BootID: fmt.Sprint(r.boots), EventLimit: eventLimit})
	if err != nil {
		r.t.Fatal(err)
	}
	r.Options.Store = s
}

// boot restarts the node.
func (r *rig) boot() {
	r.t.Helper()
	r.Stop()
	if err := r.Options.Store.Close(); err != nil {
		r.t.Fatal(err)
	}
	r.boots++
	r.Reboot()
	r.open()
	r.Start()
}

func (r *rig) cli() *engine.Client { return r.As(core.OwnerCLI) }

// create creates a durable container with a policy.
func (r *rig) create(key core.Key, policy string) core.Container {
	r.t.Helper()
	p, err := restart.Parse(policy)
	if err != nil {
		r.t.Fatal(err)
	}
	shared := core.Namespace{Mode: core.Shared}
	_, c, err := r.cli().CreatePair(r.t.Context(), engine.Pair{
		Sandbox: core.SandboxConfig{Key: key, Durable: true, Namespaces: core.Namespaces{Net: shared, PID: shared}, Labels: map[string]string{"a": "b"}},
		Container: func(core.ID) (core.ContainerConfig, error) {
			return core.ContainerConfig{
				Key: key, Durable: true, Root: core.Root{Image: r.img.ID}, Spec: enginetest.Args("program", string(key)), Restart: p,
				Volumes: []core.VolumeMount{{Name: "v", Target: "/v"}}, Stop: core.Stop{Signal: "SIGTERM"},
			}, nil
		},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *rig) running(key core.Key, policy string) core.Container {
	r.t.Helper()
	c := r.create(key, policy)
	if err := r.cli().StartContainer(r.t.Context(), c.ID); err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *rig) container(id core.ID) core.Container {
	r.t.Helper()
	c, err := r.cli().Container(r.t.Context(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func TestDurableContainersReturn(t *testing.T) {
	r := newRig(t)
	running, exited, made := r.running("running", "no"), r.running("exited", "no"), r.create("made", "always")
	if _, _, err := r.cli().Exec(t.Context(), running.ID, core.ProcessConfig{Spec: &specs.Process{Args: []string{"sh"}}}); err != nil {
		t.Fatal(err)
	}
	r.Supervisor.Exit(core.Ref{Container: exited.ID}, 3)
	if _, err := r.cli().Wait(t.Context(), core.Ref{Container: exited.ID}); err != nil {
		t.Fatal(err)
	}
	other := r.Running(r.Pod(core.OwnerCRI, "pod"), "c", r.img, "sleep")

	for range 2 { // the second boot finds the results of the first one
		r.boot()
		for _, c := range []struct {
			core.Container
			status  int
			started bool
		}{{running, core.LostCode, true}, {exited, 3, true}, {made, core.LostCode, false}} {
			now := r.container(c.ID)
			if now.State != core.ContainerExited || now.Main.Autopsy.Exit.Status() != c.status || now.Main.Started.IsZero() == c.started || now.Restarting() || len(now.Execs) > 0 {
				t.Errorf("%s is %s: %+v", c.Key, now.State, now.Main)
			}
			if now.Key != c.Key || !now.Created.Equal(c.Created) || !slices.Equal(now.Main.Args, c.Main.Args) {
				t.Errorf("%s has changed: %+v", c.Key, now)
			}
			if sb, err := r.cli().Sandbox(t.Context(), c.Sandbox); err != nil || sb.State != core.SandboxStopped || sb.Labels["a"] != "b" {
				t.Errorf("its sandbox is %+v, %v", sb, err)
			}
		}
		if _, err := r.As(core.OwnerCRI).Container(t.Context(), other.ID); err == nil {
			t.Error("a pod's container has returned")
		}
		r.Clean()
	}

	for _, c := range []core.Container{running, exited, made} {
		if err := r.cli().RenewContainer(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
		if err := r.cli().StartContainer(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
		if got := r.Supervisor.Process(core.Ref{Container: c.ID}); got == nil || !slices.Equal(got.Args, c.Main.Args) {
			t.Errorf("%s runs as %+v", c.Key, got)
		}
	}
	r.Clean()
	for _, c := range []core.Container{running, exited, made} {
		if err := r.cli().RemoveSandbox(t.Context(), c.Sandbox, engine.RemoveOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
	}
	r.boot()
	if left := r.Left(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	r.Clean()
}

func TestPoliciesAfterABoot(t *testing.T) {
	r := newRig(t)
	never, always, unless, failure := r.running("never", "no"), r.running("always", "always"), r.running("unless", "unless-stopped"), r.running("failure", "on-failure")
	stoppedAlways, stoppedUnless := r.running("stopped-always", "always"), r.running("stopped-unless", "unless-stopped")
	well := r.running("well", "on-failure")
	for _, c := range []core.Container{stoppedAlways, stoppedUnless} {
		if err := r.cli().StopContainer(t.Context(), c.ID, engine.StopOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r.Supervisor.Exit(core.Ref{Container: well.ID}, 0)
	if _, err := r.cli().Wait(t.Context(), core.Ref{Container: well.ID}); err != nil {
		t.Fatal(err)
	}
	r.boot()
	for _, c := range []struct {
		core.Container
		due bool
	}{{never, false}, {always, true}, {unless, true}, {failure, true}, {stoppedAlways, true}, {stoppedUnless, false}, {well, false}} {
		now := r.container(c.ID)
		if now.Restarting() != c.due || c.due && (!now.Restarts.Boot || now.Restarts.Count != 0) {
			t.Errorf("%s: %+v", c.Key, now.Restarts)
		}
		if err := engine.StartDue(t.Context(), r.cli(), c.ID); err != nil {
			t.Errorf("%s: %v", c.Key, err)
		}
		if now = r.container(c.ID); (now.State == core.ContainerRunning) != c.due {
			t.Errorf("%s is %s", c.Key, now.State)
		}
	}
	r.Clean()
}

// TestPoliciesAfterAShutdown stops all containers because the node shuts down. A boot follows it, or the next agent alone.
func TestPoliciesAfterAShutdown(t *testing.T) {
	for _, boot := range []bool{true, false} {
		r := newRig(t)
		never, always, unless, failure := r.running("never", "no"), r.running("always", "always"), r.running("unless", "unless-stopped"), r.running("failure", "on-failure:1")
		stopped := r.running("stopped", "unless-stopped")
		if err := r.cli().StopContainer(t.Context(), stopped.ID, engine.StopOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, c := range []core.Container{never, always, unless, failure, stopped} {
			if err := r.cli().StopContainer(t.Context(), c.ID, engine.StopOptions{Request: core.StopRequest{Call: core.ShutdownCall}}); err != nil {
				t.Fatal(err)
			}
		}
		if boot {
			r.boot()
		} else {
			r.Stop()
			r.Start()
		}
		for _, c := range []struct {
			core.Container
			due bool
		}{{never, false}, {always, true}, {unless, true}, {failure, true}, {stopped, false}} {
			if err := engine.StartDue(t.Context(), r.cli(), c.ID); err != nil {
				t.Errorf("%s: %v", c.Key, err)
			}
			now := r.container(c.ID)
			if (now.State == core.ContainerRunning) != c.due || now.Restarts.Count != 0 || c.due && now.Restarts.Down {
				t.Errorf("boot %v: %s is %s, %+v", boot, c.Key, now.State, now.Restarts)
			}
		}
		r.Clean()
	}
}

// TestAnAgentThatDiesInItsFirstStart: the records have returned, and nothing is mounted yet.
func TestAnAgentThatDiesInItsFirstStart(t *testing.T) {
	r := newRig(t)
	c := r.running("c", "no")
	r.boot()
	r.Stop()
	r.Roots.Reboot()
	r.Start()
	r.Clean()
	if now := r.container(c.ID); now.State != core.ContainerExited || now.Main.Autopsy.Exit.Status() != core.LostCode {
		t.Errorf("it is %s: %+v", now.State, now.Main)
	}
	if err := r.cli().RenewContainer(t.Context(), c.ID); err != nil {
		t.Error(err)
	}
}

// TestTheEventLogKnowsMoreThanTheRecord cuts the power between an end and the write of the record, also
// when the log has lost the events before that end.
func TestTheEventLogKnowsMoreThanTheRecord(t *testing.T) {
	t.Run("whole", func(t *testing.T) { testNewerEvents(t, 0) })
	t.Run("trimmed", func(t *testing.T) { testNewerEvents(t, 3*eventLimit) })
}

func testNewerEvents(t *testing.T, others int) {
	t.Helper()
	r := newRig(t)
	c := r.running("c", "on-failure")
	old := r.container(c.ID)
	for range others {
		err := r.Options.Store.Update(func(tx core.Tx) error { _, err := tx.Append(core.Event{Kind: core.EventAgent}); return err })
		if err != nil {
			t.Fatal(err)
		}
	}
	r.Supervisor.Exit(core.Ref{Container: c.ID}, 7)
	if _, err := r.cli().Wait(t.Context(), core.Ref{Container: c.ID}); err != nil {
		t.Fatal(err)
	}
	r.Settle()
	r.Stop()
	err := r.Options.Store.Update(func(tx core.Tx) error { return tx.Containers().Put(old) })
	if err == nil {
		err = r.Options.Store.Sync()
	}
	if err != nil {
		t.Fatal(err)
	}
	r.boot()
	now := r.container(c.ID)
	if now.State != core.ContainerExited || now.Main.Autopsy.Exit.Code != 7 || !now.Restarting() || now.Main.Started.After(time.Now()) {
		t.Errorf("it is %s: %+v, %+v", now.State, now.Main, now.Restarts)
	}
	r.Clean()
}

// unsynced is a store on a disk that fails.
type unsynced struct{ core.Store }

func (unsynced) Sync() error { return unix.EIO }

// TestACreateThatIsNotOnTheDiskLeavesNothing: its caller gets an error, so nothing may use the name.
func TestACreateThatIsNotOnTheDiskLeavesNothing(t *testing.T) {
	r := newRig(t)
	r.Stop()
	whole := r.Options.Store
	r.Options.Store = unsynced{whole}
	r.Start()
	shared := core.Namespace{Mode: core.Shared}
	pair := engine.Pair{
		Sandbox: core.SandboxConfig{Key: "c", Durable: true, Namespaces: core.Namespaces{Net: shared}},
		Container: func(core.ID) (core.ContainerConfig, error) {
			return core.ContainerConfig{Key: "c", Durable: true, Root: core.Root{Image: r.img.ID}, Spec: enginetest.Args("program")}, nil
		},
	}
	if _, _, err := r.cli().CreatePair(t.Context(), pair); !errors.Is(err, unix.EIO) {
		t.Errorf("create: %v", err)
	}
	r.Settle()
	if left := r.Left(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	r.Clean()
	r.Stop()
	r.Options.Store = whole
	r.Start()
	r.create("c", "no")
}
