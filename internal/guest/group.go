package guest

import (
	"errors"
	"io/fs"
	"syscall"

	"github.com/longshore/longshore/internal/beneath"
)

// Group gives a storage's files to a group of the container's.
type Group struct {
	ID int
	// OnMismatch leaves everything as it is when the storage's root is the group's already.
	OnMismatch bool
}

// apply gives all files below a directory to the group, which may then read, write and
// enter them; only read, when readOnly. Links are left alone.
func (g Group) apply(dir string, readOnly bool) error {
	base, rel, err := splitPlace(dir)
	if err != nil {
		return err
	}
	root, err := beneath.Root(base, rel)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	file, folder := fs.FileMode(0o660), fs.FileMode(0o770)|fs.ModeSetgid
	if readOnly {
		file, folder = 0o440, 0o550|fs.ModeSetgid
	}
	if g.OnMismatch {
		st, err := root.Stat(".")
		if err != nil {
			return err
		}
		if owner, ok := groupOf(st); ok && owner == g.ID && st.Mode()&folder == folder {
			return nil
		}
	}
	return fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			return nil
		}
		if err != nil {
			return err
		}
		st, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		more := file
		switch {
		case st.Mode()&fs.ModeSymlink != 0:
			return nil
		case st.IsDir():
			more = folder
		}
		if err := root.Lchown(path, -1, g.ID); err != nil {
			return err
		}
		return root.Chmod(path, st.Mode()|more)
	})
}

func groupOf(st fs.FileInfo) (int, bool) {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(sys.Gid), true
}
