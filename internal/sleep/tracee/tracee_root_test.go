package tracee_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
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
