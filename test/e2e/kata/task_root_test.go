package kata

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

const shimV2 = "io.containerd.kata.v2"

// ends checks that a machine's agent refused nothing, and saves its calls.
func (r *rig) ends(t *testing.T, id string) *machine {
	t.Helper()
	m := r.machine(id)
	if m == nil {
		t.Fatalf("there was no machine %s", id)
	}
	for _, refused := range m.refused() {
		t.Errorf("%s: the agent refused %s", id, refused)
	}
	m.save(t, strings.ReplaceAll(t.Name(), "/", "_"))
	return m
}

// TestContainersOfContainerd: containerd's own client runs, feeds, reads, stops and deletes one
// container.
func TestContainersOfContainerd(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t)
		t.Run("run", func(t *testing.T) {
			got := r.tryCtr(t, "hello\n", "run", "--rm", "--runtime", shimV2, busybox, "c1", "sh", "-c", "read line; echo out $line; echo err >&2; exit 42")
			if got.code != 42 || got.out != "out hello\n" || !strings.Contains(got.err, "err\n") {
				t.Errorf("ended with %d, output %q and %q", got.code, got.out, got.err)
			}
			r.ends(t, "c1")
		})
		t.Run("input to its end", func(t *testing.T) { input(t, r) })
		t.Run("output to its end", func(t *testing.T) {
			got := r.tryCtr(t, "", "run", "--rm", "--runtime", shimV2, busybox, "c3", "sh", "-c", "seq 1 100000; sleep 1000 & exit 0")
			if got.code != 0 || len(got.out) != 588895 || !strings.HasSuffix(got.out, "\n100000\n") {
				t.Errorf("ended with %d, %d bytes of output that end with %q; %q", got.code, len(got.out), got.out[max(0, len(got.out)-20):], got.err)
			}
			r.ends(t, "c3")
		})
		t.Run("a terminal", func(t *testing.T) {
			command := "stty rows 33 cols 77; exec " + r.ctrPath + " -a " + r.socket + " run --rm -t --runtime " + shimV2 + " " + busybox + " c4 sh -c 'tty; read line; until stty size 2>&1 | grep \" 77$\"; do sleep 1; done; echo got $line; exit 5'"
			got := r.try(t, "hello\n", "script", "-qec", command, "/dev/null")
			if got.code != 5 || !strings.Contains(got.out, "/dev/pts/0") || !strings.Contains(got.out, "33 77") || !strings.Contains(got.out, "got hello") {
				t.Errorf("ended with %d, output %q and %q", got.code, got.out, got.err)
			}
			if m := r.ends(t, "c4"); !m.has("TtyWinResize") {
				t.Error("the size was not told")
			}
		})
		t.Run("a volume", func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir+"/file", "from the host\n")
			got := r.tryCtr(t, "", "run", "--rm", "--runtime", shimV2, "--mount", "type=bind,src="+dir+",dst=/mnt,options=rbind:ro", busybox, "c5", "sh", "-c", "cat /mnt/file; echo x >/mnt/file || exit 6")
			if got.code != 6 || got.out != "from the host\n" {
				t.Errorf("ended with %d, output %q and %q", got.code, got.out, got.err)
			}
			if m := r.ends(t, "c5"); !m.has("CopyFile") {
				t.Error("nothing was copied")
			}
		})
		t.Run("a task", func(t *testing.T) { task(t, r) })
		for i, sig := range []struct {
			name, script string
			want         int
		}{
			{"SIGKILL", "sleep 1000", 137},
			{"SIGTERM", "exec sleep 1000", 137}, // the first process does not heed it
			{"SIGTERM", "trap 'exit 7' TERM; while :; do sleep 1; done", 7},
		} {
			t.Run("ended by "+sig.name, func(t *testing.T) {
				id := fmt.Sprintf("k%d", i)
				r.ctr(t, "", "run", "-d", "--runtime", shimV2, busybox, id, "sh", "-c", "echo >/ready; "+sig.script)
				nodetest.Eventually(t, "it runs", func() bool {
					return r.tryCtr(t, "", "task", "exec", "--exec-id", "ready", id, "ls", "/ready").code == 0
				})
				r.ctr(t, "", "task", "kill", "-s", sig.name, id)
				if got := r.deleted(t, id); got != sig.want {
					t.Errorf("ended with %d, want %d", got, sig.want)
				}
				r.ends(t, id)
			})
		}
	})
}

// deleted waits for a task's end, deletes it with its container, and returns its code, which
// ctr tells in words.
func (r *rig) deleted(t *testing.T, id string) (code int) {
	t.Helper()
	nodetest.Eventually(t, "the task stops", func() bool { return strings.Contains(r.state(t, id), "STOPPED") })
	said := r.tryCtr(t, "", "task", "delete", id).err
	if _, after, ok := strings.Cut(said, "non-zero exit code "); ok {
		if _, err := fmt.Sscan(after, &code); err != nil {
			t.Fatalf("task delete said %q", said)
		}
	}
	r.ctr(t, "", "container", "delete", id)
	return code
}

// input gives a container all that it wants to read, and the end. ctr itself waits for the
// shim there, and the shim for ctr, until the first ctr is killed.
func input(t *testing.T, r *rig) {
	t.Helper()
	const size = 640_000
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	defer cancel()
	background := func(stdin string, args ...string) (kill func()) {
		cmd := exec.CommandContext(ctx, r.ctrPath, append([]string{"-a", r.socket}, args...)...)
		cmd.Env, cmd.Stdin = r.env, strings.NewReader(stdin)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // killed
		}
	}
	kill := background(strings.Repeat("0123456789abcdef", size/16), "run", "--runtime", shimV2, busybox, "c2", "sh", "-c", "wc -c >/count; exec sleep 1000")
	nodetest.Eventually(t, "all input is written", func() bool {
		n, m := 0, r.machine("c2")
		if m == nil {
			return false
		}
		for _, c := range m.named("WriteStdin") {
			n += len(c.req.(*katav1.WriteStreamRequest).GetData())
		}
		return n == size
	})
	kill()
	// If the first ctr had not told the end yet, this one does.
	kill = background("", "task", "attach", "c2")
	nodetest.Eventually(t, "the end is told", func() bool { return r.machine("c2").has("CloseStdin") })
	kill()
	nodetest.Eventually(t, "the input is counted", func() bool {
		return strings.TrimSpace(r.tryCtr(t, "", "task", "exec", "--exec-id", "count", "c2", "cat", "/count").out) == strconv.Itoa(size)
	})
	r.ctr(t, "", "task", "kill", "-s", "SIGKILL", "c2")
	if got := r.deleted(t, "c2"); got != 137 {
		t.Errorf("ended with %d", got)
	}
	r.ends(t, "c2")
}

// state is the line of a task in the list.
func (r *rig) state(t *testing.T, id string) string {
	t.Helper()
	for line := range strings.Lines(r.ctr(t, "", "task", "ls")) {
		if name, rest, _ := strings.Cut(line, " "); name == id {
			return rest
		}
	}
	return ""
}

// task is the life of a container that runs.
func task(t *testing.T, r *rig) {
	t.Helper()
	r.ctr(t, "", "run", "-d", "--runtime", shimV2, "--memory-limit", "67108864", busybox, "t1", "sh", "-c", "echo begun; sleep 1000")
	t.Run("exec", func(t *testing.T) {
		got := r.tryCtr(t, "to it", "task", "exec", "--exec-id", "e1", "t1", "sh", "-c", "head -c 5; echo err >&2; exit 3")
		if got.code != 3 || got.out != "to it" || !strings.Contains(got.err, "err\n") {
			t.Errorf("ended with %d, output %q and %q", got.code, got.out, got.err)
		}
	})
	t.Run("exec on a terminal", func(t *testing.T) {
		command := "stty rows 20 cols 60; exec " + r.ctrPath + " -a " + r.socket + " task exec -t --exec-id e2 t1 sh -c 'read line; until stty size 2>&1 | grep \" 60$\"; do sleep 1; done; echo got $line; exit 4'"
		got := r.try(t, "hello\n", "script", "-qec", command, "/dev/null")
		if got.code != 4 || !strings.Contains(got.out, "20 60") || !strings.Contains(got.out, "got hello") {
			t.Errorf("ended with %d, output %q and %q", got.code, got.out, got.err)
		}
	})
	for name, want := range map[string]int{"SIGTERM": 143, "SIGKILL": 137} {
		t.Run("an exec ended by "+name, func(t *testing.T) {
			id := "kill-" + strings.ToLower(name)
			ended := make(chan int, 1)
			go func() {
				ended <- r.tryCtr(t, "", "task", "exec", "--exec-id", id, "t1", "sh", "-c", "echo >/"+id+"; exec sleep 1000").code
			}()
			nodetest.Eventually(t, "it runs", func() bool {
				return r.tryCtr(t, "", "task", "exec", "--exec-id", "look", "t1", "ls", "/"+id).code == 0
			})
			r.ctr(t, "", "task", "kill", "-s", name, "--exec-id", id, "t1")
			if got := <-ended; got != want {
				t.Errorf("ended with %d, want %d", got, want)
			}
		})
	}
	t.Run("metrics", func(t *testing.T) {
		if out := r.ctr(t, "", "task", "metrics", "t1"); !strings.Contains(out, "memory") || !strings.Contains(out, "cpu") {
			t.Errorf("the metrics are\n%s", out)
		}
		for _, c := range r.machine("t1").named("StatsContainer") {
			st := c.answer.(*katav1.StatsContainerResponse).GetCgroupStats()
			if st.GetMemoryStats().GetUsage().GetLimit() != 67108864 || st.GetMemoryStats().GetUsage().GetUsage() == 0 || st.GetCpuStats().GetCpuUsage().GetTotalUsage() == 0 || st.GetPidsStats().GetCurrent() == 0 {
				t.Errorf("the agent told %v", st)
			}
		}
	})
	t.Run("pause and resume", func(t *testing.T) {
		r.ctr(t, "", "task", "pause", "t1")
		if got := r.state(t, "t1"); !strings.Contains(got, "PAUSED") {
			t.Errorf("paused, it is %q", got)
		}
		r.ctr(t, "", "task", "resume", "t1")
		if got := r.state(t, "t1"); !strings.Contains(got, "RUNNING") {
			t.Errorf("resumed, it is %q", got)
		}
	})
	r.ctr(t, "", "task", "kill", "-s", "SIGKILL", "t1")
	if got := r.deleted(t, "t1"); got != 137 {
		t.Errorf("ended with %d, want 137", got)
	}
	r.ends(t, "t1")
}
