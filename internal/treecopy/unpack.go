package treecopy

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/weaken"
)

// Owners selects the owners of unpacked files.
type Owners int

// The values of Owners.
const (
	// Mine are files of the process that unpacks.
	Mine Owners = iota
	// Theirs uses the tar's owners.
	Theirs
)

// unpacker is one run of Unpack.
type unpacker struct {
	root   *os.File
	to     Target
	owners Owners
	ids    IDs
	dirs   []made
}

// made is a directory that was made, which gets its mode and time at the end: until then files are
// put into it.
type made struct {
	path string
	mode fs.FileMode
	when time.Time
}

// Unpack unpacks a tar. Existing files are replaced, directories are kept, and neither replaces the
// other. Devices are left out. The tar may come from an attacker: its names are resolved as those of a
// process with root as its root directory. Its owners are those of a container with these ids.
func Unpack(r io.Reader, root *os.File, to Target, owners Owners, ids IDs) error {
	u := &unpacker{root: root, to: to, owners: owners, ids: ids}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("read tar: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		if err != nil {
			return fmt.Errorf("read tar: %w", err)
		}
		name, ok := u.name(h.Name)
		if !ok {
			continue
		}
		if err := u.one(tr, h, name); err != nil {
			return fmt.Errorf("unpack %q: %w", h.Name, classed(err))
		}
	}
	for i := len(u.dirs) - 1; i >= 0; i-- {
		if err := u.finish(u.dirs[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("unpack %q: %w", u.dirs[i].path, classed(err))
		}
	}
	// Read the bytes behind the end of the archive, so that its sender is not blocked.
	_, err := io.Copy(io.Discard, r)
	return err
}

// name returns where in the root an entry of the tar goes; false is nowhere.
func (u *unpacker) name(name string) (string, bool) {
	if strings.ContainsRune(name, 0) {
		return "", false
	}
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	first, rest, _ := strings.Cut(name, "/")
	switch {
	case u.to.Strip:
		name = rest
	case u.to.Name != "":
		name = path.Join(u.to.Name, rest)
	default:
		name = path.Join(first, rest)
	}
	return path.Join(u.to.At, name), name != "" && name != "."
}

// parent opens the directory of p, and makes it where it is missing.
func (u *unpacker) parent(p string) (*os.Root, error) {
	dir := path.Dir(p)
	root, err := beneath.RootIn(u.root, dir)
	if !errors.Is(err, fs.ErrNotExist) || dir == p || dir == "." {
		return root, err
	}
	above, err := u.parent(dir)
	if err != nil {
		return nil, err
	}
	err = above.Mkdir(path.Base(dir), 0o755)
	_ = above.Close()
	if err != nil {
		return nil, err
	}
	return beneath.RootIn(u.root, dir)
}

func (u *unpacker) one(tr io.Reader, h *tar.Header, p string) error {
	if strings.Count(p, "/") > maxDepth {
		return unix.ENAMETOOLONG
	}
	in, err := u.parent(p)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	base := path.Base(p)
	switch h.Typeflag {
	case tar.TypeDir:
		return u.dir(in, h, p)
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.file(tr, in, h, base)
	case tar.TypeSymlink:
		if err := replace(in, base); err != nil {
			return err
		}
		if err := in.Symlink(h.Linkname, base); err != nil {
			return err
		}
		return u.own(in, h, base)
	case tar.TypeLink:
		return u.link(in, h, base)
	case tar.TypeFifo:
		if err := replace(in, base); err != nil {
			return err
		}
		dir, err := in.Open(".")
		if err != nil {
			return err
		}
		defer func() { _ = dir.Close() }()
		if err := unix.Mkfifoat(int(dir.Fd()), base, uint32(h.FileInfo().Mode().Perm())); err != nil {
			return err
		}
		return u.own(in, h, base)
	case tar.TypeChar, tar.TypeBlock, tar.TypeXGlobalHeader:
		return nil
	}
	return fmt.Errorf("an entry of type %q: %w", h.Typeflag, errdefs.ErrInvalidArgument)
}

// maxDepth bounds how many directories are made for one name.
const maxDepth = 2048

// replace removes a file at the place of a new one, unless it is a directory.
func replace(in *os.Root, base string) error {
	info, err := in.Lstat(base)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		return unix.EISDIR
	}
	return in.Remove(base)
}

func (u *unpacker) dir(in *os.Root, h *tar.Header, p string) error {
	base := path.Base(p)
	err := in.Mkdir(base, 0o700)
	if errors.Is(err, fs.ErrExist) {
		if info, err := stat(u.root, p); err != nil || info.IsDir() {
			return err
		}
		return unix.ENOTDIR
	}
	if err != nil {
		return err
	}
	if err := u.own(in, h, base); err != nil {
		return err
	}
	info, err := in.Lstat(base)
	if err != nil {
		return err
	}
	u.dirs = append(u.dirs, made{p, u.mode(h, info), h.ModTime})
	return nil
}

func (u *unpacker) finish(d made) error {
	in, err := beneath.RootIn(u.root, path.Dir(d.path))
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	base := path.Base(d.path)
	if info, err := in.Lstat(base); err != nil || !info.IsDir() {
		return err // somebody has changed it
	}
	if err := in.Chmod(base, d.mode); err != nil {
		return err
	}
	return in.Chtimes(base, d.when, d.when)
}

// mode returns the mode that a file or directory gets. The tar's bits setuid and setgid are of use
// to the owner and the group that the tar names, and are left out when the file has others: a user's
// setuid program must not become root's. The sticky bit has no meaning for files and is left out; a
// directory keeps it, because it only removes permissions.
func (u *unpacker) mode(h *tar.Header, made fs.FileInfo) fs.FileMode {
	m := h.FileInfo().Mode()
	mode := m.Perm()
	if m.IsDir() {
		mode |= m & fs.ModeSticky
	}
	st, ok := made.Sys().(*syscall.Stat_t)
	if weaken.Off(weaken.CopiedModes) {
		return mode | m&(fs.ModeSetuid|fs.ModeSetgid)
	}
	if !ok {
		return mode
	}
	uid, gid := u.ids.inside(int(st.Uid), int(st.Gid))
	if uid != h.Uid {
		return mode
	}
	mode |= m & fs.ModeSetuid
	if gid == h.Gid {
		mode |= m & fs.ModeSetgid
	}
	return mode
}

// errOwner refuses an owner that the container's user namespace does not have.
func errOwner(h *tar.Header) error {
	return fmt.Errorf("the container's user namespace has no user %d with group %d: %w", h.Uid, h.Gid, errdefs.ErrInvalidArgument)
}

func (u *unpacker) own(in *os.Root, h *tar.Header, base string) error {
	if u.owners == Mine {
		return nil
	}
	uid, gid, ok := u.ids.Host(h.Uid, h.Gid)
	if !ok {
		return errOwner(h)
	}
	return in.Lchown(base, uid, gid)
}

func (u *unpacker) file(tr io.Reader, in *os.Root, h *tar.Header, base string) error {
	flags := unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW
	err := replace(in, base)
	if errors.Is(err, unix.EBUSY) { // something is mounted there: the file itself is written
		flags, err = unix.O_WRONLY|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK, nil
	}
	if err != nil {
		return err
	}
	f, err := in.OpenFile(base, flags, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(err, unix.EINVAL)
	}
	if _, err := io.Copy(f, tr); err != nil {
		return err
	}
	if u.owners == Theirs {
		uid, gid, ok := u.ids.Host(h.Uid, h.Gid)
		if !ok {
			return errOwner(h)
		}
		if err := f.Chown(uid, gid); err != nil {
			return err
		}
	}
	info, err := f.Stat() // with the owner that it has by now
	if err != nil {
		return err
	}
	if err := f.Chmod(u.mode(h, info)); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return in.Chtimes(base, h.ModTime, h.ModTime)
}

// link makes a hard link to an entry that came before.
func (u *unpacker) link(in *os.Root, h *tar.Header, base string) error {
	name, ok := u.name(h.Linkname)
	if !ok {
		return unix.EINVAL
	}
	from, err := beneath.In(u.root, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	if info, err := from.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(err, unix.EPERM)
	}
	dir, err := in.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	var have, want unix.Stat_t
	if unix.Fstatat(int(dir.Fd()), base, &have, unix.AT_SYMLINK_NOFOLLOW) == nil && unix.Fstat(int(from.Fd()), &want) == nil && have.Ino == want.Ino && have.Dev == want.Dev {
		return nil // it is the same file already
	}
	if err := replace(in, base); err != nil {
		return err
	}
	return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", from.Fd()), int(dir.Fd()), base, unix.AT_SYMLINK_FOLLOW)
}
