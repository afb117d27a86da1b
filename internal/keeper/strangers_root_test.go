package keeper_test

import (
	"os"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
)

// TestExitsAfterKeeperAndThenNest: its processes fall to the first process, which is this one. As
// long as it does not reap, every kernel has the status; when it reaps at once, at least the end.
func TestExitsAfterKeeperAndThenNest(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		var all []core.CommandLaunch
		var pids []int
		for _, script := range []string{"read x; exit 3", "read x; kill -9 $$", "read x; exit 0", "read x; exit 5"} {
			l := e.shell("c"+string(rune('0'+len(all))), script)
			l.IO.Stdin = core.StdinOnce
			pids = append(pids, e.launch(l).Pid)
			all = append(all, l)
		}
		first := e.status()
		killAndWait(t, first.KeeperPid)
		second := e.status() // the next keeper has taken over
		if second.KeeperPid == first.KeeperPid || second.NestPid != first.NestPid || second.Processes != len(all) {
			t.Fatalf("before %+v, after %+v", first, second)
		}
		killAndWait(t, second.NestPid)
		last := len(all) - 1
		reaped := make(chan error, 1)
		go func() {
			_, err := unix.Wait4(pids[last], nil, 0, nil)
			reaped <- err
		}()
		for _, l := range all {
			st, err := e.c.Streams(e.ctx(), l.Ref, core.StreamOptions{Stdin: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := st.Stdin.Write([]byte("\n")); err != nil {
				t.Fatal(err)
			}
		}
		var got []core.Exit
		for _, l := range all {
			got = append(got, e.exit(l.Ref).Exit)
		}
		for i, want := range []core.Exit{{Code: 3}, {Signal: 9}, {}} {
			if x := got[i]; x.Lost || x.Code != want.Code || x.Signal != want.Signal {
				t.Errorf("exit %+v, want %+v", x, want)
			}
		}
		if x := got[last]; !x.Lost && x.Code != 5 {
			t.Errorf("exit %+v", x)
		}
		if err := <-reaped; err != nil {
			t.Error(err)
		}
	})
}

// TestALaunchIsGivenUpAfterKeeperAndThenNest: nobody could report the end of its command. The
// keeper that took the launch over does not wait for that, and ends when it has nothing else.
func TestALaunchIsGivenUpAfterKeeperAndThenNest(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		gate := e.file("gate")
		if err := unix.Mkfifo(gate, 0o600); err != nil {
			t.Fatal(err)
		}
		l := e.shell("l", "exit 6")
		l.Command = core.Command{Args: []string{"/bin/busybox", "sh", "-c", `echo >"$GATE"; read x <"$GATE"; exit 1`}, Env: append(l.Command.Env, "GATE="+gate)}
		failed := make(chan error, 1)
		go func() {
			_, err := e.c.LaunchCommand(e.ctx(), l)
			failed <- err
		}()
		if _, err := os.ReadFile(gate); err != nil { // until the command runs
			t.Fatal(err)
		}
		first := e.status()
		killAndWait(t, first.KeeperPid)
		if err := <-failed; !errdefs.IsUnavailable(err) {
			t.Errorf("Launch: %v", err)
		}
		second := e.status()
		if second.KeeperPid == first.KeeperPid || second.NestPid != first.NestPid {
			t.Fatalf("before %+v, after %+v", first, second)
		}
		killAndWait(t, second.NestPid)
		if err := os.WriteFile(gate, []byte("go\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		again := e.shell("again", "exit 4")
		e.launch(again)
		if x := e.exit(again.Ref); x.Exit.Code != 4 {
			t.Errorf("exit %+v", x.Exit)
		}
		if err := e.c.Ack(e.ctx(), again.Ref); err != nil {
			t.Error(err)
		}
		if err := e.c.Forget(e.ctx(), again.Ref); err != nil {
			t.Error(err)
		}
		if st := e.untilPaired(); st.NestPid != second.KeeperPid || st.Processes != 0 {
			t.Errorf("the keeper %d became no nest: %+v", second.KeeperPid, st)
		}
	})
}
