package control_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// exec runs a command to its end and returns its output and status.
func (r *rig) exec(t *testing.T, start *longshorev1.ExecStart, input ...*longshorev1.Input) (string, int32, error) {
	t.Helper()
	stream, err := r.containers.Exec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&longshorev1.ExecRequest{Step: &longshorev1.ExecRequest_Start{Start: start}}); err != nil {
		t.Fatal(err)
	}
	for _, in := range input {
		if err := stream.Send(&longshorev1.ExecRequest{Step: &longshorev1.ExecRequest_Input{Input: in}}); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	return collect(stream.Recv)
}

func collect(recv func() (*longshorev1.Output, error)) (string, int32, error) {
	var out strings.Builder
	for first := true; ; first = false {
		m, err := recv()
		if err != nil {
			return out.String(), -1, err
		}
		if first && m.GetStarted() == nil {
			return "", -1, fmt.Errorf("the first message is %v", m)
		}
		out.Write(m.GetStdout())
		out.Write(m.GetStderr())
		if e := m.GetExited(); e != nil {
			// The stream ends when everything has been cleaned up.
			if _, err := recv(); !errors.Is(err, io.EOF) {
				return "", -1, fmt.Errorf("after the last message: %w", err)
			}
			return out.String(), e.GetStatus(), nil
		}
	}
}

func stdin(s string) *longshorev1.Input {
	return &longshorev1.Input{Kind: &longshorev1.Input_Stdin{Stdin: []byte(s)}}
}

func stdinClosed() *longshorev1.Input {
	return &longshorev1.Input{Kind: &longshorev1.Input_StdinClosed{StdinClosed: true}}
}

func TestExecStreamsInputOutputAndStatus(t *testing.T) {
	r := newRig(t)
	c := r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Start: true, Env: []string{"KEEP=1"}})
	out, code, err := r.exec(t, &longshorev1.ExecStart{Name: "c", Command: []string{"cat"}, Stdin: true}, stdin("one "), stdin("two"), stdinClosed())
	if out != "one two" || code != 0 || err != nil {
		t.Errorf("cat: %q, %d, %v", out, code, err)
	}
	out, code, err = r.exec(t, &longshorev1.ExecStart{Name: "c", Command: []string{"both"}})
	if !strings.Contains(out, "out\n") || !strings.Contains(out, "err\n") || code != 7 || err != nil {
		t.Errorf("both: %q, %d, %v", out, code, err)
	}
	out, code, err = r.exec(t, &longshorev1.ExecStart{Name: "c", Command: []string{"sh"}}, &longshorev1.Input{Kind: &longshorev1.Input_Signal{Signal: "TERM"}})
	if code != 128+15 || err != nil {
		t.Errorf("sh: %q, %d, %v", out, code, err)
	}
	_, _, err = r.exec(t, &longshorev1.ExecStart{Name: "c", Command: []string{"missing"}})
	if exitStatus(err) != 127 {
		t.Errorf("missing: %v", err)
	}
	_, _, err = r.exec(t, &longshorev1.ExecStart{Name: "c", Command: []string{"echo"}, User: "nobody-here"})
	wantCode(t, err, codes.InvalidArgument, "nobody-here")
	ct, err := r.As(core.OwnerCLI).Container(t.Context(), core.ID(c.GetId()))
	if err != nil || len(ct.Execs) > 0 {
		t.Errorf("ended execs are kept: %v, %v", ct.Execs, err)
	}
	r.Clean()
}

func TestExecInheritsFromTheMainProcess(t *testing.T) {
	r := newRig(t)
	r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Start: true, Env: []string{"KEEP=1", "CHANGE=old"}, Workdir: "/srv"})
	var env []string
	r.Supervisor.Program("env", func(p *enginetest.Process) int {
		env = p.Env
		return 0
	})
	if _, code, err := r.exec(t, &longshorev1.ExecStart{Name: "c", Command: []string{"env"}, Env: []string{"CHANGE=new"}, User: "web"}); code != 0 || err != nil {
		t.Fatal(code, err)
	}
	got := strings.Join(env, " ")
	for _, want := range []string{"KEEP=1", "CHANGE=new", "HOME=/srv", "PATH=/bin"} {
		if !strings.Contains(got, want) {
			t.Errorf("environment %q lacks %s", got, want)
		}
	}
}

func TestExecEndsWithItsClient(t *testing.T) {
	r := newRig(t)
	c := r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Start: true})
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := r.containers.Exec(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&longshorev1.ExecRequest{Step: &longshorev1.ExecRequest_Start{Start: &longshorev1.ExecStart{Name: "c", Command: []string{"sh"}}}}); err != nil {
		t.Fatal(err)
	}
	m, err := stream.Recv()
	if err != nil || m.GetStarted().GetProcess() == "" {
		t.Fatal(m, err)
	}
	cancel()
	e := r.waitFor(t, func(e core.Event) bool {
		return e.Kind == core.EventProcessExited && string(e.Process) == m.GetStarted().GetProcess()
	})
	if e.Autopsy.Exit.Signal != 9 || string(e.Container) != c.GetId() {
		t.Errorf("it ended by %+v", e.Autopsy)
	}
}

func TestDetachedExecOutlivesItsClient(t *testing.T) {
	r := newRig(t)
	c := r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Start: true})
	stream, err := r.containers.Exec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&longshorev1.ExecRequest{Step: &longshorev1.ExecRequest_Start{Start: &longshorev1.ExecStart{Name: "c", Command: []string{"sh"}, Detach: true}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream goes on: %v", err)
	}
	ct, err := r.As(core.OwnerCLI).Container(t.Context(), core.ID(c.GetId()))
	if err != nil || len(ct.Execs) != 1 || ct.Execs[0].Autopsy != nil {
		t.Errorf("execs %+v, %v", ct.Execs, err)
	}
}

func TestAttachStartsAndGetsAllOutput(t *testing.T) {
	r := newRig(t)
	c := r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Command: []string{"both"}, AutoRemove: true})
	out, code, err := r.attach(t, &longshorev1.AttachStart{Name: "c", Start: true})
	if !strings.Contains(out, "out\n") || !strings.Contains(out, "err\n") || code != 7 || err != nil {
		t.Errorf("%q, %d, %v", out, code, err)
	}
	r.waitFor(t, of(core.EventSandboxRemoved, c.GetSandbox()))
	r.stop() // which waits for calls in progress
	if _, err := os.Stat(filepath.Join(r.logs, c.GetSandbox()+".log")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the log of a removed container: %v", err)
	}
	r.Clean()
}

func (r *rig) attach(t *testing.T, start *longshorev1.AttachStart, input ...*longshorev1.Input) (string, int32, error) {
	t.Helper()
	stream, err := r.containers.Attach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&longshorev1.AttachRequest{Step: &longshorev1.AttachRequest_Start{Start: start}}); err != nil {
		t.Fatal(err)
	}
	for _, in := range input {
		if err := stream.Send(&longshorev1.AttachRequest{Step: &longshorev1.AttachRequest_Input{Input: in}}); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	return collect(stream.Recv)
}

func TestHeldOutputIsDrainedWithoutItsClient(t *testing.T) {
	r := newRig(t)
	c := r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", AutoRemove: true, Hold: true})
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := r.containers.Attach(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&longshorev1.AttachRequest{Step: &longshorev1.AttachRequest_Start{Start: &longshorev1.AttachStart{Name: "c", Start: true}}}); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || m.GetStarted() == nil {
		t.Fatal(m, err)
	}
	ref := core.Ref{Container: core.ID(c.GetId())}
	if err := r.Supervisor.Process(ref).Write(1, []byte("held")); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || string(m.GetStdout()) != "held" {
		t.Fatal(m, err)
	}
	logs, err := r.containers.Logs(t.Context(), &longshorev1.LogsRequest{Name: "c"})
	if err == nil {
		_, err = logs.Recv()
	}
	wantCode(t, err, codes.FailedPrecondition, "not stored")
	cancel()
	// The container continues, and ends and is removed as if nothing had happened.
	r.Supervisor.Exit(ref, 0)
	r.waitFor(t, of(core.EventSandboxRemoved, c.GetSandbox()))
}

func TestForegroundOutputIsExact(t *testing.T) {
	r := newRig(t)
	var want strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	r.Supervisor.Program("many", func(p *enginetest.Process) int {
		for line := range strings.Lines(want.String()) {
			_, _ = io.WriteString(p.Stdout(), line)
		}
		return 0
	})
	for _, hold := range []bool{false, true} {
		r.create(t, &longshorev1.CreateRequest{Name: fmt.Sprint("c", hold), Image: "busybox", Command: []string{"many"}, Hold: hold})
		out, code, err := r.attach(t, &longshorev1.AttachStart{Name: fmt.Sprint("c", hold), Start: true})
		if out != want.String() || code != 0 || err != nil {
			t.Errorf("hold %v: %d bytes of %d, %d, %v", hold, len(out), want.Len(), code, err)
		}
	}
}

func TestAttachPassesInputAndSize(t *testing.T) {
	r := newRig(t)
	c := r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Command: []string{"cat"}, Stdin: true, StdinOnce: true})
	out, code, err := r.attach(t, &longshorev1.AttachStart{Name: "c", Start: true, Stdin: true}, stdin("hello"), stdinClosed())
	if out != "hello" || code != 0 || err != nil {
		t.Errorf("%q, %d, %v", out, code, err)
	}
	// The container is another owner's: it stays, and releases its namespaces.
	r.waitFor(t, of(core.EventSandboxStopped, c.GetSandbox()))
	if _, err := r.containers.Why(t.Context(), &longshorev1.WhyRequest{Name: "c"}); err != nil {
		t.Error(err)
	}
	_, _, err = r.attach(t, &longshorev1.AttachStart{Name: "c"})
	wantCode(t, err, codes.FailedPrecondition, "has exited")
}

func TestInputToOthersContainersNeedsForce(t *testing.T) {
	r := newRig(t)
	c := r.foreign(t, "busybox")
	_, _, err := r.attach(t, &longshorev1.AttachStart{Name: string(c.ID), Stdin: true})
	wantCode(t, err, codes.PermissionDenied, "--force")
	stream, err := r.containers.Attach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&longshorev1.AttachRequest{Step: &longshorev1.AttachRequest_Start{Start: &longshorev1.AttachStart{Name: string(c.ID)}}}); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || m.GetStarted() == nil {
		t.Fatal(m, err)
	}
	// A client that attached for reading only cannot send a signal.
	kill := &longshorev1.Input{Kind: &longshorev1.Input_Signal{Signal: "KILL"}}
	if err := stream.Send(&longshorev1.AttachRequest{Step: &longshorev1.AttachRequest_Input{Input: kill}}); err != nil {
		t.Fatal(err)
	}
	if err := r.Supervisor.Process(core.Ref{Container: c.ID}).Write(1, []byte("seen")); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || string(m.GetStdout()) != "seen" {
		t.Errorf("got %v, %v", m, err)
	}
	if got := r.Supervisor.Signals(core.Ref{Container: c.ID}); len(got) > 0 {
		t.Errorf("signals %v were passed", got)
	}
}

// TestAnEndedContainerStartsAgain checks that a start, a restart and an attach start an ended container with the same
// ID and log.
func TestAnEndedContainerStartsAgain(t *testing.T) {
	r := newRig(t)
	c := r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Command: []string{"both"}, Start: true})
	ended := func() {
		t.Helper()
		resp, err := r.containers.Wait(t.Context(), &longshorev1.WaitRequest{Name: "c"})
		if err != nil || resp.GetAutopsy().GetCode() != 7 {
			t.Fatalf("it ended by %v, %v", resp, err)
		}
	}
	ended()
	r.waitFor(t, of(core.EventSandboxStopped, c.GetSandbox()))
	if _, err := r.containers.Start(t.Context(), &longshorev1.StartRequest{Name: "c"}); err != nil {
		t.Fatal(err)
	}
	ended()
	if _, err := r.containers.Restart(t.Context(), &longshorev1.RestartRequest{Name: "c"}); err != nil {
		t.Fatal(err)
	}
	ended()
	out, code, err := r.attach(t, &longshorev1.AttachStart{Name: "c", Start: true})
	if err != nil || code != 7 || strings.Count(out, "out\n") != 1 {
		t.Errorf("attached: %q, %d, %v", out, code, err)
	}
	resp, err := r.containers.Inspect(t.Context(), &longshorev1.InspectRequest{Name: c.GetId()})
	if err != nil || !strings.Contains(string(resp.GetJson()), `"exited"`) {
		t.Errorf("inspect: %v, %v", resp, err)
	}
	logs, err := os.ReadFile(filepath.Join(r.logs, c.GetSandbox()+".log"))
	if n := strings.Count(string(logs), "stdout F out"); err != nil || n != 4 {
		t.Errorf("the log has %d of 4 runs: %v", n, err)
	}
}

// TestARestartOfARunningContainer checks that a restart ends the program and starts it again, also with --rm, where an
// end alone removes the container.
func TestARestartOfARunningContainer(t *testing.T) {
	r := newRig(t)
	for _, rm := range []bool{false, true} {
		c := r.create(t, &longshorev1.CreateRequest{Image: "busybox", Start: true, AutoRemove: rm})
		before := r.pid(t, c.GetId())
		if _, err := r.containers.Restart(t.Context(), &longshorev1.RestartRequest{Name: c.GetId()}); err != nil {
			t.Fatal(err)
		}
		if after := r.pid(t, c.GetId()); after == 0 || after == before {
			t.Errorf("--rm %v: pid %d, before %d", rm, after, before)
		}
	}
	held := r.create(t, &longshorev1.CreateRequest{Image: "busybox", AutoRemove: true, Hold: true})
	_, err := r.containers.Restart(t.Context(), &longshorev1.RestartRequest{Name: held.GetId()})
	wantCode(t, err, codes.FailedPrecondition, "run it with -d")
	foreign := r.foreign(t, "busybox")
	_, err = r.containers.Restart(t.Context(), &longshorev1.RestartRequest{Name: string(foreign.ID)})
	wantCode(t, err, codes.PermissionDenied, "makes a new container")
	list, err := r.Engine.Check(t.Context())
	if err != nil || len(list) > 0 {
		t.Errorf("check: %v, %v", list, err)
	}
}

// pid returns the pid of a container's main process.
func (r *rig) pid(t *testing.T, id string) int {
	t.Helper()
	c, err := r.Engine.All().Container(t.Context(), core.ID(id))
	if err != nil || c.State != core.ContainerRunning {
		t.Fatalf("%s, %v", c.State, err)
	}
	return c.Main.Pid
}
