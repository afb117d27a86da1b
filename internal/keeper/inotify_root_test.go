package keeper_test

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper"
	"github.com/longshore/longshore/internal/roottest"
)

// withoutInotify is a program that runs the keeper in a user namespace which may have no inotify
// instance, as if containers had used up all of uid 0.
const withoutInotify = `#!/bin/sh
exec unshare --user --map-root-user /bin/sh -c 'echo 0 >/proc/sys/user/max_inotify_instances && exec "$0" "$@"' BINARY "$@"
`

// TestAKeeperStartsWithoutInotify: it starts, runs processes, and a FIFO sink ends for a reader
// that comes after the end of the process.
func TestAKeeperStartsWithoutInotify(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		if _, err := os.Stat("/usr/bin/unshare"); err != nil {
			t.Skip("util-linux is not installed: ", err)
		}
		e := newEnv(t)
		wrapper := e.file("wrapper")
		script := strings.Replace(withoutInotify, "BINARY", e.binary, 1)
		if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := e.c.Close(); err != nil {
			t.Fatal(err)
		}
		e.dir = e.file("without")
		err := os.Mkdir(e.dir, 0o700)
		if err != nil {
			t.Fatal(err)
		}
		if e.c, err = keeper.New(e.ctx(), keeper.Options{StateDir: e.dir, Binary: wrapper}); err != nil {
			t.Fatal(err)
		}
		if has := inotifies(t, e.status().KeeperPid); has != 0 {
			t.Fatalf("the keeper has %d inotify instances: this proves nothing", has)
		}
		path := e.file("out")
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		l := e.shell("a", "echo text; exit 4")
		l.IO.Sinks = []core.Sink{{Format: core.FormatRaw, Stdout: true, Path: path}}
		e.launch(l)
		if x := e.exit(l.Ref); x.Exit.Code != 4 {
			t.Errorf("exit %+v", x.Exit)
		}
		r, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Close() }()
		if got := readAll(t, bufio.NewReader(r)); got != "text\n" {
			t.Errorf("the FIFO's reader got %q", got)
		}
	})
}

// inotifies counts the inotify instances of a process.
func inotifies(t *testing.T, pid int) (n int) {
	t.Helper()
	dir := "/proc/" + strconv.Itoa(pid) + "/fd/"
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if to, err := os.Readlink(dir + f.Name()); err == nil && to == "anon_inode:inotify" {
			n++
		}
	}
	return n
}

// TestAKeeperReservesItsInotifyInstance is the control: it has one for all its life.
func TestAKeeperReservesItsInotifyInstance(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		if n := inotifies(t, e.status().KeeperPid); n != 1 {
			t.Errorf("the keeper has %d inotify instances, want 1", n)
		}
	})
}
