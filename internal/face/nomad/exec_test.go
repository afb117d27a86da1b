package nomad_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/durationpb"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

func TestExecTask(t *testing.T) {
	r := newRig(t, nil)
	task := r.task("aaaaaaaa", nil)
	_, c := r.run(task)
	resp, err := r.Driver.ExecTask(t.Context(), &nomaddriver.ExecTaskRequest{TaskId: task.GetId(), Command: []string{"both"}})
	if out := string(resp.GetStdout()); err != nil || resp.GetResult().GetExitCode() != 7 || len(out) != len("out\nerr\n") || !strings.Contains(out, "out\n") || !strings.Contains(out, "err\n") || string(resp.GetStderr()) != "err\n" {
		t.Errorf("exec %v, %v", resp, err)
	}
	resp, err = r.Driver.ExecTask(t.Context(), &nomaddriver.ExecTaskRequest{TaskId: task.GetId(), Command: []string{"long"}})
	if err != nil || len(resp.GetStdout()) != 4096 || !strings.HasSuffix(string(resp.GetStdout()), "x\n") {
		t.Errorf("exec %v, %v", resp, err)
	}
	_, err = r.Driver.ExecTask(t.Context(), &nomaddriver.ExecTaskRequest{TaskId: task.GetId(), Command: []string{"sh"}, Timeout: durationpb.New(time.Millisecond)})
	wantError(t, err, "timed out")
	_, err = r.Driver.ExecTask(t.Context(), &nomaddriver.ExecTaskRequest{TaskId: task.GetId()})
	wantError(t, err, "no command")
	_, err = r.Driver.ExecTask(t.Context(), &nomaddriver.ExecTaskRequest{TaskId: "a/b/c", Command: []string{"sh"}})
	wantError(t, err, "task not found for given id")
	now, err := r.As(core.OwnerNomad).Container(t.Context(), c.ID)
	if err != nil || len(now.Execs) != 0 {
		t.Errorf("execs left: %v, %v", now.Execs, err)
	}
	r.Supervisor.Exit(main(c), 0)
	if _, err := r.Driver.WaitTask(t.Context(), &nomaddriver.WaitTaskRequest{TaskId: task.GetId()}); err != nil {
		t.Fatal(err)
	}
	_, err = r.Driver.ExecTask(t.Context(), &nomaddriver.ExecTaskRequest{TaskId: task.GetId(), Command: []string{"sh"}})
	wantError(t, err, "it is exited")
}

// session is one ExecTaskStreaming, read to its end.
type session struct {
	stdout, stderr         string
	stdoutDone, stderrDone bool
	result                 *nomaddriver.ExitResult
}

func readSession(t *testing.T, s nomaddriver.Driver_ExecTaskStreamingClient) (out session, err error) {
	t.Helper()
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out.stdout, out.stderr = out.stdout+string(m.GetStdout().GetData()), out.stderr+string(m.GetStderr().GetData())
		out.stdoutDone, out.stderrDone = out.stdoutDone || m.GetStdout().GetClose(), out.stderrDone || m.GetStderr().GetClose()
		if m.GetExited() {
			out.result = m.GetResult()
		}
	}
}

func TestExecTaskStreaming(t *testing.T) {
	r := newRig(t, nil)
	task := r.task("aaaaaaaa", nil)
	_, c := r.run(task)
	open := func(first ...*nomaddriver.ExecTaskStreamingRequest) nomaddriver.Driver_ExecTaskStreamingClient {
		t.Helper()
		s, err := r.Driver.ExecTaskStreaming(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range first {
			if err := s.Send(m); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	setup := func(tty bool, command ...string) *nomaddriver.ExecTaskStreamingRequest {
		return &nomaddriver.ExecTaskStreamingRequest{Setup: &nomaddriver.ExecTaskStreamingRequest_Setup{TaskId: task.GetId(), Command: command, Tty: tty}}
	}
	stdin := func(data string, end bool) *nomaddriver.ExecTaskStreamingRequest {
		return &nomaddriver.ExecTaskStreamingRequest{Stdin: &nomaddriver.ExecTaskStreamingIOOperation{Data: []byte(data), Close: end}}
	}
	size := func(h, w int32) *nomaddriver.ExecTaskStreamingRequest {
		return &nomaddriver.ExecTaskStreamingRequest{TtySize: &nomaddriver.ExecTaskStreamingRequest_TerminalSize{Height: h, Width: w}}
	}
	heartbeat := &nomaddriver.ExecTaskStreamingRequest{}
	got, err := readSession(t, open(setup(false, "cat"), heartbeat, stdin("one ", false), stdin("two", true)))
	if err != nil || got.stdout != "one two" || !got.stdoutDone || !got.stderrDone || got.result == nil || got.result.GetExitCode() != 0 {
		t.Errorf("cat: %+v, %v", got, err)
	}
	got, err = readSession(t, open(setup(false, "both")))
	if err != nil || got.stdout != "out\n" || got.stderr != "err\n" || got.result.GetExitCode() != 7 {
		t.Errorf("both: %+v, %v", got, err)
	}
	// A terminal is resized, and its program told.
	resized := make(chan core.Size, 1)
	r.Supervisor.Program("top", func(p *enginetest.Process) int {
		_, _ = io.ReadAll(p.Stdin)
		resized <- r.Supervisor.Process(p.Ref).Size
		return 0
	})
	got, err = readSession(t, open(setup(true, "top"), size(20, 80), size(30, 100), stdin("", true)))
	if s := <-resized; err != nil || s != (core.Size{Rows: 30, Cols: 100}) || !got.stderrDone || got.result == nil {
		t.Errorf("top: %+v, %v, size %v", got, err, s)
	}
	_, err = readSession(t, open(stdin("no setup", false)))
	wantError(t, err, "setup")
	_, err = readSession(t, open(setup(false)))
	wantError(t, err, "no command")
	// A longer text than Nomad can hand on is cut.
	r.Runtime.Fail(func(call string) error {
		return fmt.Errorf("%s of a program whose name is %s: it cannot be", call, strings.Repeat("é", 60))
	})
	_, err = readSession(t, open(setup(false, "cat")))
	r.Runtime.Fail(nil)
	if err == nil || len(err.Error()) > 123 || !strings.Contains(err.Error(), "of a program whose name is é") || !strings.HasSuffix(err.Error(), "é…") {
		t.Errorf("a long error: %v", err)
	}
	// A client that leaves takes its process along.
	ctx, leave := context.WithCancel(t.Context())
	s, err := r.Driver.ExecTaskStreaming(ctx)
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	killed := make(chan struct{})
	r.Supervisor.Program("wait", func(p *enginetest.Process) int {
		close(started)
		<-p.Killed
		close(killed)
		return 0
	})
	if err := s.Send(setup(false, "wait")); err != nil {
		t.Fatal(err)
	}
	<-started
	leave()
	<-killed
	if _, err := r.Driver.DestroyTask(t.Context(), &nomaddriver.DestroyTaskRequest{TaskId: task.GetId(), Force: true}); err != nil {
		t.Error(err)
	}
	if _, err := r.As(core.OwnerNomad).Container(t.Context(), c.ID); !errdefs.IsNotFound(err) {
		t.Errorf("the task is there: %v", err)
	}
}
