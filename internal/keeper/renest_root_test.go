package keeper_test

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper"
	"github.com/longshore/longshore/internal/roottest"
)

// programName returns a process's first argument and the name that the kernel has of it.
func programName(t *testing.T, pid int) (arg, comm string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/", pid)
	arg, _, _ = strings.Cut(read(t, dir+"cmdline"), "\x00")
	return arg, strings.TrimSpace(read(t, dir+"comm"))
}

// cutName is a name as the kernel keeps it, in 15 characters.
func cutName(name string) string { return name[:min(len(name), 15)] }

// TestKeeperAndNestHaveNamesOfTheirOwn: a kill of all processes of one name leaves the other.
func TestKeeperAndNestHaveNamesOfTheirOwn(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		check := func() {
			t.Helper()
			st := e.status()
			for pid, want := range map[int]string{st.KeeperPid: "longshore-keeper", st.NestPid: "longshore-nest"} {
				if arg, comm := programName(t, pid); arg != want || comm != cutName(want) {
					t.Errorf("process %d is %q and %q, want %q", pid, arg, comm, want)
				}
				if cmdline := read(t, fmt.Sprintf("/proc/%d/cmdline", pid)); want == "longshore-nest" && strings.Contains(cmdline, "longshore-keeper") {
					t.Errorf("the nest's command line has the keeper's name: %q", cmdline)
				}
			}
		}
		check()
		killAndWait(t, e.status().NestPid)
		e.untilPaired()
		check()
	})
}

// untilPaired waits until there is one keeper with a nest.
func (e *env) untilPaired() core.SupervisorStatus {
	e.t.Helper()
	var st core.SupervisorStatus
	roottest.Eventually(e.t, "a keeper has a nest", func() bool {
		st = e.status()
		return st.NestPid > 0 && parent(st.KeeperPid) == st.NestPid
	})
	return st
}

func parent(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	var ppid int
	_, rest, _ := strings.Cut(string(b), ") ")
	if _, err := fmt.Sscanf(rest, "%1s %d", new(string), &ppid); err != nil {
		return 0
	}
	return ppid
}

// TestAKeeperWithoutANestGetsOneAtOnce kills nest and keeper in turn. Each time the processes, their
// exits, their output and the clients' streams stay.
func TestAKeeperWithoutANestGetsOneAtOnce(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		first := e.status()
		l := e.shell("old", "while read x; do echo got $x; done; exit 3")
		log := e.file("old.log")
		l.IO = core.IO{Stdin: core.StdinOpen, Sinks: []core.Sink{{Format: core.FormatRaw, Stdout: true, Path: log}}}
		e.launch(l)
		st, err := e.c.Streams(e.ctx(), l.Ref, core.StreamOptions{Stdin: true, Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		line := func(text string) {
			t.Helper()
			if _, err := st.Stdin.Write([]byte(text + "\n")); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 100)
			n, err := st.Stdout.Read(buf)
			if got := string(buf[:n]); err != nil || got != "got "+text+"\n" {
				t.Fatalf("the stream brought %q, %v", got, err)
			}
		}
		line("a")
		killAndWait(t, first.NestPid)
		now := e.untilPaired()
		if now.NestPid != first.KeeperPid || now.KeeperPid == first.KeeperPid || now.Processes != 1 {
			t.Errorf("before %+v, after %+v", first, now)
		}
		line("b") // over the same stream
		young := e.shell("young", "read x; exit 4")
		young.IO.Stdin = core.StdinOpen
		e.launch(young)
		for range 3 { // one after the other, any number of times
			killAndWait(t, e.status().NestPid)
			killAndWait(t, e.untilPaired().KeeperPid)
			e.untilPaired()
		}
		for _, ref := range []core.Ref{l.Ref, young.Ref} {
			in, err := e.c.Streams(e.ctx(), ref, core.StreamOptions{Stdin: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := in.Stdin.Write([]byte("c\n")); err != nil {
				t.Fatal(err)
			}
		}
		_ = st.Close()
		if err := e.c.CloseStdin(e.ctx(), l.Ref); err != nil {
			t.Fatal(err)
		}
		got := e.exits(l.Ref, young.Ref)
		if got[l.Ref].Exit.Code != 3 || got[young.Ref].Exit.Code != 4 || got[l.Ref].Exit.Lost || got[young.Ref].Exit.Lost {
			t.Errorf("exits %+v", got)
		}
		if text := read(t, log); text != "got a\ngot b\ngot c\n" {
			t.Errorf("log %q", text)
		}
	})
}

// pidfds counts this process's descriptors of processes: it has one with each copy.
func pidfds(t *testing.T) (n int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.Contains(to, "pidfd") {
			n++
		}
	}
	return n
}

// killTogether kills keeper and nest so that neither can do anything about the death of the
// other.
func killTogether(t *testing.T, st core.SupervisorStatus) {
	t.Helper()
	for _, pid := range []int{st.KeeperPid, st.NestPid} {
		_ = unix.Kill(pid, unix.SIGSTOP)
	}
	for _, pid := range []int{st.KeeperPid, st.NestPid} {
		killAndWait(t, pid)
	}
}

// TestProcessesSurviveKeeperAndNest kills both at once, again and again, while the client, which an
// agent has, lives: everything continues, and ends as if nothing had been.
func TestProcessesSurviveKeeperAndNest(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		quiet := e.shell("quiet", "exec sleep 1000")
		pid := e.launch(quiet).Pid
		reader := e.shell("reader", "while read x; do echo $x; done; exit 5")
		log := e.file("reader.log")
		reader.IO = core.IO{Stdin: core.StdinOpen, Sinks: []core.Sink{{Format: core.FormatCRI, Stdout: true, Path: log}}}
		e.launch(reader)
		tty := e.container("tty", core.IO{TTY: true, Stdin: core.StdinOpen, Sinks: []core.Sink{{Format: core.FormatRaw, Stdout: true, Path: e.file("tty.log")}}}, "sh", "-c", "read x; echo heard; exit 6")
		terminal := false
		if _, err := os.Stat("/usr/bin/crun"); err == nil {
			terminal = true
			e.launch(tty)
			e.mustRun(e.crun("start", "tty"))
		}
		const rounds = 10
		before := e.status()
		for i := range rounds {
			roottest.Eventually(t, "the client has copies of all", func() bool { return e.status().Uncopied == 0 && pidfds(t) >= before.Processes })
			killTogether(t, e.status())
			now := e.untilPaired()
			if now.Processes != before.Processes {
				t.Fatalf("round %d: %d processes, were %d", i, now.Processes, before.Processes)
			}
			in, err := e.c.Streams(e.ctx(), reader.Ref, core.StreamOptions{Stdin: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := fmt.Fprintf(in.Stdin, "line %d\n", i); err != nil {
				t.Fatal(err)
			}
			_ = in.Close()
		}
		if err := e.c.CloseStdin(e.ctx(), reader.Ref); err != nil {
			t.Fatal(err)
		}
		if err := e.c.Signal(e.ctx(), quiet.Ref, int(unix.SIGTERM)); err != nil {
			t.Fatal(err)
		}
		refs := []core.Ref{quiet.Ref, reader.Ref}
		if terminal {
			in, err := e.c.Streams(e.ctx(), tty.Ref, core.StreamOptions{Stdin: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := in.Stdin.Write([]byte("x\n")); err != nil {
				t.Fatal(err)
			}
			refs = append(refs, tty.Ref)
		}
		got := e.exits(refs...)
		if x := got[quiet.Ref]; x.Pid != pid || x.Exit.Signal != int(unix.SIGTERM) && !x.Exit.Lost {
			t.Errorf("quiet: %+v", x)
		}
		if x := got[reader.Ref]; x.Exit.Code != 5 && !x.Exit.Lost {
			t.Errorf("reader: %+v", x)
		}
		if x := got[tty.Ref]; terminal && x.Exit.Code != 6 && !x.Exit.Lost {
			t.Errorf("tty: %+v", x)
		}
		if pidfdTells(t) {
			for _, r := range refs {
				if got[r].Exit.Lost {
					t.Errorf("%v is lost, and this kernel tells how a process ended", r)
				}
			}
		}
		var want strings.Builder
		for i := range rounds {
			fmt.Fprintf(&want, "line %d\n", i)
		}
		if text := texts(t, read(t, log), "stdout"); text != want.String() {
			t.Errorf("log %q, want %q", text, want.String())
		}
	})
}

// TestCopiesThatCouldNotBeReceivedAreSentAgain keeps the client from opening descriptors while a
// process starts. Its copy comes when there is room, without any change of the process, and the
// client's owner hears of both changes.
func TestCopiesThatCouldNotBeReceivedAreSentAgain(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		var changes atomic.Int64
		e := newEnv(t)
		_ = e.c.Close()
		e.c = e.client(func(o *keeper.Options) { o.Changed = func() { changes.Add(1) } })
		e.launch(e.shell("first", "exec sleep 1000"))
		roottest.Eventually(t, "the client has copies of the first process", func() bool { return pidfds(t) == 1 })
		second, before := e.shell("second", "exec sleep 1000"), changes.Load()
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		none := limit
		none.Cur = 0
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
			t.Fatal(err)
		}
		e.launch(second)
		// On a slow machine the client has asked again meanwhile: then the copy of the first process failed too.
		roottest.Eventually(t, "the client says that a copy is missing", func() bool { return e.status().Uncopied > 0 && changes.Load() > before })
		before = changes.Load()
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		roottest.Eventually(t, "the copy is there", func() bool { return e.status().Uncopied == 0 && changes.Load() > before && pidfds(t) == 2 })
	})
}

// pidfdTells reports whether the kernel tells how a process ended to one that is not its parent.
func pidfdTells(t *testing.T) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major > 6 || major == 6 && minor >= 15
}

// TestWithoutAClientKeeperAndNestAreLost is the control of the test before: without copies nothing
// starts the next pair, and the processes are not known any more.
func TestWithoutAClientKeeperAndNestAreLost(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		l := e.shell("quiet", "exec sleep 1000")
		e.launch(l)
		st := e.status()
		if err := e.c.Close(); err != nil {
			t.Fatal(err)
		}
		killTogether(t, st)
		c, err := keeper.New(e.ctx(), keeper.Options{StateDir: e.dir, Binary: e.binary})
		if err != nil {
			t.Fatal(err)
		}
		e.c = c
		if now := e.status(); now.Processes != 0 || now.NestPid == 0 {
			t.Errorf("status %+v", now)
		}
	})
}

// TestCopiesCostFewDescriptors counts an agent's descriptors for processes, and none stays after
// they are forgotten.
func TestCopiesCostFewDescriptors(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		open := func() int {
			l, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				t.Fatal(err)
			}
			return len(l)
		}
		e.launch(e.shell("warm", "exit 0"))
		e.exit(core.Ref{Container: "warm"})
		if err := e.c.Forget(e.ctx(), core.Ref{Container: "warm"}); err != nil {
			t.Fatal(err)
		}
		before := open()
		var refs []core.Ref
		const n = 20
		for i := range n {
			l := e.shell(fmt.Sprintf("p%d", i), "exec sleep 1000")
			e.launch(l)
			refs = append(refs, l.Ref)
		}
		roottest.Eventually(t, "the client has copies of all", func() bool { return open() >= before+3*n-4 })
		if each := float64(open()-before) / n; each > 3.5 {
			t.Errorf("%.1f descriptors for each process, want 3", each)
		}
		for _, r := range refs {
			if err := e.c.Signal(e.ctx(), r, int(unix.SIGKILL)); err != nil {
				t.Fatal(err)
			}
		}
		e.exits(refs...)
		for _, r := range refs {
			if err := e.c.Forget(e.ctx(), r); err != nil {
				t.Fatal(err)
			}
		}
		roottest.Eventually(t, "the copies are closed", func() bool { return open() <= before+2 })
	})
}
