package dbfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/dbfile"
)

// strangers create other kinds of file at a path.
var strangers = map[string]func(path string) error{
	"directory": func(p string) error {
		return errors.Join(os.Mkdir(p, 0o700), os.WriteFile(filepath.Join(p, "x"), []byte("foreign"), 0o600))
	},
	"fifo":         func(p string) error { return syscall.Mkfifo(p, 0o600) },
	"link":         func(p string) error { return os.Symlink(filepath.Base(p), p) },
	"link nowhere": func(p string) error { return os.Symlink("nowhere", p) },
}

// TestSomethingElseInAFilesPlace: a directory, a fifo or a dangling link in the place of a file, of
// its copy, or of an earlier repair's remains counts as a damaged file; nothing waits for it.
func TestSomethingElseInAFilesPlace(t *testing.T) {
	for name, create := range strangers {
		for _, suffix := range []string{"", ".copy", ".new", ".copy.new", ".damaged", ".copy.damaged"} {
			f := newFile(t)
			db := f.open(t)
			fill(t, db)
			want := all(t, db)
			must(t, db.Close())
			must(t, os.RemoveAll(f.path+suffix))
			must(t, create(f.path+suffix))
			if suffix == ".damaged" || suffix == ".copy.damaged" { // so that it is in the way
				must(t, os.WriteFile(f.path, nil, 0o600))
			}
			db = f.open(t)
			if at := differs(want, all(t, db)); at != "" {
				t.Errorf("%s as x.db%s: %s", name, suffix, at)
			}
			must(t, db.Close())
			db = f.open(t)
			if at := differs(want, all(t, db)); at != "" {
				t.Errorf("%s as x.db%s, opened again: %s", name, suffix, at)
			}
			must(t, db.Close())
		}
		f := newFile(t)
		db := f.open(t)
		fill(t, db)
		must(t, db.Close())
		for _, suffix := range []string{"", ".copy"} {
			must(t, os.Remove(f.path+suffix))
			must(t, create(f.path+suffix))
		}
		db, err := dbfile.Open(f.options())
		if name == "link nowhere" { // no file exists: it is a new file
			must(t, err)
			must(t, db.Close())
			continue
		}
		if !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "longshore repair") {
			t.Errorf("%s in the place of both: %v", name, err)
		}
		for range 2 {
			r, err := dbfile.Repair(f.options(), true)
			if err != nil || !strings.Contains(r.Damage, "it is a") {
				t.Errorf("%s in the place of both: dry repair %+v, %v", name, r, err)
			}
		}
		if _, err := dbfile.Repair(f.options(), false); err != nil {
			t.Errorf("%s in the place of both: repair %v", name, err)
		}
		db = f.open(t)
		fill(t, db)
		must(t, db.Close())
	}
}
