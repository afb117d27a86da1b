package nomad

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// session is one ExecTaskStreaming as its client sees it.
type session struct {
	stdout, stderr   string
	closed           int // of the two outputs
	result           *nomaddriver.ExitResult
	afterExit, ended bool
}

// talk runs a shell command in a task, with the client's messages before it listens.
func (r *rig) talk(id string, tty bool, command string, send ...*nomaddriver.ExecTaskStreamingRequest) session {
	r.t.Helper()
	stream, err := r.Driver.ExecTaskStreaming(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	setup := &nomaddriver.ExecTaskStreamingRequest{Setup: &nomaddriver.ExecTaskStreamingRequest_Setup{TaskId: id, Command: []string{"/bin/sh", "-c", command}, Tty: tty}}
	for _, m := range append([]*nomaddriver.ExecTaskStreamingRequest{setup}, send...) {
		if err := stream.Send(m); err != nil {
			r.t.Fatal(err)
		}
	}
	// Nomad never ends its side.
	var s session
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			s.ended = true
			return s
		}
		if err != nil {
			r.t.Errorf("%s: %v", command, err)
			return s
		}
		s.afterExit = s.afterExit || s.result != nil
		for _, o := range []struct {
			op *nomaddriver.ExecTaskStreamingIOOperation
			to *string
		}{{m.GetStdout(), &s.stdout}, {m.GetStderr(), &s.stderr}} {
			*o.to += string(o.op.GetData())
			if o.op.GetClose() {
				s.closed++
			}
		}
		if m.GetExited() {
			s.result = m.GetResult()
		}
	}
}

func typed(text string, end bool) *nomaddriver.ExecTaskStreamingRequest {
	return &nomaddriver.ExecTaskStreamingRequest{Stdin: &nomaddriver.ExecTaskStreamingIOOperation{Data: []byte(text), Close: end}}
}

func sized(rows, columns int32) *nomaddriver.ExecTaskStreamingRequest {
	return &nomaddriver.ExecTaskStreamingRequest{TtySize: &nomaddriver.ExecTaskStreamingRequest_TerminalSize{Height: rows, Width: columns}}
}

// TestSessions are the streaming execs that Nomad holds every driver to, and some
// more.
func TestSessions(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		task := r.given("sessions", "sleep 1000", map[string]any{"work_dir": "/local"})
		task.User = "www-data"
		r.mkdir("sessions/local")
		r.start(task)
		for _, c := range []struct {
			command        string
			tty            bool
			send           []*nomaddriver.ExecTaskStreamingRequest
			stdout, stderr string // regular expressions of the whole
			code           int32
		}{
			{"echo to stdout; echo to stderr >&2; exit 43", false, nil, "to stdout\n", "to stderr\n", 43},
			{"for i in 1 2 3; do echo $i; sleep 0.2; done", false, nil, "1\n2\n3\n", "", 0},
			{"stty size", false, nil, "", "stty: .*\n", 1},
			{"echo first; head -n 1", false, []*nomaddriver.ExecTaskStreamingRequest{typed("typed\n", true)}, "first\ntyped\n", "", 0},
			{"cat; echo end", false, []*nomaddriver.ExecTaskStreamingRequest{{}, typed("one ", false), {}, typed("two", false), typed("", true)}, "one twoend\n", "", 0},
			{"kill -TERM $$", false, nil, "", "", 143},
			{"id -u; pwd; echo $NOMAD_TASK_NAME; test -t 0 || echo no terminal", false, nil, "33\n/local\nsessions\nno terminal\n", "", 0},
			{"seq 1 20000 | tail -n 1; yes | head -c 3000000 | wc -c", false, nil, "20000\n3000000\n", "", 0},
			{"echo to stdout; echo to stderr >&2; exit 43", true, nil, "to stdout\r\nto stderr\r\n", "", 43},
			{"for i in 1 2 3; do echo $i; sleep 0.2; done", true, nil, "1\r\n2\r\n3\r\n", "", 0},
			// The last size counts; nothing says when it has arrived.
			{"until stty size 2>&1 | grep -q '100 90'; do sleep 0.01; done; stty size", true, []*nomaddriver.ExecTaskStreamingRequest{sized(50, 40), sized(100, 90)}, "100 90\r\n", "", 0},
			{"head -n 1", true, []*nomaddriver.ExecTaskStreamingRequest{typed("typed\n", false)}, "typed\r\ntyped\r\n", "", 0},
			// A terminal's session is over with its first process.
			{"((sleep 1000; echo late) &); echo main; exec sleep 0.1", true, nil, "main\r\n", "", 0},
			{"tty; echo $TERM", true, nil, "/dev/pts/\\d+\r\nxterm\r\n", "", 0},
		} {
			s := r.talk(task.GetId(), c.tty, c.command, c.send...)
			for got, want := range map[string]string{s.stdout: c.stdout, s.stderr + " ": c.stderr + " "} {
				if !regexp.MustCompile("(?s)^(" + want + ")$").MatchString(got) {
					t.Errorf("%s (terminal: %v) said %q, want %q", c.command, c.tty, got, want)
				}
			}
			if s.result.GetExitCode() != c.code || s.result == nil || s.closed != 2 || s.afterExit || !s.ended {
				t.Errorf("%s (terminal: %v) ended as %+v, want %d", c.command, c.tty, s, c.code)
			}
		}
		r.isolation(task.GetId())
		r.destroy(task)
		if left := nodetest.Processes("sleep", "1000"); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		r.nothingLeft()
	})
}

// isolation: an exec sees the task's files and the task's cgroups.
func (r *rig) isolation(id string) {
	r.t.Helper()
	s := r.talk(id, false, "echo from inside > /tmp/only-inside-the-task; cat /tmp/only-inside-the-task")
	if _, err := os.Stat("/tmp/only-inside-the-task"); s.stdout != "from inside\n" || err == nil {
		r.t.Errorf("%+v; on the host: %v", s, err)
	}
	if s = r.talk(id, false, "cat /tmp/only-inside-the-task"); s.stdout != "from inside\n" {
		r.t.Errorf("the next exec: %+v", s)
	}
	own, first := r.talk(id, false, "cat /proc/self/cgroup"), r.talk(id, false, "cat /proc/1/cgroup")
	if own.stdout != first.stdout || own.stdout == "" {
		r.t.Errorf("an exec is in\n%sand the task in\n%s", own.stdout, first.stdout)
	}
}

// TestScripts are ExecTask's: script checks, and scripts of templates.
func TestScripts(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		task := r.given("scripts", "echo up; sleep 1000", nil)
		r.start(task)
		r.eventuallyIn(filepath.Join(r.dir, allocID, "alloc/logs/scripts.stdout.0"), "up")
		run := func(limit time.Duration, command ...string) (*nomaddriver.ExecTaskResponse, error) {
			return r.Driver.ExecTask(t.Context(), &nomaddriver.ExecTaskRequest{TaskId: task.GetId(), Command: command, Timeout: durationpb.New(limit)})
		}
		if e, err := run(time.Minute, "/bin/stat", "/nowhere"); err != nil || e.GetResult().GetExitCode() != 1 || !strings.Contains(string(e.GetStdout()), "No such file or directory") {
			t.Errorf("a script that fails: %v, %v", e, err)
		}
		if e, err := run(time.Minute, "echo", "found by PATH"); err != nil || string(e.GetStdout()) != "found by PATH\n" || e.GetResult().GetExitCode() != 0 {
			t.Errorf("a command: %v, %v", e, err)
		}
		if e, err := run(time.Minute, "/bin/sh", "-c", "kill -9 $$"); err != nil || e.GetResult().GetExitCode() != 137 || e.GetResult().GetSignal() != 9 {
			t.Errorf("a script that is killed: %v, %v", e, err)
		}
		// Its background does not keep Nomad waiting.
		if e, err := run(time.Minute, "/bin/sh", "-c", "sleep 1001 & echo said"); err != nil || string(e.GetStdout()) != "said\n" {
			t.Errorf("a script with a background: %v, %v", e, err)
		}
		_, err := run(100*time.Millisecond, "sleep", "1002")
		says(t, err, "timed out")
		if _, err := run(time.Minute, "/bin/nowhere"); err == nil {
			t.Error("a command that is not there ran")
		}
		nodetest.Eventually(t, "what ran too long is gone", func() bool { return len(nodetest.Processes("sleep", "1002")) == 0 })
		r.destroy(task)
		if left := nodetest.Processes("sleep", ""); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		r.nothingLeft()
	})
}
