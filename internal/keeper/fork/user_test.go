package fork_test

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/fork"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// TestNamespacesBelongToTheirUserNamespace needs no program and leaves no child.
func TestNamespacesBelongToTheirUserNamespace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	ids := plan.IDMap{{Inside: 0, Outside: 300000, Size: 1000}}
	fds, err := fork.Namespaces(unix.CLONE_NEWNET|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS, ids, ids, "user", "net", "ipc", "uts")
	if err != nil {
		t.Fatal(err)
	}
	const getUserns = 0xb701 // NS_GET_USERNS
	var user unix.Stat_t
	if err := unix.Fstat(fds[0], &user); err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds[1:] {
		owner, err := unix.IoctlRetInt(fd, getUserns)
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(owner, &st); err != nil || st.Ino != user.Ino {
			t.Errorf("the owner is %d, %v, want %d", st.Ino, err, user.Ino)
		}
		_ = unix.Close(owner)
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	if _, err := unix.Wait4(-1, nil, unix.WALL|unix.WNOHANG, nil); !errors.Is(err, unix.ECHILD) {
		t.Errorf("a child is left: %v", err)
	}
	if _, err := fork.Namespaces(0, ids, nil, "user"); !errors.Is(err, plan.ErrMapping) {
		t.Errorf("no mapping: %v", err)
	}
}

// TestThePlanGoesOnInItsSecondChild, which is the Child then.
func TestThePlanGoesOnInItsSecondChild(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	b := &plan.Builder{}
	ids := plan.IDMap{{Inside: 0, Outside: 300000, Size: 1000}}
	slot := b.User(ids, ids)
	b.Add("join", unix.SYS_SETNS, plan.S(slot), plan.V(unix.CLONE_NEWUSER))
	b.AddFork("second", unix.CLONE_NEWPID|unix.CLONE_PARENT, 0, 0)
	b.Add("wait", unix.SYS_READ, plan.S(plan.SlotGo), plan.P(b.Words(0)), plan.V(1)).Result(1)
	b.Add("become root", unix.SYS_SETRESUID)
	b.Add("pid 1", unix.SYS_GETPID).Result(1)
	b.Add("uid 0", unix.SYS_GETUID).Result(0)
	execve(b, "/bin/sh", "-c", "exit 9")
	p := place(t, b)
	c, err := fork.Start(p, none())
	if err != nil {
		t.Fatal(err)
	}
	first := c.Pid
	if err := c.Outcome(p); err != nil {
		t.Fatal(err)
	}
	if c.Pid == first {
		t.Error("it is still the first child")
	}
	if ws := wait(t, c); ws.ExitStatus() != 9 {
		t.Errorf("%v", ws)
	}
	if _, err := unix.Wait4(first, nil, 0, nil); err != nil {
		t.Error(err)
	}
}

func TestASecondChildThatFailsIsNamed(t *testing.T) {
	b := &plan.Builder{}
	b.AddFork("second", unix.CLONE_PARENT, 0, 0)
	b.Add("wait", unix.SYS_READ, plan.S(plan.SlotGo), plan.P(b.Words(0)), plan.V(1)).Result(1)
	b.Add("chdir to the moon", unix.SYS_CHDIR, plan.P(b.String("/nonexistent")))
	p := place(t, b)
	c, err := fork.Start(p, none())
	if err != nil {
		t.Fatal(err)
	}
	first := c.Pid
	var f *fork.FailedError
	if err := c.Outcome(p); !errors.As(err, &f) || f.Name != "chdir to the moon" {
		t.Errorf("%v", err)
	}
	wait(t, c)
	_, _ = unix.Wait4(first, nil, 0, nil)
}
