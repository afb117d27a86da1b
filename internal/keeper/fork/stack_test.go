package fork_test

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/fork"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// TestPidfdsSurviveAMovedStack: the kernel writes a pidfd to an address, and the
// collector may move the stack of the goroutine that waits for its turn to clone.
func TestPidfdsSurviveAMovedStack(t *testing.T) {
	b := &plan.Builder{}
	execve(b, "/bin/true")
	p := place(t, b)
	t.Run("child", func(t *testing.T) {
		var c fork.Child
		var err error
		whileItsStackMoves(t, func() { c, err = fork.Start(p, none()) })
		if err != nil {
			t.Fatal(err)
		}
		isPidfd(t, c.PidFD, c.Pid)
		if err := c.Outcome(p); err != nil {
			t.Error(err)
		}
		wait(t, c)
	})
	t.Run("launcher", func(t *testing.T) {
		var l *fork.Launcher
		var err error
		whileItsStackMoves(t, func() { l, err = fork.NewLauncher(nil) })
		if err != nil {
			t.Fatal(err)
		}
		isPidfd(t, l.PidFD(), l.Pid())
		l.Close()
		if _, err := unix.Wait4(l.Pid(), nil, 0, nil); err != nil {
			t.Error(err)
		}
	})
}

// whileItsStackMoves calls clone, holds it before the system call, and has the
// collector shrink its stack, which was large before.
func whileItsStackMoves(t *testing.T, clone func()) {
	t.Helper()
	syscall.ForkLock.RLock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		growStack(200)
		clone()
	}()
	dump := make([]byte, 1<<20)
	roottest.Eventually(t, "the clone waits for the lock", func() bool {
		text := dump[:runtime.Stack(dump, true)]
		return bytes.Contains(text, []byte("fork.(*region).start")) && bytes.Contains(text, []byte("RWMutex.Lock"))
	})
	for range 6 {
		runtime.GC() // halves the stack each time
	}
	syscall.ForkLock.RUnlock()
	<-done
}

// growStack needs depth frames of a kilobyte.
//
//go:noinline
func growStack(depth int) byte {
	var room [1024]byte
	if depth > 0 {
		room[depth%len(room)] = growStack(depth - 1)
	}
	return room[0]
}

func isPidfd(t *testing.T, fd, pid int) {
	t.Helper()
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		t.Error(err)
	}
	if !strings.Contains(string(info), fmt.Sprintf("\nPid:\t%d\n", pid)) {
		t.Errorf("descriptor %d is not the pidfd of %d:\n%s", fd, pid, info)
	}
}
