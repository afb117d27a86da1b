package proctree

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain is also the program that the tests start, so that they need none: it
// starts children as its arguments say, tells their pids and waits.
func TestMain(m *testing.M) {
	if os.Getenv("KIN_TEST") != "" {
		family(os.Args[1:])
	}
	os.Exit(m.Run())
}

// family starts one child for each argument: "same" in our session, "own" in one
// of its own, "deep" with a child of its own in turn.
func family(args []string) {
	for _, how := range args {
		cmd := exec.Command("/proc/self/exe") //nolint:forbidigo // it is to live on
		if how == "deep" {
			cmd.Args = append(cmd.Args, "own")
		}
		cmd.Env = append(os.Environ(), "KIN_TEST=1")
		cmd.Stdout = os.Stdout
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: how != "same"}
		if err := cmd.Start(); err != nil {
			fmt.Println("error", err)
		}
	}
	fmt.Println(os.Getpid())
	for {
		_, _ = unix.Poll(nil, -1)
	}
}

// start runs a family and returns its pids, the parent's first.
func start(t *testing.T, members int, args ...string) []int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "KIN_TEST=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pids := []int{cmd.Process.Pid}
	t.Cleanup(func() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for said := 0; said < members && lines.Scan(); said++ {
		pid, err := strconv.Atoi(lines.Text())
		if err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		if !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	if len(pids) != members {
		t.Fatalf("started %v, want %d", pids, members)
	}
	return pids
}

func state(pid int) byte {
	st, err := read(pid)
	if err != nil {
		return 'X'
	}
	return st.state
}

func TestAllThatAProcessStartedIsKilled(t *testing.T) {
	pids := start(t, 5, "same", "own", "deep")
	other := start(t, 1)
	if err := Kill(pids[0], Session(pids[0]), func() ([]int, error) { return append(slices.Clone(pids), other...), nil }); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids[1:] {
		if s := state(pid); s != 'X' && s != 'Z' {
			t.Errorf("child %d is left, state %c", pid, s)
		}
	}
	if s := state(other[0]); s == 'X' || s == 'Z' {
		t.Error("somebody else was killed")
	}
	if s := state(pids[0]); s == 'X' || s == 'Z' {
		t.Errorf("main itself was killed, state %c", s)
	}
}

func TestOnlyTheListedAreKilled(t *testing.T) {
	pids := start(t, 2, "same")
	if err := Kill(pids[0], Session(pids[0]), func() ([]int, error) { return pids[:1], nil }); err != nil {
		t.Fatal(err)
	}
	if s := state(pids[1]); s == 'X' || s == 'Z' {
		t.Error("a process beyond the list was killed")
	}
}

// bury kills a leader and reaps it, and returns when.
func bury(t *testing.T, pid int) time.Time {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	return time.Now()
}

func TestWhatAnEndedProcessLeftIsKilled(t *testing.T) {
	pids := start(t, 4, "same", "same", "own")
	other := start(t, 2, "same")
	ended := bury(t, pids[0])
	if err := Orphans(pids[0], ended, func() ([]int, error) { return append(slices.Clone(pids[1:]), other...), nil }); err != nil {
		t.Fatal(err)
	}
	alone := 0
	for _, pid := range pids[1:] {
		if s := state(pid); s != 'X' && s != 'Z' {
			alone++
		}
	}
	if alone != 1 { // one with its own session looks like any other
		t.Errorf("%d of %v go on, want one", alone, pids[1:])
	}
	for _, pid := range other {
		if s := state(pid); s == 'X' || s == 'Z' {
			t.Error("somebody else was killed")
		}
	}
}

// TestASessionOfTheSameNumberIsNotTheOrphans: where the pid has a new owner since, or nothing is as
// old as the leader, nothing is killed.
func TestASessionOfTheSameNumberIsNotTheOrphans(t *testing.T) {
	pids := start(t, 2, "same")
	list := func() ([]int, error) { return pids, nil }
	if err := Orphans(pids[0], time.Now(), list); err != nil {
		t.Fatal(err)
	}
	bury(t, pids[0])
	if err := Orphans(pids[0], time.Now().Add(-time.Hour), list); err != nil {
		t.Fatal(err)
	}
	if s := state(pids[1]); s == 'X' || s == 'Z' {
		t.Error("a later session's process was killed")
	}
}

func TestNothingIsLeftToKill(t *testing.T) {
	if err := Kill(1<<30, 1<<30, func() ([]int, error) { return []int{1 << 30}, nil }); err != nil {
		t.Error(err)
	}
	failing := func() ([]int, error) { return nil, os.ErrPermission }
	if err := Kill(1<<30, 1<<30, failing); err == nil {
		t.Error("a failing list was taken for none")
	}
}

func FuzzParse(f *testing.F) {
	own, err := os.ReadFile(filepath.Join("/proc/self", "stat"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own)
	f.Add([]byte("1 (a) b) c) S 2 3 4 5"))
	f.Add([]byte(strings.Repeat(") 1", 30)))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = parse(b) })
}
