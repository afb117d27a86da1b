package subprocess_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/subprocess"
)

// leaves prints and ends, and leaves a process that holds its output. The process's number is in
// the file.
func leaves(file, with string) []string {
	return []string{"-c", "echo answer; " + with + " sh -c 'echo $$ >" + file + ".part; mv " + file + ".part " + file + "; exec sleep 600' & while ! [ -e " + file + " ]; do :; done"}
}

func pidIn(t *testing.T, file string) int {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
	return pid
}

func runs(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(b), ") Z ")
}

func TestOSExecAloneWaitsForTheProcessLeftBehind(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	cmd := exec.CommandContext(t.Context(), "sh", leaves(file, "")...)
	out := &subprocess.Head{Max: 100}
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	roottest.Eventually(t, "the program's end", func() bool { _, err := os.Stat(file); return err == nil })
	pid := pidIn(t, file)
	select {
	case <-ended:
		t.Error("it has ended: the other tests see no fault")
	case <-time.After(2 * time.Second):
	}
	_ = unix.Kill(pid, unix.SIGKILL)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestRunKillsWhatTheProgramLeaves(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	out := &subprocess.Head{Max: 100}
	cmd := subprocess.Command(t.Context(), "sh", leaves(file, "")...)
	cmd.Stdout = out
	start := time.Now()
	if err := subprocess.Run(t.Context(), cmd); err != nil || out.Line() != "answer" {
		t.Errorf("%v, output %q", err, out.Line())
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	pid := pidIn(t, file)
	roottest.Eventually(t, "the end of the process left behind", func() bool { return !runs(pid) })
}

func TestAProcessInAnotherSessionHoldsNobodyUp(t *testing.T) {
	for name, run := range map[string]func(context.Context, *exec.Cmd) error{"Run": subprocess.Run, "RunLeaving": subprocess.RunLeaving} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pid")
			out := &subprocess.Head{Max: 100}
			cmd := subprocess.Command(t.Context(), "sh", leaves(file, "setsid")...)
			cmd.Stdout = out
			if err := run(t.Context(), cmd); err != nil || out.Line() != "answer" {
				t.Errorf("%v, output %q", err, out.Line())
			}
			if !runs(pidIn(t, file)) {
				t.Error("a process in a session of its own was killed")
			}
		})
	}
}

func TestRunLeavingKillsNothingAfterASuccess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	if err := subprocess.RunLeaving(t.Context(), subprocess.Command(t.Context(), "sh", leaves(file, "")...)); err != nil {
		t.Error(err)
	}
	if !runs(pidIn(t, file)) {
		t.Error("what it left was killed")
	}
}

func TestTheEndOfTheContextKillsTheGroup(t *testing.T) {
	for name, run := range map[string]func(context.Context, *exec.Cmd) error{"Run": subprocess.Run, "RunLeaving": subprocess.RunLeaving} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pid")
			cause := errors.New("given up")
			ctx, cancel := context.WithCancelCause(t.Context())
			cmd := subprocess.Command(ctx, "sh", append(leaves(file, "")[:1], leaves(file, "")[1]+"; sleep 600")...)
			cmd.Stdout = &subprocess.Head{Max: 100}
			done := make(chan error, 1)
			go func() { done <- run(ctx, cmd) }()
			roottest.Eventually(t, "the child", func() bool { _, err := os.Stat(file); return err == nil })
			pid := pidIn(t, file)
			if !runs(pid) {
				t.Fatal("the child does not run")
			}
			cancel(cause)
			if err := <-done; !errors.Is(err, cause) {
				t.Errorf("error %v", err)
			}
			roottest.Eventually(t, "the end of the child", func() bool { return !runs(pid) })
		})
	}
}

func TestAFailureIsReturnedAsItIs(t *testing.T) {
	err := subprocess.Run(t.Context(), subprocess.Command(t.Context(), "sh", "-c", "exit 7"))
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("%v", err)
	}
	if err := subprocess.Run(t.Context(), subprocess.Command(t.Context(), "/nonexistent/program")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("before")
	cancel(cause)
	if err := subprocess.Run(ctx, subprocess.Command(ctx, "true")); !errors.Is(err, cause) {
		t.Errorf("%v", err)
	}
}

func TestHeadKeepsTheBeginning(t *testing.T) {
	h := &subprocess.Head{Max: 8}
	for _, s := range []string{"ab\x1b", "cde\n", "fgh"} {
		if n, err := h.Write([]byte(s)); n != len(s) || err != nil {
			t.Error(n, err)
		}
	}
	if h.String() != "ab\x1bcde\nf" || !h.Truncated() || h.Line() != "ab?cde" {
		t.Errorf("%q, truncated %v, line %q", h, h.Truncated(), h.Line())
	}
}
