package treecopy

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
)

// Pack writes the file or tree at p in root as a tar; every name begins with as. Sockets are left
// out. A file that grows while it is read is packed as long as it was, and one that shrinks is
// filled up with zeros.
//
// With ids the owners in the tar are those that the container's programs see, and setuid and setgid are
// left out, because these owners have other rights on the node than the files' owners.
func Pack(w io.Writer, root *os.File, p, as string, follow bool, ids IDs) error {
	f, err := open(root, p, follow)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	tw := tarWriter{Writer: tar.NewWriter(w), ids: ids}
	if info.IsDir() {
		err = packDir(tw, f, as)
	} else {
		err = packOne(tw, entry{path.Dir(path.Clean("/" + p)), path.Base(path.Clean("/" + p)), root, f}, info, as)
	}
	if err != nil {
		return err
	}
	return tw.Close()
}

// tarWriter writes a tar with the owners of a container.
type tarWriter struct {
	*tar.Writer
	ids    IDs
	mounts map[string]bool // absolute paths of mounts, which are empty in the tar
	// device is that of the root, if there are mounts. A directory of another device is a mount with
	// another path now: it was mounted below a link, or a program has renamed a parent.
	device uint64
}

func device(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Dev
	}
	return 0
}

// PackRoot writes the whole root as a tar, as Pack does, but without the content of the mounts at these absolute paths: it writes
// an empty directory or file for each.
func PackRoot(w io.Writer, root *os.File, mounts []string, ids IDs) error {
	dir, err := open(root, "/", false)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	info, err := dir.Stat()
	if err != nil {
		return err
	}
	tw := tarWriter{tar.NewWriter(w), ids, map[string]bool{}, device(info)}
	for _, m := range mounts {
		tw.mounts[path.Clean(m)] = true
	}
	if err := packDir(tw, dir, ""); err != nil {
		return err
	}
	return tw.Close()
}

// mount writes an empty directory or file in place of a mount.
func (tw tarWriter) mount(name string, dir bool) error {
	h := &tar.Header{Format: tar.FormatPAX, Typeflag: tar.TypeReg, Name: name, Mode: 0o644}
	if dir {
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, name+"/", 0o755
	}
	if err := tw.WriteHeader(h); err != nil || !dir {
		return err
	}
	return fs.SkipDir
}

// entry is a single file, opened without its content.
type entry struct {
	dir, name string
	root, f   *os.File
}

func packOne(tw tarWriter, e entry, info fs.FileInfo, as string) error {
	link := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(e.f.Fd()), "", buf)
		if err != nil {
			return &fs.PathError{Op: "readlink", Path: e.name, Err: err}
		}
		link = string(buf[:n])
	}
	return pack(tw, as, info, link, func() (*os.File, error) {
		return beneath.In(e.root, path.Join(e.dir, e.name), unix.O_RDONLY|unix.O_NONBLOCK, 0)
	})
}

// packDir packs an open directory with all that is in it.
func packDir(tw tarWriter, dir *os.File, as string) error {
	root, err := beneath.RootIn(dir, ".")
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return fs.WalkDir(root.FS(), ".", func(p string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && p != "." {
			return nil // it was removed meanwhile
		}
		if err != nil {
			return err
		}
		info, err := root.Lstat(p)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if tw.mounts["/"+p] || tw.mounts != nil && info.IsDir() && device(info) != tw.device {
			return tw.mount(path.Join(as, p), info.IsDir())
		}
		link := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if link, err = root.Readlink(p); err != nil {
				return err
			}
		}
		return pack(tw, path.Join(as, p), info, link, func() (*os.File, error) {
			return root.OpenFile(p, unix.O_RDONLY|unix.O_NONBLOCK, 0)
		})
	})
}

// pack writes one entry. content opens the file that info tells of.
func pack(tw tarWriter, name string, info fs.FileInfo, link string, content func() (*os.File, error)) error {
	if info.Mode()&fs.ModeSocket != 0 {
		return nil
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Format = tar.FormatPAX // others round times
	// The names of users are those of the node, and the container has others.
	h.Name, h.Uname, h.Gname, h.AccessTime, h.ChangeTime = name, "", "", time.Time{}, time.Time{}
	if tw.ids.Mapped() {
		h.Uid, h.Gid = tw.ids.inside(h.Uid, h.Gid)
		h.Mode &^= unix.S_ISUID | unix.S_ISGID
	}
	if info.IsDir() {
		h.Name += "/"
	}
	if !info.Mode().IsRegular() {
		return tw.WriteHeader(h)
	}
	f, err := content()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	now, err := f.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(info, now) {
		return nil // another file has taken its place
	}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(tw, io.LimitReader(f, h.Size))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	_, err = io.CopyN(tw, zeros{}, h.Size-n)
	return err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
