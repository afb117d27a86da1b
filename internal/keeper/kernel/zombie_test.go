package kernel_test

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
)

// TestZombieStatus: it is the status that its parent gets, from the end until the reaping.
func TestZombieStatus(t *testing.T) {
	for _, tt := range []struct {
		what, script string
		signal       syscall.Signal
	}{
		{"exits", "read x; exit 7", 0},
		{"succeeds", "read x; exit 0", 0},
		{"is killed", "read x", unix.SIGKILL},
		{"is asked to end", "read x", unix.SIGTERM},
		{"has a name like a stat line", "printf '%s' 'x) Z 1 (' >/proc/self/comm; read x; exit 9", 0},
	} {
		t.Run(tt.what, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = w.Close() }()
			fd := -1
			pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", tt.script}, &syscall.ProcAttr{
				Files: []uintptr{r.Fd(), 1, 2}, Sys: &syscall.SysProcAttr{PidFD: &fd},
			})
			_ = r.Close()
			if err != nil || fd < 0 {
				t.Fatal(fd, err)
			}
			defer func() { _ = unix.Close(fd) }()
			if w, ok := kernel.ZombieStatus(pid, fd); ok {
				t.Errorf("%#x while it runs", w)
			}
			if tt.signal != 0 {
				err = unix.Kill(pid, tt.signal)
			} else {
				_, err = w.WriteString("\n")
			}
			if err != nil {
				t.Fatal(err)
			}
			for err = unix.EINTR; errors.Is(err, unix.EINTR); {
				_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			}
			if err != nil {
				t.Fatal(err)
			}
			got, ok := kernel.ZombieStatus(pid, fd)
			if !ok {
				t.Error("no status of a zombie")
			}
			if parent := kernel.Parent(pid); parent != os.Getpid() {
				t.Errorf("parent %d", parent)
			}
			var want unix.WaitStatus
			if _, err := unix.Wait4(pid, &want, 0, nil); err != nil {
				t.Fatal(err)
			}
			if got != want {
				t.Errorf("status %#x, its parent has %#x", got, want)
			}
			if w, ok := kernel.ZombieStatus(pid, fd); ok {
				t.Errorf("%#x after the reaping", w)
			}
			if hup := kernel.Revents(fd, unix.POLLIN)&unix.POLLHUP != 0; hup != kernel.PidfdHangsUp() {
				t.Errorf("the pidfd of a reaped process hangs up: %t", hup)
			}
		})
	}
}
