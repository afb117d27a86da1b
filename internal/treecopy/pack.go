package treecopy

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
)

// Pack writes the file or tree at p in root as a tar; every name begins with as, also if it is ".". Sockets are left
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
	tw := &tarWriter{Writer: tar.NewWriter(w), ids: ids}
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
	ids IDs
	// The rest is for a whole root.
	whole   bool
	emptied map[string]bool   // absolute paths of files that have no content in the tar
	linked  map[fileID]string // the first names of files with several
}

// fileID identifies a file on the node.
type fileID struct{ device, inode uint64 }

// PackRoot writes the whole root as a tar, as Pack does, and with hard links and extended attributes. Plain files at the paths
// of emptied are written without their content. Nothing may be mounted in the root: PackRoot cannot know it.
func PackRoot(w io.Writer, root *os.File, emptied []string, ids IDs) error {
	dir, err := open(root, "/", false)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	tw := &tarWriter{tar.NewWriter(w), ids, true, map[string]bool{}, map[fileID]string{}}
	for _, p := range emptied {
		tw.emptied[path.Clean(p)] = true
	}
	if err := packDir(tw, dir, ""); err != nil {
		return err
	}
	return tw.Close()
}

// entry is a single file, opened without its content.
type entry struct {
	dir, name string
	root, f   *os.File
}

func packOne(tw *tarWriter, e entry, info fs.FileInfo, as string) error {
	link := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		var err error
		if link, err = readlink(e.f); err != nil {
			return err
		}
	}
	return pack(tw, as, info, link, func() (*os.File, error) {
		return beneath.In(e.root, path.Join(e.dir, e.name), unix.O_RDONLY|unix.O_NONBLOCK, 0)
	})
}

// packDir packs an open directory with all that is in it.
func packDir(tw *tarWriter, dir *os.File, as string) error {
	root, err := beneath.RootIn(dir, ".")
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return tw.tree(root, ".", as)
}

// tree packs the file at p in root, and all that is in it if it is a directory. fs.WalkDir would refuse names that are not UTF-8.
func (tw *tarWriter) tree(root *os.Root, p, as string) error {
	info, err := root.Lstat(p)
	if errors.Is(err, fs.ErrNotExist) && p != "." {
		return nil // it was removed meanwhile
	}
	if err != nil {
		return err
	}
	link := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if link, err = root.Readlink(p); err != nil {
			return err
		}
	}
	name := path.Join(as, p)
	if as == "." && name != "." {
		name = "./" + name
	}
	err = pack(tw, name, info, link, func() (*os.File, error) {
		return root.OpenFile(p, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	})
	if err != nil || !info.IsDir() {
		return err
	}
	names, err := children(root, p, info)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := tw.tree(root, path.Join(p, name), as); err != nil {
			return err
		}
	}
	return nil
}

// children returns the names in the directory at p, sorted. There are none if it is no longer the directory of info.
func children(root *os.Root, p string, info fs.FileInfo) ([]string, error) {
	dir, err := root.OpenFile(p, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) && p != "." {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	if now, err := dir.Stat(); err != nil || !os.SameFile(info, now) {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// pack writes one entry. content opens the file that info describes.
func pack(tw *tarWriter, name string, info fs.FileInfo, link string, content func() (*os.File, error)) error {
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
	if !info.Mode().IsRegular() && (!tw.whole || !info.IsDir()) {
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
	if tw.whole {
		if err := tw.attributes(h, f); err != nil {
			return err
		}
		if tw.emptied["/"+name] {
			h.Size = 0
		} else if tw.link(h, info) {
			return tw.WriteHeader(h)
		}
	}
	if err := tw.WriteHeader(h); err != nil || info.IsDir() {
		return err
	}
	n, err := io.Copy(tw, io.LimitReader(f, h.Size))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	_, err = io.CopyN(tw, zeros{}, h.Size-n)
	return err
}

// link makes a header a hard link if the tar has the file already. Otherwise it notes the file's name.
func (tw *tarWriter) link(h *tar.Header, info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() || st.Nlink < 2 {
		return false
	}
	id := fileID{st.Dev, st.Ino}
	first, ok := tw.linked[id]
	if !ok {
		tw.linked[id] = h.Name
		return false
	}
	h.Typeflag, h.Linkname, h.Size, h.PAXRecords = tar.TypeLink, first, 0, nil
	return true
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
