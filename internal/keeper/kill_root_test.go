package keeper_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper"
	"github.com/longshore/longshore/internal/roottest"
)

// killAndWait kills a process and waits until it is no more.
func killAndWait(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // gone already
	}
	defer func() { _ = unix.Close(fd) }()
	_ = unix.Kill(pid, unix.SIGKILL)
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, int(roottest.Patience().Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			t.Fatalf("process %d does not die: %v", pid, err)
		}
		return
	}
}

func TestKeeperDeathKeepsExitsAndOutput(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		before := e.status()
		log := e.file("a.log")
		l := e.shell("a", "echo before; read x; echo after; exit 5")
		l.IO = core.IO{Stdin: core.StdinOpen, Sinks: []core.Sink{{Format: core.FormatRaw, Stdout: true, Path: log}}}
		e.launch(l)
		killAndWait(t, before.KeeperPid)
		after := e.status()
		if after.KeeperPid == before.KeeperPid || after.NestPid != before.NestPid || after.Processes != 1 {
			t.Fatalf("before %+v, after %+v", before, after)
		}
		st, err := e.c.Streams(e.ctx(), l.Ref, core.StreamOptions{Stdin: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := st.Stdin.Write([]byte("go\n")); err != nil {
			t.Fatal(err)
		}
		if x := e.exit(l.Ref); x.Exit.Code != 5 || x.Exit.Lost {
			t.Errorf("exit %+v", x.Exit)
		}
		if got := read(t, log); got != "before\nafter\n" {
			t.Errorf("log %q", got)
		}
		// It is offered until it is acknowledged, and then never again.
		killAndWait(t, after.KeeperPid)
		if x := e.exit(l.Ref); x.Exit.Code != 5 {
			t.Errorf("exit %+v", x.Exit)
		}
		if err := e.c.Ack(e.ctx(), l.Ref); err != nil {
			t.Fatal(err)
		}
		killAndWait(t, e.status().KeeperPid)
		if st := e.status(); st.Pending != 0 || st.Processes != 1 {
			t.Errorf("status %+v", st)
		}
		if err := e.c.Forget(e.ctx(), l.Ref); err != nil {
			t.Fatal(err)
		}
		killAndWait(t, e.status().KeeperPid)
		if st := e.status(); st.Processes != 0 {
			t.Errorf("status %+v", st)
		}
	})
}

// TestExitsWhileTheKeeperIsDown has processes end around its death: just before,
// while there is none, and after.
func TestExitsWhileTheKeeperIsDown(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		var refs []core.Ref
		for i := range 30 {
			l := e.shell(fmt.Sprintf("p%d", i), fmt.Sprintf("read x; exit %d", i))
			l.IO.Stdin = core.StdinOnce
			e.launch(l)
			refs = append(refs, l.Ref)
		}
		for i, r := range refs {
			if i%10 == 0 {
				killAndWait(t, e.status().KeeperPid)
			}
			st, err := e.c.Streams(e.ctx(), r, core.StreamOptions{Stdin: true})
			if err != nil {
				t.Fatal(err)
			}
			if i%10 == 5 { // it ends while its parent is being killed
				_ = unix.Kill(e.status().KeeperPid, unix.SIGKILL)
			}
			if _, err := st.Stdin.Write([]byte("\n")); err != nil {
				t.Fatal(err)
			}
		}
		for i, r := range refs {
			if x := e.exits(refs...)[r]; x.Exit.Code != i || x.Exit.Lost || x.Exit.Signal != 0 {
				t.Errorf("%v: %+v", r, x.Exit)
			}
		}
	})
}

// TestKeeperDeathInTheMiddleOfALaunch leaves the command running; its remains belong to the next
// keeper, unless it was forgotten meanwhile.
func TestKeeperDeathInTheMiddleOfALaunch(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		for _, forgotten := range []bool{false, true} {
			gate := e.file(fmt.Sprintf("gate-%v", forgotten))
			if err := unix.Mkfifo(gate, 0o600); err != nil {
				t.Fatal(err)
			}
			l := e.shell(fmt.Sprintf("l-%v", forgotten), "echo out; exit 6")
			launcher := l.Command
			l.Command = core.Command{
				Args: []string{"/bin/busybox", "sh", "-c", `echo >"$GATE"; read x <"$GATE"; exec "$PROGRAM"`},
				Env:  append(launcher.Env, "GATE="+gate, "PROGRAM="+launcher.Args[0]),
			}
			log := gate + ".log"
			l.IO.Sinks = []core.Sink{{Format: core.FormatRaw, Stdout: true, Path: log}}
			failed := make(chan error, 1)
			go func() {
				_, err := e.c.LaunchCommand(e.ctx(), l)
				failed <- err
			}()
			if _, err := os.ReadFile(gate); err != nil { // until the command runs
				t.Fatal(err)
			}
			killAndWait(t, e.status().KeeperPid)
			if err := <-failed; !errdefs.IsUnavailable(err) {
				t.Errorf("Launch: %v", err)
			}
			if procs, err := e.c.Processes(e.ctx()); err != nil || len(procs) != 0 {
				t.Errorf("processes %+v, %v", procs, err)
			}
			if forgotten {
				if err := e.c.Forget(e.ctx(), l.Ref); err != nil {
					t.Error(err)
				}
				again := e.shell(string(l.Ref.Container), "exit 1")
				for { // the command is killed, and then the name is free
					_, err := e.c.LaunchCommand(e.ctx(), again)
					if err == nil {
						break
					}
					if !errdefs.IsAlreadyExists(err) {
						t.Fatal(err)
					}
				}
				if x := e.exit(l.Ref); x.Exit.Code != 1 {
					t.Errorf("exit %+v", x.Exit)
				}
				continue
			}
			if err := os.WriteFile(gate, []byte("go\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if x := e.exit(l.Ref); x.Exit.Code != 6 {
				t.Errorf("exit %+v", x.Exit)
			}
			if got := read(t, log); got != "out\n" {
				t.Errorf("log %q", got)
			}
			if err := e.c.Forget(e.ctx(), l.Ref); err != nil {
				t.Error(err)
			}
		}
	})
}

// waitGone waits for a process's end.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := 0, error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll(p, int(roottest.Patience().Milliseconds()))
	}
	if err != nil || n == 0 {
		t.Fatalf("process %d goes on: %v", pid, err)
	}
}

// TestDeathOfBothIsNotHidden kills them while no agent has copies.
func TestDeathOfBothIsNotHidden(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		ended := e.shell("ended", "exit 6")
		e.launch(ended)
		e.exit(ended.Ref)
		lost := e.shell("lost", "sleep 1000")
		e.launch(lost)
		st := e.status()
		if err := e.c.Close(); err != nil {
			t.Fatal(err)
		}
		killTogether(t, st)
		e.c = e.client()
		// The exit on record is still offered; the other process is unknown.
		if x := e.exit(ended.Ref); x.Exit.Code != 6 {
			t.Errorf("exit %+v", x.Exit)
		}
		procs, err := e.c.Processes(e.ctx())
		if err != nil || len(procs) != 1 || procs[0].Ref != ended.Ref || procs[0].Running {
			t.Errorf("processes %+v, %v", procs, err)
		}
		if err := e.c.Signal(e.ctx(), lost.Ref, 9); !errdefs.IsNotFound(err) {
			t.Errorf("Signal: %v", err)
		}
		if err := e.c.Ack(e.ctx(), ended.Ref); err != nil {
			t.Error(err)
		}
		if st := e.status(); st.Pending != 0 {
			t.Errorf("status %+v", st)
		}
		if procs, err := e.c.Processes(e.ctx()); err != nil || len(procs) != 0 {
			t.Errorf("after the acknowledgement: processes %+v, %v", procs, err)
		}
	})
}

// TestAClientMayComeWhileAKeeperIsKilled: the socket of one that dies takes
// connections to its last moment, and drops them.
func TestAClientMayComeWhileAKeeperIsKilled(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		other := t.TempDir()
		dying := filepath.Join(other, "pair-7")
		if err := os.Mkdir(dying, 0o700); err != nil {
			t.Fatal(err)
		}
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: filepath.Join(dying, "keeper.sock")})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		go func() {
			for read := range 3 { // before, over and after the hello
				conn, err := l.AcceptUnix()
				if err != nil {
					t.Error(err)
					break
				}
				if read > 0 {
					_, _, _, _, err = conn.ReadMsgUnix(make([]byte, read), nil)
				}
				if err := errors.Join(err, conn.Close()); err != nil {
					t.Error(err)
				}
			}
			_ = l.Close()
		}()
		c, err := keeper.New(e.ctx(), keeper.Options{StateDir: other, Binary: e.binary})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if st, err := c.Status(e.ctx()); err != nil || st.KeeperPid < 2 {
			t.Errorf("status %+v, %v", st, err)
		}
		if _, err := os.Stat(filepath.Join(other, "pair-8")); err != nil {
			t.Errorf("no pair follows: %v", err)
		}
	})
}

// TestChaos kills the keeper a hundred times while writers write as fast as they
// can: no line may be lost, doubled, torn or out of order.
func TestChaos(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		kills := 100
		if s := os.Getenv("LONGSHORE_CHAOS_KILLS"); s != "" {
			kills, _ = strconv.Atoi(s)
		}
		const writers = 6
		var refs []core.Ref
		stop := e.file("stop")
		for i := range writers {
			name := fmt.Sprintf("w%d", i)
			// Lines of different length; each writer has its own width. The
			// last number written is the exit's check.
			l := e.shell(name, fmt.Sprintf(`exec /bin/busybox awk 'BEGIN {
				pad = sprintf("%%%ds", %d); gsub(/ /, "x", pad)
				for (n = 0; n < 200000000; n++) {
					print "line", n, pad
					if (n %% 7 == 0) print "line", n, pad > "/dev/stderr"
					if (n %% 500 == 0) { if ((getline x < "%s") > 0) break; close("%s") }
				}
				fflush(); print "end", n > "%s.end"; exit %d
			}'`, 1, []int{1, 10, 100, 1000, 5000, 40000}[i], stop, stop, e.file(name), 10+i))
			l.IO.Sinks = []core.Sink{
				{Format: core.FormatCRI, Stdout: true, Stderr: true, Path: e.file(name + ".log"), MaxBytes: 32 << 20, MaxFiles: 1000},
				{Format: core.FormatRaw, Stdout: true, Path: e.file(name + ".raw")},
			}
			e.launch(l)
			refs = append(refs, l.Ref)
		}
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		rnd := rand.New(rand.NewPCG(seed, 1))
		nest := e.status().NestPid
		for range kills {
			st := e.status()
			if st.NestPid != nest {
				t.Fatalf("nest %d became %d", nest, st.NestPid)
			}
			timer := time.NewTimer(time.Duration(1+rnd.IntN(12)) * time.Millisecond)
			<-timer.C
			killAndWait(t, st.KeeperPid)
		}
		if err := os.WriteFile(stop, []byte("stop\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		got := e.exits(refs...)
		total := 0
		for i, r := range refs {
			if got[r].Exit.Code != 10+i || got[r].Exit.Lost {
				t.Errorf("%v: exit %+v", r, got[r].Exit)
			}
			name := e.file(string(r.Container))
			var last int
			if _, err := fmt.Sscanf(read(t, name+".end"), "end %d", &last); err != nil {
				t.Fatal(err)
			}
			cri := rotated(t, name+".log")
			total += checkLines(t, name+" cri stdout", texts(t, cri, "stdout"), last, 1)
			total += checkLines(t, name+" cri stderr", texts(t, cri, "stderr"), last, 7)
			total += checkLines(t, name+" raw", read(t, name+".raw"), last, 1)
		}
		b := read(t, e.file("keeper.log"))
		t.Logf("%d kills, %d lines checked, %d transactions redone", kills, total, strings.Count(b, "redone"))
	})
}

// rotated reads a log and its older files, oldest first.
func rotated(t *testing.T, path string) string {
	t.Helper()
	n := 1
	for {
		if _, err := os.Stat(fmt.Sprintf("%s.%d", path, n)); err != nil {
			break
		}
		n++
	}
	var b strings.Builder
	for n--; n > 0; n-- {
		b.WriteString(read(t, fmt.Sprintf("%s.%d", path, n)))
	}
	b.WriteString(read(t, path))
	return b.String()
}

// checkLines checks that every step-th number from 0 to last occurs once, in order, on a whole
// line.
func checkLines(t *testing.T, what, text string, last, step int) int {
	t.Helper()
	next, lines, width := 0, 0, -1
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] != "line" || f[1] != strconv.Itoa(next) || !strings.HasSuffix(line, "\n") || width >= 0 && len(f[2]) != width {
			t.Errorf("%s: line %d of about %d: want number %d, got %.60q (%d bytes)", what, lines, last/step, next, line, len(line))
			return lines
		}
		width = len(f[2])
		next += step
		lines++
	}
	if want := last/step*step + step; next != want {
		t.Errorf("%s: the next would be %d, want %d", what, next, want)
	}
	return lines
}
