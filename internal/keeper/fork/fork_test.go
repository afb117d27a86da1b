package fork_test

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/fork"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// place maps a plan as the keeper does, into private memory outside the heap.
func place(t *testing.T, b *plan.Builder) plan.Placed {
	t.Helper()
	blob := b.Encode()
	mem, err := unix.Mmap(-1, 0, len(blob), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	copy(mem, blob)
	p, err := plan.Place(mem)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func none() fork.Files {
	return fork.Files{Stdin: -1, Stdout: -1, Stderr: -1, Park: -1, Console: -1, Target: -1}
}

func wait(t *testing.T, c fork.Child) unix.WaitStatus {
	t.Helper()
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(c.Pid, &ws, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(c.PidFD)
		return ws
	}
}

func execve(b *plan.Builder, args ...string) {
	b.Add("execve", unix.SYS_EXECVE, plan.P(b.String(args[0])), plan.P(b.Strings(args)), plan.P(b.Strings([]string{"A=b"})))
}

func TestTheChildRunsItsProgram(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	b := &plan.Builder{}
	b.Add("stdout", unix.SYS_DUP3, plan.S(plan.SlotStdout), plan.V(1), plan.V(0))
	execve(b, "/bin/sh", "-c", "echo $A; exit 7")
	p := place(t, b)
	f := none()
	f.Stdout = int(w.Fd())
	c, err := fork.Start(p, f)
	if err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if err := c.Outcome(p); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if ws := wait(t, c); ws.ExitStatus() != 7 || string(out) != "b\n" || err != nil {
		t.Errorf("status %d, output %q, %v", ws.ExitStatus(), out, err)
	}
}

func TestTheFirstFailureIsNamed(t *testing.T) {
	b := &plan.Builder{}
	b.Add("fine", unix.SYS_GETPID)
	b.Add("not there, and that is fine", unix.SYS_CHDIR, plan.P(b.String("/nonexistent"))).Allow(uint16(unix.ENOENT))
	b.Add("chdir to the moon", unix.SYS_CHDIR, plan.P(b.String("/nonexistent")))
	execve(b, "/bin/true")
	p := place(t, b)
	c, err := fork.Start(p, none())
	if err != nil {
		t.Fatal(err)
	}
	var f *fork.FailedError
	if err := c.Outcome(p); !errors.As(err, &f) || f.Step != 2 || f.Errno != unix.ENOENT || f.Name != "chdir to the moon" || f.Exec {
		t.Errorf("outcome %v", err)
	}
	if ws := wait(t, c); ws.ExitStatus() != 127 {
		t.Errorf("status %d", ws.ExitStatus())
	}
}

func TestTryPassesOver(t *testing.T) {
	b := &plan.Builder{}
	i := b.Len()
	b.Add("try", unix.SYS_CHDIR, plan.P(b.String("/nonexistent"))).Allow(uint16(unix.ENOENT)).Kind = plan.Try
	b.Add("never", unix.SYS_CHDIR, plan.P(b.String("/nonexistent either")))
	b.Over(i)
	execve(b, "/bin/true")
	p := place(t, b)
	c, err := fork.Start(p, none())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Outcome(p); err != nil {
		t.Error(err)
	}
	if ws := wait(t, c); ws.ExitStatus() != 0 {
		t.Errorf("status %d", ws.ExitStatus())
	}
}

func TestAParkedChildWaitsAndGivesUpAlone(t *testing.T) {
	for _, goOn := range []bool{true, false} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		b := &plan.Builder{}
		b.Add("park", unix.SYS_READ, plan.S(plan.SlotPark), plan.P(b.Words(0)), plan.V(1)).Result(1)
		execve(b, "/bin/true")
		p := place(t, b)
		f := none()
		f.Park = int(r.Fd())
		// The child must not hold the write end: in the keeper it is closed
		// by the plan's close_range, here by its number.
		c, err := fork.Start(p, f)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Waitid(unix.P_PID, c.Pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != nil {
			t.Fatal(err)
		}
		if goOn {
			if _, err := w.Write([]byte{1}); err != nil {
				t.Fatal(err)
			}
		} else if err := unix.PidfdSendSignal(c.PidFD, unix.SIGKILL, nil, 0); err != nil {
			t.Fatal(err)
		}
		_ = c.Outcome(p)
		ws := wait(t, c)
		if goOn && ws.ExitStatus() != 0 || !goOn && ws.Signal() != unix.SIGKILL {
			t.Errorf("go on %v: %v", goOn, ws)
		}
		_, _ = r.Close(), w.Close()
	}
}

func TestACrashedChildHarmsNobody(t *testing.T) {
	b := &plan.Builder{}
	pid := b.NewSlot()
	b.Add("getpid", unix.SYS_GETPID).To(pid)
	b.Add("kill", unix.SYS_KILL, plan.S(pid), plan.V(int(unix.SIGSEGV)))
	p := place(t, b)
	c, err := fork.Start(p, none())
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Outcome(p)
	if ws := wait(t, c); ws.Signal() != unix.SIGSEGV {
		t.Errorf("%v", ws)
	}
}

func TestStoreWritesASlotIntoThePlan(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	b := &plan.Builder{}
	pid, at := b.NewSlot(), b.Words(0)
	b.Add("getpid", unix.SYS_GETPID).To(pid)
	b.AddStore("keep", pid, at)
	b.Add("tell", unix.SYS_WRITE, plan.S(plan.SlotStdout), plan.P(at), plan.V(4)).Result(4)
	execve(b, "/bin/true")
	p := place(t, b)
	f := none()
	f.Stdout = int(w.Fd())
	c, err := fork.Start(p, f)
	if err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	buf := make([]byte, 4)
	if _, err := io.ReadFull(r, buf); err != nil {
		t.Fatal(err)
	}
	if got := int(buf[0]) | int(buf[1])<<8 | int(buf[2])<<16; got != c.Pid {
		t.Errorf("told pid %d, is %d", got, c.Pid)
	}
	_ = c.Outcome(p)
	wait(t, c)
}

// TestManyChildrenUnderLoad starts children while goroutines allocate, so
// that the collector and its signals run all the time.
func TestManyChildrenUnderLoad(t *testing.T) {
	stop := make(chan struct{})
	defer close(stop)
	for range 2 {
		go func() {
			var keep []string
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					keep = append(keep, strings.Repeat("x", i%4096)+strconv.Itoa(i))
					if len(keep) > 1000 {
						keep = nil
					}
				}
			}
		}()
	}
	b := &plan.Builder{}
	execve(b, "/bin/true")
	for range 200 {
		p := place(t, b)
		c, err := fork.Start(p, none())
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Outcome(p); err != nil {
			t.Fatal(err)
		}
		if ws := wait(t, c); ws.ExitStatus() != 0 {
			t.Fatalf("status %v", ws)
		}
	}
}
