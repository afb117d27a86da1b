package fork_test

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/fork"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// blob is a plan in a file, as the keeper receives it.
func blob(t *testing.T, b *plan.Builder) int {
	t.Helper()
	fd, err := unix.MemfdCreate("plan", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if _, err := unix.Write(fd, b.Encode()); err != nil {
		t.Fatal(err)
	}
	return fd
}

func launcher(t *testing.T) (*fork.Launcher, *uint32) {
	t.Helper()
	words, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	l, err := fork.NewLauncher(words)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		_, _ = unix.Wait4(l.Pid(), nil, 0, nil)
		_ = unix.Munmap(words)
	})
	return l, (*uint32)(unsafe.Pointer(&words[0]))
}

func TestALaunchersChildrenAreOurs(t *testing.T) {
	l, words := launcher(t)
	for i := range 20 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		b := &plan.Builder{}
		b.Add("stdout", unix.SYS_DUP3, plan.S(plan.SlotStdout), plan.V(1), plan.V(0))
		execve(b, "/bin/sh", "-c", "echo $A $PPID; exit "+strconv.Itoa(i))
		p, f := place(t, b), none()
		f.Stdout, f.Progress = int(w.Fd()), words
		c, err := l.Start(p, blob(t, b), f)
		if err != nil {
			t.Fatal(err)
		}
		_ = w.Close()
		if err := c.Outcome(p); err != nil {
			t.Fatal(err)
		}
		out, err := io.ReadAll(r)
		if ws := wait(t, c); ws.ExitStatus() != i || string(out) != "b "+strconv.Itoa(os.Getpid())+"\n" || err != nil {
			t.Errorf("status %d, output %q, %v", ws.ExitStatus(), out, err)
		}
		_ = r.Close()
	}
}

func TestALauncherHasNothingOfOurs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may look into a process that is not dumpable")
	}
	l, _ := launcher(t)
	// It answers, so it has begun.
	b := &plan.Builder{}
	b.Add("chdir to the moon", unix.SYS_CHDIR, plan.P(b.String("/nonexistent")))
	p := place(t, b)
	c, err := l.Start(p, blob(t, b), none())
	if err != nil {
		t.Fatal(err)
	}
	var f *fork.FailedError
	if err := c.Outcome(p); !errors.As(err, &f) || f.Name != "chdir to the moon" || f.Errno != unix.ENOENT {
		t.Errorf("outcome %v", err)
	}
	if ws := wait(t, c); ws.ExitStatus() != 127 {
		t.Errorf("%v", ws)
	}
	dir := "/proc/" + strconv.Itoa(l.Pid())
	fds, err := os.ReadDir(dir + "/fd")
	if err != nil || len(fds) != 4 {
		t.Errorf("%d descriptors, %v: want the standard ones and its socket", len(fds), err)
	}
	tasks, err := os.ReadDir(dir + "/task")
	if err != nil || len(tasks) != 1 {
		t.Errorf("%d threads, %v", len(tasks), err)
	}
	if fork.KeepsMemory {
		return
	}
	maps, err := os.ReadFile(dir + "/maps")
	if err != nil {
		t.Fatal(err)
	}
	writable := 0
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "[heap]") || strings.Contains(line, "[stack]") {
			t.Errorf("it has %s", line)
		}
		if strings.Contains(line, " rw-") {
			writable++
		}
	}
	if writable > 2 { // its stack, and the memory shared with us
		t.Errorf("%d writable mappings:\n%s", writable, maps)
	}
}

func TestALauncherThatHasEndedIsSaid(t *testing.T) {
	l, _ := launcher(t)
	if err := unix.Kill(l.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b := &plan.Builder{}
	execve(b, "/bin/true")
	for range 2 {
		if _, err := l.Start(place(t, b), blob(t, b), none()); !errors.Is(err, fork.ErrNoLauncher) {
			t.Errorf("%v", err)
		}
	}
	if l.Ready() {
		t.Error("it is ready")
	}
}

// TestALauncherEndsWithItsSocket, by Close.
func TestALauncherEndsWithItsSocket(t *testing.T) {
	l, err := fork.NewLauncher(nil)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := unix.Wait4(l.Pid(), nil, 0, nil); err != nil {
		t.Error(err)
	}
}

// TestASecondChildCannotNameAnother: a child's report of its second child's pid does not count, and
// it can have only one.
func TestASecondChildCannotNameAnother(t *testing.T) {
	l, words := launcher(t)
	b := &plan.Builder{}
	lie := b.Words(plan.StepForked | uint64(os.Getppid())<<32)
	b.AddFork("second", unix.CLONE_PARENT, 0, 0)
	b.Add("lie", unix.SYS_WRITE, plan.S(plan.SlotError), plan.P(lie), plan.V(8)).Result(8)
	b.Add("wait", unix.SYS_READ, plan.S(plan.SlotGo), plan.P(b.Words(0)), plan.V(1)).Result(1)
	execve(b, "/bin/true")
	p, f := place(t, b), none()
	f.Progress = words
	c, err := l.Start(p, blob(t, b), f)
	if err != nil {
		t.Fatal(err)
	}
	first := c.Pid
	err = c.Outcome(p)
	if !errors.Is(err, fork.ErrDied) || c.Pid == first || c.Pid == os.Getppid() {
		t.Errorf("outcome %v; pid %d, first %d, lie %d", err, c.Pid, first, os.Getppid())
	}
	_ = unix.PidfdSendSignal(c.PidFD, unix.SIGKILL, nil, 0)
	wait(t, c)
	_, _ = unix.Wait4(first, nil, 0, nil)
}
