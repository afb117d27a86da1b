package mesos

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/longshore/longshore/test/nodetest"
)

// TestCommandLine: Mesos' own command line lists the agent and its tasks, runs
// commands in them and attaches to them.
func TestCommandLine(t *testing.T) {
	start(t, "MESOS_CLI", func(r *rig) {
		for name, test := range map[string]func(r *rig){
			"lists": (*rig).lists, "exec": (*rig).execs, "exec with input": (*rig).execsWithInput, "exec on a terminal": (*rig).execsOnTerminal,
			"attach": (*rig).attaches, "attach to a nested one": (*rig).attachesToNested,
		} {
			r.t.Run(name, func(t *testing.T) {
				sub := *r
				sub.t = t
				sub.launch("", "a", "exec sleep 1000", false)
				test(&sub)
				sub.end("a")
			})
		}
	})
}

func (r *rig) lists() {
	host, err := os.Hostname()
	if err != nil {
		r.t.Fatal(err)
	}
	r.launch("a", "b", "exec sleep 1000", false)
	if got := r.mesos(nil, "agent", "list"); got.code != 0 || strings.Join(strings.Fields(got.out), " ") != "Agent ID Hostname Active "+host+" "+host+" True" {
		r.t.Errorf("agent list: %+v", got)
	}
	if got := r.mesos(nil, "task", "list"); got.code != 0 || !hasRow(got.out, "a TASK_RUNNING mesos a") || !hasRow(got.out, "a.b TASK_RUNNING mesos a") {
		r.t.Errorf("task list: %+v", got)
	}
	if got := r.mesos(nil, "task", "inspect", "a.b"); got.code != 0 || !strings.Contains(got.out, `"parent": {`) {
		r.t.Errorf("task inspect: %+v", got)
	}
}

func hasRow(table, row string) bool {
	for line := range strings.Lines(table) {
		if strings.Join(strings.Fields(line), " ") == row {
			return true
		}
	}
	return false
}

func (r *rig) execs() {
	got := r.mesos(nil, "task", "exec", "a", "sh", "-c", "echo out; echo oh >&2; pwd; exit 7")
	if got != (said{7, "out\n/mnt/mesos/sandbox\n", "oh\n"}) {
		r.t.Errorf("exec: %+v", got)
	}
	if got := r.mesos(nil, "task", "exec", "a", "sh", "-c", "kill -9 $$"); got.code != 128+9 {
		r.t.Errorf("killed: %+v", got)
	}
	if got := r.mesos(nil, "task", "exec", "a", "seq", "100000"); got.code != 0 || !strings.HasSuffix(got.out, "\n99999\n100000\n") || strings.Count(got.out, "\n") != 100_000 {
		r.t.Errorf("much: %d, %d lines, %s", got.code, strings.Count(got.out, "\n"), got.err)
	}
	if got := r.mesos(nil, "task", "exec", "a", "/no/such/program"); got.code == 0 {
		r.t.Errorf("no program: %+v", got)
	}
	if got := r.mesos(nil, "task", "exec", "nobody", "true"); got.code == 0 || !strings.Contains(got.err, "Unable to find running task 'nobody'") {
		r.t.Errorf("no task: %+v", got)
	}
}

func (r *rig) execsWithInput() {
	long := strings.Repeat("0123456789abcdef", 1<<16)
	got := r.mesos(strings.NewReader(long), "task", "exec", "-i", "a", "sh", "-c", "sha256sum; exit 3")
	if want := fmt.Sprintf("%x  -\n", sha256.Sum256([]byte(long))); got != (said{3, want, ""}) {
		r.t.Errorf("exec -i: %+v, want %s", got, want)
	}
	if got := r.mesos(strings.NewReader(""), "task", "exec", "-i", "a", "cat"); got != (said{}) {
		r.t.Errorf("no input: %+v", got)
	}
}

func (r *rig) execsOnTerminal() {
	s := r.onTerminal(33, 77, "task", "exec", "-i", "-t", "a", "sh")
	s.types("stty size; tty; echo $TERM >/dev/null; echo ready\n")
	s.shows("33 77\r\n")
	s.shows("/dev/pts/")
	s.shows("ready\r\n")
	s.resize(44, 120)
	// The size travels apart from the typed text.
	s.types("until [ \"$(stty size)\" = '44 120' ]; do :; done; echo larger\n")
	s.shows("\nlarger\r\n")
	s.types("exit 5\n")
	if code := s.ended(); code != 5 {
		r.t.Errorf("exit code %d\n%s", code, s.all())
	}
}

func (r *rig) attaches() {
	if got := r.onTerminal(24, 80, "task", "attach", "a"); got.ended() == 0 || !strings.Contains(got.all(), "Unable to attach to a task launched without a TTY") {
		r.t.Errorf("without a terminal: %s", got.all())
	}
	r.launch("", "t", "stty -echo; while read x; do echo got $x; done", true)
	s := r.onTerminal(30, 90, "task", "attach", "t")
	s.types("one\n")
	s.shows("got one\r\n")
	s.types("\x10\x11") // leaves the container as it is
	if code := s.ended(); code != 0 {
		r.t.Errorf("left: %d\n%s", code, s.all())
	}
	s = r.onTerminal(30, 90, "task", "attach", "t")
	s.types("two\n")
	s.shows("got two\r\n")
	s.types("\x04")
	if code := s.ended(); code != 0 {
		r.t.Errorf("ended: %d\n%s", code, s.all())
	}
	if text := r.call("WAIT_CONTAINER", object{"container_id": named("", "t")}); !strings.Contains(text, `"exit_status":0`) {
		r.t.Errorf("the container: %s", text)
	}
	r.call("REMOVE_CONTAINER", object{"container_id": named("", "t")})
}

// attachesToNested: of a nested container the command line tells how it ended.
func (r *rig) attachesToNested() {
	r.launch("a", "n", "stty -echo; read x; echo got $x; exit 9", true)
	s := r.onTerminal(24, 80, "task", "attach", "a.n")
	s.types("word\n")
	s.shows("got word\r\n")
	if code := s.ended(); code != 9 {
		r.t.Errorf("exit code %d\n%s", code, s.all())
	}
	nodetest.Eventually(r.t, "it is no running task", func() bool { return !hasRow(r.mesos(nil, "task", "list").out, "a.n TASK_RUNNING mesos a") })
}
