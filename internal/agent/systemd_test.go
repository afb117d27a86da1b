package agent

import (
	"bufio"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestAKeepersHelperMovesWithIt: a session's leader takes along its session's processes, and no
// others.
func TestAKeepersHelperMovesWithIt(t *testing.T) {
	start := func() (leader, helper int) {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "exec 3<&0; cat <&3 & echo $!; wait")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			_ = stdin.Close()
			_ = cmd.Wait()
		})
		line, err := bufio.NewReader(stdout).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if helper, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
			t.Fatal(err)
		}
		return cmd.Process.Pid, helper
	}
	keeper, keepers := start()
	nest, nests := start()
	start() // somebody else's
	got := withSession(keeper, nest)
	slices.Sort(got)
	want := []int{keeper, keepers, nest, nests}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%v, wanted %v", got, want)
	}
}
