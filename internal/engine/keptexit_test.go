package engine_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// ended runs an exec to its end and drops its record.
func ended(t *testing.T, n *enginetest.Node, c core.Container, cfg core.ProcessConfig, code int) core.Ref {
	t.Helper()
	client := n.As(c.Owner)
	cfg.Spec = &specs.Process{Args: []string{"sh"}}
	p, _, err := client.Exec(t.Context(), c.ID, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ref := core.Ref{Container: c.ID, Process: p.ID}
	n.Supervisor.Exit(ref, code)
	if _, err := client.Wait(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	if _, err := client.KeptExit(t.Context(), ref); !errdefs.IsNotFound(err) {
		t.Errorf("kept while there is a record: %v", err)
	}
	if err := client.RemoveProcess(t.Context(), ref, engine.RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	return ref
}

// TestExitsAreKept, of execs that asked for it, across a restart, until they are forgotten.
func TestExitsAreKept(t *testing.T) {
	n := enginetest.New(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	c := n.Running(n.Pod(core.OwnerMesos, "pod"), "c", img, "sleep")
	kept := ended(t, n, c, core.ProcessConfig{ID: "s", KeepExit: true}, 7)
	other := ended(t, n, c, core.ProcessConfig{}, 8)
	n.Restart()
	client := n.As(core.OwnerMesos)
	if a, err := client.KeptExit(t.Context(), kept); err != nil || a.Exit.Code != 7 || a.Verdict == "" {
		t.Errorf("after a restart: %+v, %v", a, err)
	}
	if a, err := client.KeptExit(t.Context(), other); !errdefs.IsNotFound(err) {
		t.Errorf("one that nobody asked for: %+v, %v", a, err)
	}
	if a, err := n.As(core.OwnerCRI).KeptExit(t.Context(), kept); !errdefs.IsNotFound(err) {
		t.Errorf("another owner's: %+v, %v", a, err)
	}
	if err := n.As(core.OwnerCRI).ForgetExit(t.Context(), kept); err != nil {
		t.Error(err)
	}
	if _, err := client.KeptExit(t.Context(), kept); err != nil {
		t.Errorf("another owner has had it forgotten: %v", err)
	}
	for range 2 { // the second time there is nothing to forget
		if err := client.ForgetExit(t.Context(), kept); err != nil {
			t.Error(err)
		}
		if a, err := client.KeptExit(t.Context(), kept); !errdefs.IsNotFound(err) {
			t.Errorf("forgotten: %+v, %v", a, err)
		}
	}
	n.Clean()
}

// TestAnExitIsThatOfTheLastProcess: another process of the same ID drops the exit.
func TestAnExitIsThatOfTheLastProcess(t *testing.T) {
	n := enginetest.New(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	c := n.Running(n.Pod(core.OwnerMesos, "pod"), "c", img, "sleep")
	client := n.As(core.OwnerMesos)
	for code := range 3 {
		ref := ended(t, n, c, core.ProcessConfig{ID: "s", KeepExit: true}, code)
		if a, err := client.KeptExit(t.Context(), ref); err != nil || a.Exit.Code != code {
			t.Errorf("%+v, %v", a, err)
		}
	}
	if c, err := client.Container(t.Context(), c.ID); err != nil || len(c.Exits) != 1 {
		t.Errorf("%d exits are kept, %v", len(c.Exits), err)
	}
}

// TestKeptExitsAreBounded: the oldest are dropped first.
func TestKeptExitsAreBounded(t *testing.T) {
	n := enginetest.New(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	c := n.Running(n.Pod(core.OwnerMesos, "pod"), "c", img, "sleep")
	client := n.As(core.OwnerMesos)
	var refs []core.Ref
	for i := range engine.KeptExits + 2 {
		refs = append(refs, ended(t, n, c, core.ProcessConfig{ID: core.ProcessID(fmt.Sprint(i)), KeepExit: true}, 1))
	}
	for i, want := range map[int]bool{0: false, 1: false, 2: true, engine.KeptExits + 1: true} {
		if _, err := client.KeptExit(t.Context(), refs[i]); want != (err == nil) {
			t.Errorf("exit %d: %v", i, err)
		}
	}
}

// TestTheExitOfAnAbandonedExecIsKept: the agent's death ends the exec, and the next agent returns
// how.
func TestTheExitOfAnAbandonedExecIsKept(t *testing.T) {
	n := enginetest.New(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	c := n.Running(n.Pod(core.OwnerMesos, "pod"), "c", img, "sleep")
	p, _, err := n.As(core.OwnerMesos).Exec(t.Context(), c.ID, core.ProcessConfig{Spec: &specs.Process{Args: []string{"sh"}}, Ephemeral: true, KeepExit: true})
	if err != nil {
		t.Fatal(err)
	}
	n.Restart()
	n.Settle()
	client := n.As(core.OwnerMesos)
	if c, err := client.Container(t.Context(), c.ID); err != nil || len(c.Execs) != 0 {
		t.Errorf("execs left: %v, %v", c.Execs, err)
	}
	if a, err := client.KeptExit(t.Context(), core.Ref{Container: c.ID, Process: p.ID}); err != nil || a.Exit.Signal != int(unix.SIGKILL) {
		t.Errorf("%+v, %v", a, err)
	}
	n.Clean()
}

// TestWhoeverDropsAnAbandonedExecKeepsItsExit: a face that cleans up may remove the process
// before the engine does; the exit is kept once.
func TestWhoeverDropsAnAbandonedExecKeepsItsExit(t *testing.T) {
	n := enginetest.New(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	c := n.Running(n.Pod(core.OwnerMesos, "pod"), "c", img, "sleep")
	p, _, err := n.As(core.OwnerMesos).Exec(t.Context(), c.ID, core.ProcessConfig{Spec: &specs.Process{Args: []string{"sh"}}, Ephemeral: true, KeepExit: true})
	if err != nil {
		t.Fatal(err)
	}
	ref := core.Ref{Container: c.ID, Process: p.ID}
	n.Supervisor.Fail(func(call string) error { // it takes longer to die than the recovery takes
		if call == "Signal" {
			return errdefs.ErrNotFound
		}
		return nil
	})
	n.Restart()
	recorded, dropped := make(chan struct{}), make(chan struct{})
	n.Supervisor.Fail(func(call string) error {
		if call == "Ack" {
			close(recorded)
			<-dropped
		}
		return nil
	})
	n.Supervisor.ExitAs(ref, core.Exit{Signal: int(unix.SIGKILL)})
	<-recorded
	n.Supervisor.Fail(nil)
	client := n.As(core.OwnerMesos)
	err = client.RemoveProcess(t.Context(), ref, engine.RemoveOptions{Force: true})
	close(dropped)
	if err != nil {
		t.Fatal(err)
	}
	n.Settle()
	if c, err := client.Container(t.Context(), c.ID); err != nil || len(c.Execs) != 0 || len(c.Exits) != 1 || c.Exits[0].Autopsy.Exit.Signal != int(unix.SIGKILL) {
		t.Errorf("execs %v, exits %+v, %v", c.Execs, c.Exits, err)
	}
	n.Clean()
}

// TestAWaitIsForOneProcess: it returns the end of the process that it found, even if another one
// has the ID by then.
func TestAWaitIsForOneProcess(t *testing.T) {
	n := enginetest.New(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	c := n.Running(n.Pod(core.OwnerMesos, "pod"), "c", img, "sleep")
	client := n.As(core.OwnerMesos)
	cfg := core.ProcessConfig{ID: "s", Spec: &specs.Process{Args: []string{"sh"}}}
	if _, _, err := client.Exec(t.Context(), c.ID, cfg); err != nil {
		t.Fatal(err)
	}
	ref := core.Ref{Container: c.ID, Process: "s"}
	before := client.JoinWait(ref)
	n.Supervisor.Exit(ref, 5)
	if _, err := client.Wait(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	after := client.JoinWait(ref)
	if err := client.RemoveProcess(t.Context(), ref, engine.RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	none := client.JoinWait(ref)
	if _, _, err := client.Exec(t.Context(), c.ID, cfg); err != nil {
		t.Fatal(err)
	}
	for name, wait := range map[string]func(context.Context) (core.Autopsy, error){"before its end": before, "after its end": after} {
		if a, err := wait(t.Context()); err != nil || a.Exit.Code != 5 {
			t.Errorf("joined %s: %+v, %v", name, a, err)
		}
	}
	if a, err := none(t.Context()); !errdefs.IsNotFound(err) {
		t.Errorf("joined when there was none: %+v, %v", a, err)
	}
}

// TestAForgottenExitIsNotAcknowledgedBefore ends the init of a sandbox: the keeper lists it as one with an exit to come until it
// is forgotten. A wait for the keeper's exits includes that.
func TestAForgottenExitIsNotAcknowledgedBefore(t *testing.T) {
	n := enginetest.New(t)
	sb, err := n.As(core.OwnerCRI).CreateSandbox(t.Context(), core.SandboxConfig{Key: "pod", Namespaces: core.Namespaces{PID: core.Namespace{Mode: core.Shared}}})
	if err != nil {
		t.Fatal(err)
	}
	pending := make(chan int, 10)
	n.Supervisor.Fail(func(call string) error {
		if call == "Forget" {
			st, err := n.Supervisor.Status(t.Context())
			if err != nil {
				t.Error(err)
			}
			pending <- st.Pending
		}
		return nil
	})
	n.Supervisor.Exit(core.Ref{Container: sb.ID}, 1)
	if got := <-pending; got != 1 {
		t.Errorf("%d exits are to come when the process is forgotten, want 1", got)
	}
	n.Settle()
	for _, left := range n.Left() {
		if strings.HasPrefix(left, "process ") {
			t.Errorf("the keeper has %s", left)
		}
	}
}
