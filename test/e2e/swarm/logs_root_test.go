package swarm

import (
	"bufio"
	"context"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// following is `docker service logs --follow` at work.
type following struct {
	t     *testing.T
	lines chan string
	end   func()
}

// followLogs follows the output of a service or a task, in docker's words for it.
func (m *manager) followLogs(args ...string) *following {
	m.t.Helper()
	ctx, cancel := context.WithCancel(m.t.Context())
	cmd := m.Command(ctx, append([]string{"service", "logs", "--follow"}, args...)...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		cmd.Stderr = cmd.Stdout // the service's, and docker's own messages
		err = cmd.Start()
	}
	if err != nil {
		m.t.Fatal(err)
	}
	f := &following{t: m.t, lines: make(chan string)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(f.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			select {
			case f.lines <- s.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	f.end = func() {
		cancel()
		<-done
		_ = cmd.Wait()
	}
	m.t.Cleanup(f.end)
	return f
}

// until reads until a line ends so, and returns all of them.
func (f *following) until(text string) (list []string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), roottest.Patience())
	defer cancel()
	for {
		select {
		case line, ok := <-f.lines:
			if list = append(list, line); !ok {
				f.t.Fatalf("docker ended before %q: %q", text, list)
			}
			if strings.HasSuffix(line, text) {
				return list
			}
		case <-ctx.Done():
			f.t.Fatalf("never %q: %q", text, list)
		}
	}
}

// TestServiceLogs: docker's command line shows the past, present and future output of tasks,
// whichever process dies.
func TestServiceLogs(t *testing.T) {
	beside(t, func(t *testing.T) {
		r := newRig(t)
		r.patient()
		r.join()
		r.create("web", r.ref, "--replicas", "2", "--", "sh", "-c",
			"for i in 1 2 3; do echo line $i of $HOSTNAME; done; echo to stderr >&2; trap 'n=$((n+1)); echo signal $n' USR1; while :; do sleep 1000 & wait; done")
		tasks := r.running("web", 2)
		both := func(args ...string) string {
			t.Helper()
			out, err := r.Command(t.Context(), append([]string{"service", "logs"}, args...)...).CombinedOutput()
			if err != nil {
				t.Fatalf("service logs %v: %v: %s", args, err, out)
			}
			return string(out)
		}
		roottest.Eventually(t, "all is written", func() bool { return strings.Count(both("web"), "to stderr") == 2 })
		out := both("web")
		for _, task := range tasks {
			name := regexp.QuoteMeta(task.Name + "." + task.ID[:12] + "@" + task.Node)
			if !regexp.MustCompile(`(?m)^` + name + ` +\| line 1 of \w+$`).MatchString(out) {
				t.Errorf("nothing of %s in\n%s", name, out)
			}
		}
		if n := strings.Count(out, "\n"); n != 8 || strings.Contains(out, "incomplete") {
			t.Errorf("%d lines, want 8:\n%s", n, out)
		}
		one := tasks[0].ID
		if out := both("--raw", "--tail", "2", one); strings.Count(out, "\n") != 2 || !strings.Contains(out, "line 3") || !strings.Contains(out, "to stderr") {
			t.Errorf("the last two lines of a task: %q", out)
		}
		if out := r.docker("service", "logs", "--raw", one); strings.Contains(out, "stderr") || !strings.Contains(out, "line 1") {
			t.Errorf("its standard output: %q", out)
		}
		stamped := both("--raw", "--timestamps", one)
		if !regexp.MustCompile(`(?m)^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z line 2 of \w+$`).MatchString(stamped) {
			t.Errorf("with times: %q", stamped)
		}
		if out := both("--raw", "--since", "2100-01-01T00:00:00", one); out != "" {
			t.Errorf("since later: %q", out)
		}
		if out := both("--raw", "--since", "1h", one); strings.Count(out, "\n") != 4 {
			t.Errorf("since an hour: %q", out)
		}

		signal := func() {
			t.Helper()
			for _, c := range r.containers() {
				if c.Key == one {
					r.cli("kill", "--force", "--signal", "USR1", c.ID)
				}
			}
		}
		f := r.followLogs("--raw", "--tail", "0", "web")
		// docker says nothing when it has begun.
		roottest.Eventually(t, "the log is followed", func() bool {
			signal()
			select {
			case line := <-f.lines:
				return strings.Contains(line, "signal")
			default:
				return false
			}
		})
		r.docker("service", "scale", "--detach", "web=3")
		r.running("web", 3)
		if list := f.until("to stderr"); len(list) < 4 {
			t.Errorf("of a task that came later: %q", list)
		}
		r.node.Kill()
		r.node.Up()
		roottest.Eventually(t, "the agent has a session again", func() bool { return r.session() == "up" })
		all := r.followLogs("--raw", one)
		past := all.until("to stderr") // it comes by another pipe than the lines of the standard output
		for _, pid := range r.node.Processes("keeper") {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		signal()
		if !slices.ContainsFunc(past, func(l string) bool { return strings.Contains(l, "signal 1") }) {
			all.until("signal 1") // and none of the others is missing
		}
		last := strings.TrimSpace(both("--raw", "--tail", "1", one))
		all.until(last)
		all.end()
		f.end()

		r.create("mute", r.ref, "--log-driver", "none", "--", "sh", "-c", "echo words; sleep 1000")
		r.running("mute", 1)
		if out := both("--raw", "mute"); !strings.Contains(out, "its log driver is none") || strings.Contains(out, "words") {
			t.Errorf("of what is not kept: %q", out)
		}
		r.create("loud", r.ref, "--log-opt", "max-size=1m", "--log-opt", "max-file=2", "--", "sh", "-c", "i=0; while [ $i -lt 60 ]; do head -c 100000 /dev/zero | tr '\\0' x | fold -w 1000; echo; echo mark $i; i=$((i+1)); done; sleep 1000")
		loud := r.followLogs("--raw", "loud")
		loud.until("mark 59")
		loud.end()
		for _, name := range []string{"web", "mute", "loud"} {
			r.docker("service", "rm", name)
		}
		r.none()
		r.node.Check()
	})
}
