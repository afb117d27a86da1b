package stats_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/stats"
)

// TestZombies ends a child and does not wait for it.
func TestZombies(t *testing.T) {
	child := exec.CommandContext(t.Context(), "sh", "-c", "exit 0")
	child.Stdin = strings.NewReader("")
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	// Its end closes the pipe shortly before it is a zombie; waitid tells of it without reaping it.
	_, _ = io.Copy(io.Discard, out)
	waitUnreaped(t, child.Process.Pid)
	found := false
	for _, p := range stats.Zombies(t.Context(), map[int]bool{os.Getpid(): true}) {
		if p.Pid == child.Process.Pid {
			found = p.Comm == "sh"+stats.Defunct
		}
	}
	if !found {
		t.Error("the child that nobody waited for is not shown")
	}
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, p := range stats.Zombies(t.Context(), map[int]bool{os.Getpid(): true}) {
		if p.Pid == child.Process.Pid {
			t.Error("it was waited for, and is shown")
		}
	}
}

// waitUnreaped waits until a child of ours has ended, and leaves it a zombie.
func waitUnreaped(t *testing.T, pid int) {
	t.Helper()
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
}
