package kills

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func count(t *testing.T, counter string, n int) {
	t.Helper()
	// In one write, as the kernel's file changes.
	f, err := os.OpenFile(counter, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(f, "low 0\noom %d\noom_kill %d\noom_group_kill 0\n", n+1, n); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestFiles: cgroups of v2, which are files of a directory here.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a/memory.events"), filepath.Join(dir, "b/memory.events")
	for _, f := range []string{a, b} {
		if err := os.Mkdir(filepath.Dir(f), 0o700); err != nil {
			t.Fatal(err)
		}
		count(t, f, 0)
	}
	var w Watcher
	told := make(chan string, 10)
	tell := func(name string) func(uint64) {
		return func(n uint64) { told <- fmt.Sprint(name, n) }
	}
	one, err := w.Watch(a, tell("a"))
	if err != nil {
		t.Fatal(err)
	}
	count(t, b, 2) // before it is watched
	two, err := w.Watch(b, tell("b"))
	if err != nil {
		t.Fatal(err)
	}
	expect := func(want string) {
		t.Helper()
		if got := <-told; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	expect("b2")
	count(t, a, 1)
	expect("a1")
	count(t, a, 1) // something else in the file has changed
	count(t, b, 3)
	expect("b3")
	if n := one.Stop(); n != 1 || one.Stop() != 1 {
		t.Errorf("a had %d kills", n)
	}
	count(t, a, 7)
	if err := os.Remove(b); err != nil {
		t.Fatal(err)
	}
	if n := two.Stop(); n != 3 {
		t.Errorf("b had %d kills", n)
	}
	if _, err := w.Watch(filepath.Join(dir, "none/memory.events"), tell("none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no cgroup: %v", err)
	}
	if _, err := w.Watch(filepath.Join(dir, "none/memory.oom_control"), tell("none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no cgroup of v1: %v", err)
	}
	if _, err := w.Watch(a, tell("again")); err != nil {
		t.Error(err)
	}
	expect("again7")
	w.Close()
	if _, err := w.Watch(a, tell("late")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed watcher: %v", err)
	}
	select {
	case s := <-told:
		t.Errorf("then came %s", s)
	default:
	}
}

// TestLastLook: Stop reports a kill that nobody has announced yet.
func TestLastLook(t *testing.T) {
	counter := filepath.Join(t.TempDir(), "memory.events")
	count(t, counter, 0)
	var w Watcher
	defer w.Close()
	var told []uint64
	one, err := w.Watch(counter, func(n uint64) { told = append(told, n) })
	if err != nil {
		t.Fatal(err)
	}
	count(t, counter, 4)
	if n := one.Stop(); n != 4 || len(told) != 1 || told[0] != 4 {
		t.Errorf("%d kills, told %d", n, told)
	}
}
