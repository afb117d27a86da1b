package keeper_test

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
)

func TestSignalEndsAContainer(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		l := e.container("sig", core.IO{}, "busybox", "sleep", "1000")
		e.launch(l)
		e.mustRun(e.crun("start", "sig"))
		if err := e.c.Signal(e.ctx(), l.Ref, int(syscall.SIGKILL)); err != nil {
			t.Fatal(err)
		}
		if x := e.exit(l.Ref); x.Exit.Signal != int(syscall.SIGKILL) {
			t.Errorf("exit %+v", x.Exit)
		}
		if err := e.c.Signal(e.ctx(), l.Ref, int(syscall.SIGTERM)); !errdefs.IsNotFound(err) {
			t.Errorf("Signal after the end: %v", err)
		}
	})
}

func TestFailedLaunchTellsTheCommandsWords(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		l := e.container("bad", core.IO{}, "/no/such/program")
		_, err := e.c.LaunchCommand(e.ctx(), l)
		if err == nil {
			t.Fatal("it was launched")
		}
		if !strings.Contains(err.Error(), "no/such/program") {
			t.Errorf("error %v", err)
		}
		l.Command.Args = []string{"/no/such/runtime"}
		if _, err := e.c.LaunchCommand(e.ctx(), l); err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("error %v", err)
		}
		if st := e.status(); st.Processes != 0 {
			t.Errorf("status %+v", st)
		}
		if entries, err := os.ReadDir(e.file("pair-1/io")); err != nil || len(entries) != 0 {
			t.Errorf("left over: %v, %v", entries, err)
		}
	})
}

func TestTerminal(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		log := e.file("tty.log")
		l := e.container("tty", core.IO{
			TTY: true, Size: core.Size{Cols: 91, Rows: 17}, Stdin: core.StdinOpen,
			Sinks: []core.Sink{{Format: core.FormatRaw, Stdout: true, Path: log}},
		}, "sh", "-c", `busybox stty size; read x; busybox stty size; echo "got $x"; exit 9`)
		e.launch(l)
		st, err := e.c.Streams(e.ctx(), l.Ref, core.StreamOptions{Stdin: true, Stdout: true, Stderr: true})
		if err != nil {
			t.Fatal(err)
		}
		if st.Stderr != nil {
			t.Error("a terminal has no stderr")
		}
		e.mustRun(e.crun("start", "tty"))
		r := bufio.NewReader(st.Stdout)
		if line, err := r.ReadString('\n'); err != nil || line != "17 91\r\n" {
			t.Errorf("first size %q, %v", line, err)
		}
		if err := e.c.Resize(e.ctx(), l.Ref, core.Size{Cols: 100, Rows: 30}); err != nil {
			t.Fatal(err)
		}
		killAndWait(t, e.status().KeeperPid) // the terminal survives it
		if st, err = e.c.Streams(e.ctx(), l.Ref, core.StreamOptions{Stdin: true, Stdout: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(st.Stdin, "word\n"); err != nil {
			t.Fatal(err)
		}
		rest := readAll(t, st.Stdout)
		if !strings.Contains(rest, "30 100\r\ngot word\r\n") {
			t.Errorf("rest %q", rest)
		}
		if x := e.exit(l.Ref); x.Exit.Code != 9 {
			t.Errorf("exit %+v", x.Exit)
		}
		if got := read(t, log); got != "17 91\r\nword\r\n30 100\r\ngot word\r\n" {
			t.Errorf("log %q", got)
		}
	})
}

func TestHeldStreamIsLossless(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		l := e.shell("hold", "busybox dd if=/dev/urandom bs=65536 count=1600 2>/dev/null | busybox tee "+e.file("copy")+"; echo done >&2")
		l.IO.Hold = true
		l.Attach = &core.StreamOptions{Stdout: true, Stderr: true, Exclusive: true}
		got := e.launch(l)
		killAndWait(t, e.status().KeeperPid) // the bytes never pass through it
		sum, n := drain(t, got.Streams.Stdout)
		if s := readAll(t, got.Streams.Stderr); s != "done\n" {
			t.Errorf("stderr %q", s)
		}
		f, err := os.Open(e.file("copy"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		want, m := drain(t, f)
		if n != 1600*65536 || n != m || sum != want {
			t.Errorf("%d bytes %s, want %d %s", n, sum, m, want)
		}
		if x := e.exit(l.Ref); x.Exit.Code != 0 {
			t.Errorf("exit %+v", x.Exit)
		}
		if err := got.Streams.Close(); err != nil {
			t.Error(err)
		}
	})
}

func drain(t *testing.T, r io.Reader) (string, int64) {
	t.Helper()
	h := sha256.New()
	n, err := io.Copy(h, r)
	if err != nil {
		t.Errorf("read: %v", err)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), n
}

// TestHeldStreamEndsDespiteADaemon has a child of the process's hold the pipe
// open for ever.
func TestHeldStreamEndsDespiteADaemon(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		l := e.shell("daemon", "(sleep 1000) & echo mine; exit 2")
		l.IO.Hold = true
		l.Attach = &core.StreamOptions{Stdout: true, Exclusive: true}
		got := e.launch(l)
		if s := readAll(t, got.Streams.Stdout); s != "mine\n" {
			t.Errorf("stdout %q", s)
		}
		if x := e.exit(l.Ref); x.Exit.Code != 2 {
			t.Errorf("exit %+v", x.Exit)
		}
		plain := e.shell("daemon2", "(sleep 1000) & echo mine; exit 2")
		plain.Attach = &core.StreamOptions{Stdout: true}
		got = e.launch(plain)
		if s := readAll(t, got.Streams.Stdout); s != "mine\n" {
			t.Errorf("stdout %q", s)
		}
		if err := e.c.Forget(e.ctx(), l.Ref); err != nil {
			t.Error(err)
		}
	})
}

func TestStuckReaderStopsNobody(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		const lines = 200000
		l := e.shell("fan", fmt.Sprintf("busybox seq 1 %d", lines))
		log := e.file("fan.log")
		l.IO.Sinks = []core.Sink{{Format: core.FormatRaw, Stdout: true, Path: log}}
		l.Attach = &core.StreamOptions{Stdout: true} // and nobody reads
		stuck := e.launch(l).Streams
		if x := e.exit(l.Ref); x.LostOut != 0 {
			t.Errorf("exit %+v", x)
		}
		if n := strings.Count(read(t, log), "\n"); n != lines {
			t.Errorf("%d lines in the sink", n)
		}
		if s := readAll(t, stuck.Stdout); !strings.HasPrefix(s, "1\n2\n3\n") {
			t.Errorf("the stuck reader got %.20q", s)
		}
	})
}

func TestStdinClosedIsNull(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		l := e.shell("null", "cat; exit 3")
		e.launch(l)
		if x := e.exit(l.Ref); x.Exit.Code != 3 {
			t.Errorf("exit %+v", x.Exit)
		}
		st, err := e.c.Streams(e.ctx(), l.Ref, core.StreamOptions{Stdin: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := st.Stdin.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("Write: %v", err)
		}
	})
}

func TestUnprivilegedUserOpensStdout(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		for id, uid := range map[string]uint32{"owner": 1234, "other": 0} {
			l := e.shell(id, "exec /usr/bin/setpriv --reuid 1234 --regid 1234 --clear-groups /bin/busybox sh -c 'echo mine >/dev/stdout && echo err >/proc/self/fd/2'")
			l.UID, l.GID = uid, uid
			l.IO.Sinks = []core.Sink{{Format: core.FormatRaw, Stdout: true, Stderr: true, Path: e.file(id)}}
			e.launch(l)
			x := e.exit(l.Ref)
			if id == "owner" && (x.Exit.Code != 0 || read(t, e.file(id)) != "mine\nerr\n") {
				t.Errorf("exit %+v, log %q", x.Exit, read(t, e.file(id)))
			}
			if id == "other" && x.Exit.Code == 0 {
				t.Errorf("a stranger could open the FIFO: %q", read(t, e.file(id)))
			}
		}
	})
}

func TestRotationAndReopen(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		log := e.file("rot.log")
		l := e.shell("rot", "i=0; while [ $i -lt 1000 ]; do echo line $i xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; i=$((i+1)); [ $((i%50)) = 0 ] && read x; done; exit 0")
		l.IO = core.IO{Stdin: core.StdinOpen, Sinks: []core.Sink{{Format: core.FormatCRI, Stdout: true, Path: log, MaxBytes: 10000, MaxFiles: 4}}}
		l.Attach = &core.StreamOptions{Stdin: true, Stdout: true}
		st := e.launch(l).Streams
		r := bufio.NewReader(st.Stdout)
		for i := range 1000 {
			if _, err := r.ReadString('\n'); err != nil {
				t.Fatalf("line %d: %v", i, err)
			}
			if i%50 == 49 {
				if _, err := io.WriteString(st.Stdin, "\n"); err != nil {
					t.Fatal(err)
				}
			}
		}
		e.exit(l.Ref)
		for _, name := range []string{log, log + ".1", log + ".2", log + ".3"} {
			fi, err := os.Stat(name)
			if err != nil || fi.Size() > 10000 || fi.Mode().Perm() != 0o640 {
				t.Errorf("%s: %v %v", name, fi, err)
			}
		}
		if _, err := os.Stat(log + ".4"); err == nil {
			t.Error("a fifth file")
		}
		last := texts(t, rotated(t, log), "stdout")
		if !strings.HasSuffix(last, "line 999 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n") {
			t.Errorf("the end is %.80q", last[max(0, len(last)-80):])
		}

		open := e.shell("reopen", "echo one; read x; echo two; read x; echo three")
		open.IO = core.IO{Stdin: core.StdinOpen, Sinks: []core.Sink{{Format: core.FormatRaw, Stdout: true, Path: e.file("re.log")}}}
		e.launch(open)
		st, err := e.c.Streams(e.ctx(), open.Ref, core.StreamOptions{Stdin: true, Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		waitText(t, e.file("re.log"), "one\n")
		if err := os.Rename(e.file("re.log"), e.file("re.old")); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(st.Stdin, "\n")
		waitText(t, e.file("re.old"), "one\ntwo\n")
		if err := e.c.ReopenSinks(e.ctx(), open.Ref); err != nil {
			t.Fatal(err)
		}
		if got := read(t, e.file("re.log")); got != "" {
			t.Errorf("fresh file holds %q", got)
		}
		_, _ = io.WriteString(st.Stdin, "\n")
		e.exit(open.Ref)
		if got := read(t, e.file("re.log")); got != "three\n" {
			t.Errorf("fresh file holds %q", got)
		}
		if got := read(t, e.file("re.old")); got != "one\ntwo\n" {
			t.Errorf("old file holds %q", got)
		}
	})
}

// waitText waits until a file holds exactly text, by inotify.
func waitText(t *testing.T, path, text string) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	for {
		if _, err := unix.InotifyAddWatch(fd, path, unix.IN_MODIFY); err == nil {
			break
		}
		timer := time.NewTimer(time.Millisecond) // it is made any moment
		<-timer.C
	}
	for {
		b, _ := os.ReadFile(path)
		if string(b) == text {
			return
		}
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(p, int(roottest.Patience().Milliseconds())); err == nil && n == 0 {
			t.Fatalf("%s holds %q, want %q", path, b, text)
		}
		var buf [4096]byte
		_, _ = unix.Read(fd, buf[:])
	}
}

func TestFullDiskIsMarked(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		small := e.file("small")
		if err := os.Mkdir(small, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(small, unix.MNT_DETACH) })
		ballast := small + "/ballast"
		if err := os.WriteFile(ballast, make([]byte, 32<<10), 0o600); err != nil {
			t.Fatal(err)
		}
		l := e.shell("full", "busybox seq 100000 104999; read x; echo back; read x")
		log := small + "/full.log"
		l.IO = core.IO{Stdin: core.StdinOpen, Sinks: []core.Sink{{Format: core.FormatCRI, Stdout: true, Path: log}}}
		l.Attach = &core.StreamOptions{Stdin: true, Stdout: true}
		st := e.launch(l).Streams
		if b, err := io.ReadAll(io.LimitReader(st.Stdout, 5000*7)); err != nil || len(b) != 5000*7 {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
		procs, err := e.c.Processes(e.ctx())
		if err != nil || procs[0].Lost == 0 || procs[0].Lost%7 != 0 || !procs[0].Running {
			t.Fatalf("processes %+v, %v", procs, err)
		}
		killAndWait(t, e.status().KeeperPid) // the count survives
		again, err := e.c.Processes(e.ctx())
		if err != nil || again[0].Lost != procs[0].Lost {
			t.Errorf("processes %+v, %v; before %+v", again, err, procs)
		}
		got := texts(t, read(t, log), "stdout") // whole records only
		if want := 5000*7 - int(procs[0].Lost); len(got) != want {
			t.Errorf("%d bytes kept, want %d", len(got), want)
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(st.Stdin, "\n")
		_, _ = io.WriteString(st.Stdin, "\n")
		if x := e.exit(l.Ref); x.LostOut != procs[0].Lost {
			t.Errorf("exit %+v", x)
		}
		tail := texts(t, read(t, log), "stdout")[len(got):]
		if want := fmt.Sprintf("longshore: %d bytes of output lost: no space left on device\nback\n", procs[0].Lost); tail != want {
			t.Errorf("tail %q, want %q", tail, want)
		}
	})
}

func TestFIFOSink(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		path := e.file("fifo")
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		l := e.shell("fifo", "echo early; read x; echo late; exit 1")
		l.IO = core.IO{Stdin: core.StdinOpen, Sinks: []core.Sink{{Format: core.FormatRaw, Stdout: true, Path: path}}}
		l.Attach = &core.StreamOptions{Stdin: true, Stdout: true}
		st := e.launch(l).Streams
		if line, err := bufio.NewReader(st.Stdout).ReadString('\n'); err != nil || line != "early\n" {
			t.Fatalf("%q %v", line, err)
		}
		killAndWait(t, e.status().KeeperPid) // the FIFO's content stays there
		e.status()
		_, _ = io.WriteString(st.Stdin, "\n")
		e.exit(l.Ref) // reported although nobody has read
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		if got := readAll(t, f); got != "early\nlate\n" {
			t.Errorf("read %q", got)
		}

		// One that is read all along sees the end with the process.
		if err := unix.Mkfifo(path+"2", 0o600); err != nil {
			t.Fatal(err)
		}
		l = e.shell("fifo2", "for i in 1 2 3; do echo $i; done")
		l.IO.Sinks = []core.Sink{{Format: core.FormatCRI, Stdout: true, Path: path + "2"}}
		e.launch(l)
		g, err := os.Open(path + "2")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = g.Close() }()
		if got := texts(t, readAll(t, g), "stdout"); got != "1\n2\n3\n" {
			t.Errorf("read %q", got)
		}
	})
}

func TestOOMCounters(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		tree, limit, counters, peak := "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.oom_control", "memory.max_usage_in_bytes"
		if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
			tree, limit, counters, peak = "/sys/fs/cgroup", "memory.max", "memory.events", "memory.peak"
		}
		cg := tree + roottest.Cgroup(t)
		if err := os.Mkdir(cg, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(cg+"/"+limit, []byte("4194304"), 0o600); err != nil {
			t.Skip("no memory controller: ", err)
		}
		l := e.shell("oom", "echo $$ >"+cg+"/cgroup.procs; exec busybox awk 'BEGIN { x = \"x\"; while (1) x = x x }'")
		l.Levels = []core.OOMLevel{{Path: cg + "/" + counters}, {Path: "/no/such/file"}}
		l.Peak = cg + "/" + peak
		e.launch(l)
		x := e.exit(l.Ref)
		if x.Exit.Signal != int(syscall.SIGKILL) || len(x.OOMKills) != 2 || x.OOMKills[0] != 1 || x.OOMKills[1] != 0 {
			t.Errorf("exit %+v", x)
		}
		if x.Peak < 1<<20 || x.Peak > 4<<20 {
			t.Errorf("peak %d", x.Peak)
		}
	})
}
