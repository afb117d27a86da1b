package volumes

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
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

// place has the directories of a fill: files are copied to the directory stage of root first, and
// then all moved to the directory dir of root.
type place struct{ base, stage, dir string }

// plainPlace is the place of a volume that is a directory of the node. Its stage lies beside the
// content, where no container sees it.
func plainPlace(content string) place {
	return place{path.Dir(content), "_fill", path.Base(content)}
}

// mountedPlace is the place of a volume that is mounted at dir.
func mountedPlace(dir string) place { return place{dir, ".longshore-fill", "."} }

// fill copies the image's files at target into an empty volume, with the owners that the files have
// inside the container. Links cannot lead out of either side: those on the way to the target are
// followed inside the container's root, as for the mount of the volume.
//
// If the agent dies meanwhile, the stage remains and tells the next fill to start again. Files in a
// volume without a stage were written by others, and nothing is copied then; nor is a file
// overwritten that was written since.
func fill(from *os.Root, target string, at place, o owners) error {
	src, err := openIn(from, target)
	if src == nil || err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	base, err := os.OpenRoot(at.base)
	if err != nil {
		return err
	}
	defer func() { _ = base.Close() }()
	_, err = base.Lstat(at.stage)
	if interrupted := err == nil; !interrupted {
		if empty, err := isEmpty(base, at.dir); err != nil || !empty {
			return err
		}
	}
	if err := base.RemoveAll(at.stage); err != nil {
		return err
	}
	if err := copyTree(src, base, at.stage, o); err != nil {
		return errors.Join(err, base.RemoveAll(at.stage))
	}
	return settle(src, base, at, o)
}

// openIn opens the directory target of a container's root, and returns nil when there is none.
func openIn(from *os.Root, target string) (*os.Root, error) {
	rel := strings.TrimPrefix(path.Clean("/"+target), "/")
	if rel == "" {
		return nil, fmt.Errorf("the root itself: %w", errdefs.ErrInvalidArgument)
	}
	top, err := from.Open(".")
	if err != nil {
		return nil, err
	}
	defer func() { _ = top.Close() }()
	root, err := beneath.RootIn(top, rel)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, nil //nolint:nilnil // the image has no directory there
	}
	return root, err
}

func isEmpty(root *os.Root, dir string) (bool, error) {
	d, err := root.Open(dir)
	if err != nil {
		return false, err
	}
	defer func() { _ = d.Close() }()
	_, err = d.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

// copyTree copies src to the directory to of base.
func copyTree(src, base *os.Root, to string, o owners) error {
	if err := base.Mkdir(to, 0o700); err != nil {
		return err
	}
	dst, err := base.OpenRoot(to)
	if err != nil {
		return err
	}
	defer func() { _ = dst.Close() }()
	type dir struct {
		path string
		info fs.FileInfo
	}
	var dirs []dir
	err = fs.WalkDir(src.FS(), ".", func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := src.Lstat(p)
		if err != nil {
			return err
		}
		if info.IsDir() && p != "." {
			dirs = append(dirs, dir{p, info})
		}
		return o.copyOne(src, dst, p, info)
	})
	for _, d := range slices.Backward(dirs) { // a new file changes the directory's time
		if err == nil {
			err = dst.Chtimes(d.path, d.info.ModTime(), d.info.ModTime())
		}
	}
	return err
}

// settle moves the stage's files to the volume, gives that the owner and mode of the image's
// directory, and removes the stage. It syncs all of it.
func settle(src, base *os.Root, at place, o owners) error {
	stage, err := base.Open(at.stage)
	if err != nil {
		return err
	}
	defer func() { _ = stage.Close() }()
	names, err := stage.Readdirnames(-1)
	if err != nil {
		return err
	}
	if len(names) > 0 {
		if err := unix.Syncfs(int(stage.Fd())); err != nil {
			return err
		}
	}
	for _, name := range names {
		to := path.Join(at.dir, name)
		if _, err := base.Lstat(to); err == nil {
			continue
		}
		if err := base.Rename(path.Join(at.stage, name), to); err != nil {
			return err
		}
	}
	info, err := src.Lstat(".")
	if err != nil {
		return err
	}
	if err := o.setAttributes(base, at.dir, info); err != nil {
		return err
	}
	if err := base.RemoveAll(at.stage); err != nil {
		return err
	}
	top, err := base.Open(at.dir)
	if err != nil {
		return err
	}
	return errors.Join(top.Sync(), top.Close())
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
	if err != nil {
		return err
	}
	if err := o.setAttributes(dst, p, info); err != nil || !info.Mode().IsRegular() {
		return err
	}
	return dst.Chtimes(p, info.ModTime(), info.ModTime())
}

// setAttributes gives a file the owner and the mode of another one.
func (o owners) setAttributes(dst *os.Root, p string, info fs.FileInfo) error {
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

// copyFile copies a file. Its capabilities are lost when its owner is changed afterwards, and
// those of the image's files are not those of a volume that many containers write to.
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
