package keeper_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper"
	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/roottest"
)

func TestUpgradeInPlace(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		log := e.file("up.log")
		l := e.shell("up", "i=0; while read x; do i=$((i+1)); echo line $i; done; exit 8")
		l.IO = core.IO{Stdin: core.StdinOnce, Sinks: []core.Sink{{Format: core.FormatCRI, Stdout: true, Path: log}}}
		l.Attach = &core.StreamOptions{Stdin: true, Stdout: true}
		st := e.launch(l).Streams
		held := e.shell("held", "read x; echo $x; exit 9")
		held.IO = core.IO{Stdin: core.StdinOpen, Hold: true}
		held.Attach = &core.StreamOptions{Stdin: true, Stdout: true, Exclusive: true}
		hs := e.launch(held).Streams
		before := e.status()
		r := bufio.NewReader(st.Stdout)
		// The keeper refuses programs that do not start, or that cannot continue its work.
		for name, script := range map[string]string{
			"ends": "exit 3", "says nothing": "true", "never ends in time": "kill -9 $$", "an older release": "echo usage >&2; exit 2",
			"a later protocol":             "echo longshore-keeper protocol 90 99 handover 1 1 release 9",
			"an earlier protocol":          "echo longshore-keeper protocol 1 0 handover 1 1 release 9",
			"another form of the handover": "echo longshore-keeper protocol 1 99 handover 7 9 release 9",
		} {
			path := filepath.Join(t.TempDir(), "longshore-keeper")
			if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := e.c.Upgrade(e.ctx(), path); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), path) {
				t.Errorf("a program that %s: %v", name, err)
			}
		}
		for _, path := range []string{"/etc/passwd", "/nonexistent/longshore-keeper"} {
			if err := e.c.Upgrade(e.ctx(), path); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("it became %s: %v", path, err)
			}
		}
		if now := e.status(); now.KeeperPid != before.KeeperPid || now.Processes != 2 || !runs(t, now.KeeperPid, e.binary) {
			t.Errorf("before %+v, after refused upgrades %+v", before, now)
		}
		for i := range 5 {
			next := filepath.Join(t.TempDir(), "longshore-keeper")
			if out, err := exec.CommandContext(t.Context(), "cp", e.binary, next).CombinedOutput(); err != nil {
				t.Fatalf("%s", out)
			}
			if err := e.c.Upgrade(e.ctx(), next); err != nil {
				t.Fatal(err)
			}
			now := e.status()
			if now.KeeperPid != before.KeeperPid || now.NestPid != before.NestPid || now.Processes != 2 {
				t.Errorf("before %+v, after %+v", before, now)
			}
			if !runs(t, now.KeeperPid, next) {
				t.Error("it runs another program")
			}
			if hugePages(t, now.KeeperPid) != hugePages(t, os.Getpid()) {
				t.Error("containers would get no huge pages")
			}
			if _, err := io.WriteString(st.Stdin, "x\n"); err != nil {
				t.Fatal(err)
			}
			// The stream that was attached before still flows.
			if line, err := r.ReadString('\n'); err != nil || line != fmt.Sprintf("line %d\n", i+1) {
				t.Errorf("line %q, %v", line, err)
			}
			if i <= 2 { // a keeper's death ends the stream
				if _, err := e.c.Streams(e.ctx(), held.Ref, core.StreamOptions{Stdout: true, Exclusive: true}); err == nil {
					t.Error("the exclusive stream was forgotten")
				}
			}
			if i == 2 { // its successor is the new program too
				killAndWait(t, now.KeeperPid)
				before = e.status()
				if !runs(t, before.KeeperPid, next) {
					t.Error("the next keeper runs another program")
				}
				s2, err := e.c.Streams(e.ctx(), l.Ref, core.StreamOptions{Stdout: true})
				if err != nil {
					t.Fatal(err)
				}
				r = bufio.NewReader(s2.Stdout)
			}
		}
		if _, err := io.WriteString(hs.Stdin, "word\n"); err != nil {
			t.Fatal(err)
		}
		if s := readAll(t, hs.Stdout); s != "word\n" {
			t.Errorf("held %q", s)
		}
		if err := st.Stdin.Close(); err != nil {
			t.Fatal(err)
		}
		if err := e.c.CloseStdin(e.ctx(), l.Ref); err != nil {
			t.Fatal(err)
		}
		got := e.exits(l.Ref, held.Ref)
		if got[l.Ref].Exit.Code != 8 || got[held.Ref].Exit.Code != 9 {
			t.Errorf("exits %+v", got)
		}
		if s := texts(t, read(t, log), "stdout"); s != "line 1\nline 2\nline 3\nline 4\nline 5\n" {
			t.Errorf("log %q", s)
		}
	})
}

func TestUpgradeUnderLoad(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		log := e.file("load.log")
		const lines = 3000000
		l := e.shell("load", fmt.Sprintf("busybox seq 1 %d", lines))
		l.IO = core.IO{Sinks: []core.Sink{{Format: core.FormatRaw, Stdout: true, Path: log}}}
		e.launch(l)
		for range 30 {
			if err := e.c.Upgrade(e.ctx(), e.binary); err != nil {
				t.Fatal(err)
			}
			short := e.shell("short", "exit 7")
			e.launch(short)
			if x := e.exit(short.Ref); x.Exit.Code != 7 {
				t.Errorf("exit %+v", x)
			}
			if err := e.c.Forget(e.ctx(), short.Ref); err != nil {
				t.Error(err)
			}
		}
		e.exit(l.Ref)
		next := 1
		for line := range strings.Lines(read(t, log)) {
			if line != strconv.Itoa(next)+"\n" {
				t.Fatalf("line %d is %q", next, line)
			}
			next++
		}
		if next != lines+1 {
			t.Errorf("%d lines", next-1)
		}
	})
}

// TestUpgradeWaitsForCommands: an upgrade waits for a command that runs. A client's command that came meanwhile is not carried out, and its
// connection ends, so that it does not wait for ever; this package's client sends such requests afterwards.
func TestUpgradeWaitsForCommands(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		gate := e.file("gate")
		if err := unix.Mkfifo(gate, 0o600); err != nil {
			t.Fatal(err)
		}
		say := func(c *net.UnixConn, kind wire.Kind, m wire.Message) {
			if _, err := c.Write(wire.Frame(kind, 7, m)); err != nil {
				t.Fatal(err)
			}
		}
		greeted := func() *net.UnixConn {
			c := dialRaw(t, e)
			if h, _, err := exchange(t, c, wire.Frame(wire.KindHello, 0, &wire.Hello{Magic: wire.Magic, Version: wire.Version, Oldest: wire.Oldest})); err != nil || h.Kind != wire.KindOK {
				t.Fatalf("%+v, %v", h, err)
			}
			return c
		}
		running, upgrading, late := greeted(), greeted(), greeted()
		say(running, wire.KindRun, &wire.Command{Args: []string{"/bin/sh", "-c", "read x <" + gate}})
		e.status()
		say(upgrading, wire.KindUpgrade, &wire.Upgrade{Path: e.binary})
		e.status()
		say(late, wire.KindRun, &wire.Command{Args: []string{"/bin/true"}})
		e.status() // the keeper reads its messages in their order
		if err := os.WriteFile(gate, []byte("x\n"), 0); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, wire.MaxFrame)
		for what, c := range map[string]*net.UnixConn{"the command": running, "the upgrade": upgrading} {
			n, err := c.Read(b)
			if h, _, _ := wire.ParseHeader(b[:n]); err != nil || h.Kind != wire.KindOK {
				t.Errorf("%s: %+v, %v", what, h, err)
			}
		}
		if n, err := late.Read(b); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the late command: %d bytes, %v", n, err)
		}
		done := make(chan struct{})
		var clients errgroup.Group
		for range 3 {
			clients.Go(func() error {
				for {
					select {
					case <-done:
						return nil
					default:
					}
					if _, err := e.c.Run(e.ctx(), core.Command{Args: []string{"/bin/true"}}); err != nil {
						return err
					}
				}
			})
		}
		for range 10 {
			if err := e.c.Upgrade(e.ctx(), e.binary); err != nil {
				t.Error(err)
			}
		}
		close(done)
		if err := clients.Wait(); err != nil {
			t.Errorf("a command beside upgrades: %v", err)
		}
	})
}

// pss sums up one figure of smaps_rollup, in KiB.
func pss(t *testing.T, pid int) int {
	t.Helper()
	for line := range strings.Lines(read(t, fmt.Sprintf("/proc/%d/smaps_rollup", pid))) {
		if f := strings.Fields(line); f[0] == "Pss:" {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no Pss")
	return 0
}

// hugePages is the line of a process's status that says whether it, and so its
// children, may have them.
func hugePages(t *testing.T, pid int) string {
	t.Helper()
	for line := range strings.Lines(read(t, fmt.Sprintf("/proc/%d/status", pid))) {
		if strings.HasPrefix(line, "THP_enabled:") {
			return line
		}
	}
	return "" // a kernel without them
}

func openFDs(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestSmallWith200Processes(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		st := e.status()
		base := pss(t, st.KeeperPid) + pss(t, st.NestPid)
		fds := [2]int{openFDs(t, st.KeeperPid), openFDs(t, st.NestPid)}
		var refs []core.Ref
		for i := range 200 {
			l := e.shell(fmt.Sprintf("%064d", i), "echo a line; read x; exit 0")
			l.IO = core.IO{Stdin: core.StdinOpen, Sinks: []core.Sink{{Format: core.FormatCRI, Stdout: true, Stderr: true, Path: e.file(fmt.Sprintf("log-%d", i))}}}
			e.launch(l)
			refs = append(refs, l.Ref)
		}
		// The garbage of up to a few dozen requests exists at any time: how much just now is
		// chance.
		k, n := 6*1024, 0
		for i := 0; k+n >= 6*1024 && i < 100; i++ {
			e.status()
			k, n = pss(t, st.KeeperPid), pss(t, st.NestPid)
		}
		t.Logf("PSS of keeper and nest: %d KiB with none, %d + %d KiB with 200 processes", base, k, n)
		if k+n >= 6*1024 {
			t.Errorf("%d KiB are too much", k+n)
			t.Logf("%s", read(t, fmt.Sprintf("/proc/%d/smaps_rollup", st.KeeperPid)))
			t.Logf("%s", read(t, fmt.Sprintf("/proc/%d/smaps", st.KeeperPid)))
		}
		processes, err := e.c.Processes(e.ctx())
		if err != nil || len(processes) != len(refs) {
			t.Fatalf("%d processes, %v", len(processes), err)
		}
		for _, p := range processes {
			if hugePages(t, p.Pid) != hugePages(t, os.Getpid()) {
				t.Fatalf("%s may have no huge pages", p.Ref.Container)
			}
		}
		killAndWait(t, st.KeeperPid)
		st = e.status()
		k, n = pss(t, st.KeeperPid), pss(t, st.NestPid)
		t.Logf("after a keeper's death: %d + %d KiB", k, n)
		if k+n >= 6*1024 {
			t.Errorf("%d KiB are too much", k+n)
		}
		for _, r := range refs {
			if err := e.c.Signal(e.ctx(), r, int(unix.SIGKILL)); err != nil {
				t.Fatal(err)
			}
		}
		e.exits(refs...)
		for _, r := range refs {
			if err := e.c.Ack(e.ctx(), r); err != nil {
				t.Fatal(err)
			}
			if err := e.c.Forget(e.ctx(), r); err != nil {
				t.Fatal(err)
			}
		}
		killAndWait(t, st.KeeperPid) // the nest has heard all before it starts the next one
		st = e.status()
		// The Go runtime opens two of its own at some time.
		if now := [2]int{openFDs(t, st.KeeperPid), openFDs(t, st.NestPid)}; now[0] > fds[0]+2 || now[1] > fds[1]+2 {
			t.Errorf("descriptors of keeper and nest: %v, were %v", now, fds)
			for _, pid := range []int{st.KeeperPid, st.NestPid} {
				out, err := exec.CommandContext(t.Context(), "ls", "-l", fmt.Sprintf("/proc/%d/fd", pid)).CombinedOutput()
				t.Logf("%s %v", out, err)
			}
		}
		for _, d := range []string{"io", "exits"} {
			if entries, err := os.ReadDir(e.file("pair-1/" + d)); err != nil || len(entries) > 0 {
				t.Errorf("%s: %v %v", d, entries, err)
			}
		}
		if err := e.c.Shutdown(e.ctx()); err != nil {
			t.Error(err)
		}
		waitGone(t, st.KeeperPid)
		waitGone(t, st.NestPid)
		if _, err := keeper.New(e.ctx(), keeper.Options{StateDir: e.dir, Binary: e.binary}); err != nil {
			t.Errorf("a fresh pair: %v", err)
		}
	})
}

// runs reports whether a process runs the file at path. Its link tells no path:
// it runs from a mount that is nowhere.
func runs(t *testing.T, pid int, path string) bool {
	t.Helper()
	theirs, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		t.Fatal(err)
	}
	ours, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return os.SameFile(theirs, ours)
}
