package stats

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// newKept is one that has closed everything when the test ends.
func newKept(tb testing.TB) *Kept {
	tb.Helper()
	k := NewKept()
	tb.Cleanup(func() {
		k.sweep()
		k.sweep()
		if n := k.open.Load() + k.openDirs.Load(); n != 0 || len(k.dirs) != 0 || k.timer != nil {
			tb.Errorf("%d descriptors of %d directories are left open", n, len(k.dirs))
		}
	})
	return k
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestWhatIsKeptTellsOfNow(t *testing.T) {
	k, dir := newKept(t), t.TempDir()
	read := func() core.Stats {
		s := k.V1(func(string) string { return dir }, core.StatsUsage)
		fresh := (*Kept)(nil).V1(func(string) string { return dir }, core.StatsUsage)
		fresh.At = s.At
		if d := cmp.Diff(fresh, s); d != "" {
			t.Error(d)
		}
		return s
	}
	read() // nothing exists yet
	for _, usage := range []string{"90000000", "1", ""} {
		put(t, filepath.Join(dir, "cpuacct.usage"), usage+"\n")
		if s := read(); s.CPU.Usage != number(usage) {
			t.Errorf("%+v, want %s", s.CPU.Usage, usage)
		}
	}
	if n := k.open.Load(); n != 1 {
		t.Errorf("%d descriptors for one file", n)
	}
	put(t, filepath.Join(dir, "memory.stat"), "total_rss 7\n")
	if s := read(); s.Memory.RSS != core.Known(7) || k.open.Load() != 2 {
		t.Errorf("%+v, %d descriptors", s.Memory.RSS, k.open.Load())
	}
}

func TestNothingIsKeptOfACgroupThatHasGone(t *testing.T) {
	k, dir := newKept(t), t.TempDir()
	read := func(dir string) { k.V1(func(string) string { return dir }, core.StatsUsage) }
	for _, d := range []string{"gone", "gone/below", "stays"} {
		put(t, filepath.Join(dir, d, "memory.stat"), "total_rss 7\n")
		put(t, filepath.Join(dir, d, "cgroup.procs"), "1\n")
		read(filepath.Join(dir, d))
	}
	if _, err := k.Pids(filepath.Join(dir, "gone")); err != nil {
		t.Fatal(err)
	}
	k.Forget(filepath.Join(dir, "gone"))
	k.Forget(filepath.Join(dir, "never"))
	if len(k.dirs) != 1 || k.dirs[filepath.Join(dir, "stays")] == nil || k.open.Load() != 1 {
		t.Errorf("%d descriptors of %v are kept", k.open.Load(), k.dirs)
	}
	read(filepath.Join(dir, "gone")) // another one of its name
	if k.open.Load() != 2 {
		t.Errorf("%d descriptors", k.open.Load())
	}
}

// TestFilesAreOfTheDirectoryThatIsThere removes an open directory and makes another of its name.
func TestFilesAreOfTheDirectoryThatIsThere(t *testing.T) {
	k, above := newKept(t), t.TempDir()
	dir := filepath.Join(above, "cgroup")
	read := func(name, want string, there bool) {
		t.Helper()
		for range 2 { // the second time by the open directory
			if got, ok := k.Text(dir, name); got != want || ok != there {
				t.Errorf("%s: %q, %t; want %q", name, got, ok, want)
			}
		}
	}
	read("pids.max", "", false)
	for i := range 3 {
		put(t, filepath.Join(dir, "cgroup.procs"), "1\n")
		put(t, filepath.Join(dir, "pids.max"), fmt.Sprintln(i))
		read("pids.max", fmt.Sprint(i), true)
		read("pids.none", "", false)
		put(t, filepath.Join(dir, "pids.max"), "7\n")
		read("pids.max", "7", true)
		if n := k.openDirs.Load(); n != 1 {
			t.Errorf("%d directories are kept open", n)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			read("pids.max", "", false)
		}
	}
	k.most = 1
	other := filepath.Join(above, "other")
	put(t, filepath.Join(other, "pids.max"), "3\n")
	put(t, filepath.Join(dir, "pids.max"), "4\n")
	for range 2 {
		read("pids.max", "4", true)
		if got, _ := k.Text(other, "pids.max"); got != "3" {
			t.Errorf("%q", got)
		}
	}
	if n := k.openDirs.Load(); n > 1 {
		t.Errorf("%d directories are kept open, at most 1", n)
	}
}

func TestOneThatFailsIsOpenedAnew(t *testing.T) {
	k, dir := newKept(t), t.TempDir()
	put(t, filepath.Join(dir, "memory.stat"), "total_rss 7\n")
	gone := errors.New("of a cgroup that was removed")
	var told []int
	err := k.with(dir, "memory.stat", func(fd int) error { told = append(told, fd); return nil })
	if err != nil || k.open.Load() != 1 {
		t.Fatalf("%v, %d descriptors", err, k.open.Load())
	}
	err = k.with(dir, "memory.stat", func(fd int) error {
		if told = append(told, fd); len(told) == 2 {
			return gone
		}
		return nil
	})
	if err != nil || len(told) != 3 || told[0] != told[1] || k.open.Load() != 0 {
		t.Errorf("%v, descriptors %v, %d open", err, told, k.open.Load())
	}
	if err := k.with(dir, "none", func(int) error { return nil }); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such file: %v", err)
	}
}

func TestNoMoreIsKeptThanMay(t *testing.T) {
	k := newKept(t)
	k.most = 2
	var dirs []string
	for range 4 {
		dir := t.TempDir()
		put(t, filepath.Join(dir, "memory.stat"), "total_rss 7\n")
		dirs = append(dirs, dir)
	}
	for range 2 {
		for _, dir := range dirs {
			if s := k.V1(func(string) string { return dir }, core.StatsUsage); s.Memory.RSS != core.Known(7) {
				t.Errorf("%+v", s.Memory)
			}
		}
		if n := k.open.Load(); n != 2 {
			t.Errorf("%d descriptors, at most 2", n)
		}
	}
	k.sweep()
	d := k.at(dirs[3])
	k.sweep() // nobody asked for the others, which had two
	if n := k.open.Load(); n != 0 || len(k.dirs) != 1 {
		t.Errorf("%d descriptors, %d directories", n, len(k.dirs))
	}
	k.sweep()
	d.mu.Lock()
	fd, kept, err := k.descriptorLocked(d, dirs[3], "memory.stat") // by a caller that held it while it was swept
	d.mu.Unlock()
	if kept || err != nil || unix.Close(fd) != nil {
		t.Errorf("kept %t, %v", kept, err)
	}
}

// TestMembersOfATreeThatChanges adds and removes directories between two reads, also as many of one
// as of the other.
func TestMembersOfATreeThatChanges(t *testing.T) {
	k, root := newKept(t), filepath.Join(t.TempDir(), "root")
	look := func(want ...int) {
		t.Helper()
		for range 2 { // the second time from the kept state
			got, err := k.Pids(root)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%v, %v; want %v", got, err, want)
			}
		}
	}
	procs := func(dir, text string) { t.Helper(); put(t, filepath.Join(root, dir, "cgroup.procs"), text) }
	remove := func(dir string) {
		t.Helper()
		if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
			t.Fatal(err)
		}
	}
	look()
	procs("", "")
	look()
	procs("a", "7\n5\n")
	procs("b", "6\n0\n")
	look(5, 6, 7)
	procs("a", "9\n")
	look(6, 9)
	procs("a/deep", "")
	procs("a/deep/er", "3\n6\n")
	look(3, 6, 9)
	remove("b")
	procs("c", "1\n") // as many as before
	look(1, 3, 6, 9)
	remove("a/deep")
	look(1, 9)
	remove("c")
	procs("c", "2\n") // another one of that name
	look(2, 9)
	remove("")
	look()
	procs("d", "")
	procs("", "4\n")
	look(4)
}

func TestManyReadersOfOneCgroup(t *testing.T) {
	k, root := newKept(t), t.TempDir()
	put(t, filepath.Join(root, "cgroup.procs"), "1\n")
	put(t, filepath.Join(root, "below", "cgroup.procs"), "2\n")
	put(t, filepath.Join(root, "memory.stat"), "total_rss 7\n")
	errs := make(chan error)
	for range 4 {
		go func() {
			var err error
			for i := 0; err == nil && i < 300; i++ {
				pids, perr := k.Pids(root)
				if s := k.V1(func(string) string { return root }, core.StatsUsage); perr != nil || len(pids) != 2 || s.Memory.RSS != core.Known(7) {
					err = fmt.Errorf("%v, %w, %+v", pids, perr, s.Memory.RSS)
				}
			}
			errs <- err
		}()
	}
	for left := 4; left > 0; {
		select {
		case err := <-errs:
			if left--; err != nil {
				t.Error(err)
			}
		default:
			k.sweep()
		}
	}
}
