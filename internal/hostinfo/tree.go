package hostinfo

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// TreeBytes returns the disk usage of a directory's files, each counted once; 0 if there is no such directory.
func TreeBytes(ctx context.Context, dir string) (bytes uint64, err error) {
	err = Tree(ctx, dir, func(_ string, n uint64) { bytes += n })
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return bytes, err
}

// Tree calls fn with the path, relative to dir, and the bytes on the disk of each file and directory. It has a file with several names
// once, follows no link and goes into no other filesystem. Programs in containers may change the content meanwhile.
func Tree(ctx context.Context, dir string, fn func(path string, bytes uint64)) error {
	type file struct{ dev, ino uint64 }
	seen := map[file]bool{}
	root, err := os.OpenRoot(dir) // a container owns the content, and may replace directories by links
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	var device uint64
	return fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, fs.ErrNotExist):
			return nil // it was removed meanwhile
		case err != nil:
			return err
		}
		info, err := d.Info()
		if err != nil {
			return nil //nolint:nilerr // it was removed meanwhile
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil
		}
		if path == "." {
			device = st.Dev
		}
		if st.Dev != device {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if f := (file{st.Dev, st.Ino}); st.Nlink > 1 && !d.IsDir() {
			if seen[f] {
				return nil
			}
			seen[f] = true
		}
		fn(path, uint64(st.Blocks)*512)
		return nil
	})
}
