package tracee_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/sleep/sleeptest"
	"github.com/longshore/longshore/internal/sleep/tracee"
)

// TestMain lets the test binary be the traced program.
func TestMain(m *testing.M) {
	if sleeptest.Main(os.Args) {
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestAProcessIsKilledInACall: the first process of a pid namespace, with several threads, is killed while it makes a call. The call
// fails, and the process ends.
func TestAProcessIsKilledInACall(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		runtime.LockOSThread() // which traces
		defer runtime.UnlockOSThread()
		cmd := exec.CommandContext(t.Context(), os.Args[0], sleeptest.WorkArg, "127.0.0.1:0", "4")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err == nil {
			_, err = bufio.NewReader(out).ReadString('\n')
		}
		if err != nil {
			t.Fatal(err)
		}
		pid := cmd.Process.Pid
		g, err := tracee.Seize([]int{pid})
		if err == nil {
			err = g.Await(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			roottest.Eventually(t, "it is in the call", func() bool {
				tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
				for _, task := range tasks {
					b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/syscall", pid, task.Name()))
					if strings.HasPrefix(string(b), fmt.Sprint(unix.SYS_PPOLL, " 0x0 ")) {
						return true
					}
				}
				return false
			})
			_ = unix.Kill(pid, unix.SIGKILL)
		}()
		err = g.Processes[0].Calls(func(call tracee.Call) error {
			_, err := call(unix.SYS_PPOLL, 0, 0, 0, 0, 0)
			return err
		})
		if !errors.Is(err, unix.ESRCH) {
			t.Errorf("the call: %v", err)
		}
		g.Release()
		// The process ends. If the thread that made the call was the last one, the tracer has waited for the process.
		var exit *exec.ExitError
		err = cmd.Wait()
		if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL || exit == nil && !errors.Is(err, unix.ECHILD) { //nolint:forcetypeassert // on Linux
			t.Errorf("its end: %v", err)
		}
	})
}

// TestAParentInVforkStops: a parent waits in the kernel until its child executes a program. The child, which was stopped before, continues
// until then.
func TestAParentInVforkStops(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	roottest.Run(t, func(t *testing.T) {
		runtime.LockOSThread() // which traces
		defer runtime.UnlockOSThread()
		fifo := filepath.Join(t.TempDir(), "fifo")
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		// The child opens the FIFO before it executes cat, and waits for a writer.
		cmd := exec.CommandContext(t.Context(), python, "-c", `import os, sys
os.posix_spawn("/bin/cat", ["cat"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
os.wait()`, fifo)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		parent, child := cmd.Process.Pid, 0
		roottest.Eventually(t, "the child waits for a writer", func() bool {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", parent, parent))
			child, _ = strconv.Atoi(strings.TrimSpace(string(b)))
			call, _ := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", child))
			return child > 0 && strings.HasPrefix(string(call), fmt.Sprint(unix.SYS_OPENAT, " "))
		})
		g, err := tracee.Seize([]int{parent, child})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Release()
		w, err := os.OpenFile(fifo, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
		defer cancel()
		if err := g.Await(ctx); err != nil {
			t.Fatal(err)
		}
		if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", child)); err != nil || string(comm) != "cat\n" {
			t.Errorf("the child is %q, %v", comm, err)
		}
		g.Release()
		if _, err := w.WriteString("x"); err != nil {
			t.Fatal(err)
		}
		_ = w.Close() // the child ends
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
}
