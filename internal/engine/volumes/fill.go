package volumes

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// owners holds the id mappings of the user namespace through which the root's files are seen;
// nil shows their owners unchanged.
type owners struct{ UIDs, GIDs []specs.LinuxIDMapping }

// inside returns the id inside the namespace for a file's id.
func inside(maps []specs.LinuxIDMapping, id uint32) int {
	for _, m := range maps {
		if id >= m.HostID && id-m.HostID < m.Size {
			return int(id - m.HostID + m.ContainerID)
		}
	}
	return int(id)
}

// fill copies the image's directory target into the volume at dir, with the owners that its
// files have inside the container. Symlinks cannot lead out of either side. Files that the volume
// already has are kept.
func fill(from *os.Root, target, dir string, o owners) error {
	rel := strings.TrimPrefix(path.Clean("/"+target), "/")
	if rel == "" {
		return fmt.Errorf("the root itself: %w", errdefs.ErrInvalidArgument)
	}
	src, err := from.OpenRoot(rel)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	dst, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = dst.Close() }()
	return fs.WalkDir(src.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := src.Lstat(p)
		if err != nil {
			return err
		}
		return o.copyOne(src, dst, p, info)
	})
}

func (o owners) copyOne(src, dst *os.Root, p string, info fs.FileInfo) error {
	var err error
	switch {
	case info.IsDir():
		if p != "." {
			err = dst.Mkdir(p, 0o700)
		}
	case info.Mode().IsRegular():
		err = copyFile(src, dst, p)
	case info.Mode()&fs.ModeSymlink != 0:
		var to string
		if to, err = src.Readlink(p); err == nil {
			err = dst.Symlink(to, p)
		}
	default:
		return nil // devices, FIFOs and sockets are not content
	}
	if errors.Is(err, fs.ErrExist) && !info.IsDir() {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		if err := dst.Lchown(p, inside(o.UIDs, st.Uid), inside(o.GIDs, st.Gid)); err != nil {
			return err
		}
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil
	}
	return dst.Chmod(p, info.Mode().Perm()|info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky))
}

func copyFile(src, dst *os.Root, p string) error {
	in, err := src.Open(p)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := dst.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
