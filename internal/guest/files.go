package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/invalid"
)

// Shared is the directory that the host shares with the guest, or fills file by file.
const Shared = "/run/kata-containers/shared/containers"

// partSuffix ends the name of an incomplete file. The whole name stands before it, so that two
// files never share one.
const partSuffix = ".longshore-part"

// File is a part of a file, a directory or a symbolic link below Shared.
type File struct {
	Path string // absolute, below Shared
	// Mode is the type and the permissions, as stat(2) has them.
	Mode uint32
	// DirMode are the permissions of directories above that are missing.
	DirMode  uint32
	UID, GID int
	// Size is that of the whole file; Offset is where Data belongs in it. The first part
	// has offset 0. A link's Data is its target.
	Size, Offset int64
	Data         []byte
}

// CopyFile writes a part of a file, which appears under its name once it is whole. No link
// on the way is followed. It returns InvalidArgument for a path that is not below Shared
// and for parts that do not fit, FailedPrecondition for a part without those before it.
func (m *Machine) CopyFile(f File) error {
	rel, ok := beneath.Rel(m.shared, f.Path)
	if !ok || rel == "." || path.Clean(f.Path) != f.Path {
		return invalid.Errorf("copy file: %q is not below %s", f.Path, m.shared)
	}
	switch end := f.Offset + int64(len(f.Data)); {
	case f.Size < 0 || f.Offset < 0 || end < 0:
		return invalid.Errorf("copy file %s: a size or offset below 0", f.Path)
	case f.Mode&unix.S_IFMT == unix.S_IFREG && end > f.Size:
		return invalid.Errorf("copy file %s: the part ends at %d, behind the file's end at %d", f.Path, end, f.Size)
	}
	if err := os.MkdirAll(m.shared, 0o750); err != nil {
		return err
	}
	dir, name := path.Split(rel)
	if err := m.copyInto(path.Clean(dir), name, f); err != nil {
		return fmt.Errorf("copy file %s: %w", f.Path, err)
	}
	return nil
}

// copyInto writes f as name in a directory below Shared.
func (m *Machine) copyInto(dir, name string, f File) error {
	if dir != "." {
		made, err := beneath.MkdirAll(m.shared, dir, fs.FileMode(f.DirMode)&fs.ModePerm)
		if err != nil {
			return err
		}
		err = unix.Fchownat(int(made.Fd()), "", f.UID, f.GID, unix.AT_EMPTY_PATH)
		_ = made.Close() // only named something
		if err != nil {
			return fmt.Errorf("owner of the directory: %w", err)
		}
	}
	in, err := beneath.Root(m.shared, dir)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	switch f.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return copyDir(in, name, f)
	case unix.S_IFLNK:
		return copyLink(in, name, f)
	case unix.S_IFREG:
		return copyPart(in, name, f)
	default:
		return invalid.Errorf("mode %o: a file, a directory or a link is wanted", f.Mode)
	}
}

func copyDir(in *os.Root, name string, f File) error {
	if err := in.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	st, err := in.Lstat(name)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return invalid.Errorf("there is something else than a directory")
	}
	if err := in.Lchown(name, f.UID, f.GID); err != nil {
		return err
	}
	return in.Chmod(name, mode(f.Mode))
}

func copyLink(in *os.Root, name string, f File) error {
	if len(f.Data) == 0 || f.Offset != 0 {
		return invalid.Errorf("a link's target comes in one part")
	}
	// An existing file keeps the name until the link can replace it.
	part := name + partSuffix
	if err := in.RemoveAll(part); err != nil {
		return err
	}
	if err := in.Symlink(string(f.Data), part); err != nil {
		return err
	}
	err := in.Lchown(part, f.UID, f.GID)
	if err == nil {
		err = appear(in, part, name)
	}
	if err != nil {
		err = errors.Join(err, in.RemoveAll(part))
	}
	return err
}

// appear gives a file or a link its name, which a directory may have.
func appear(in *os.Root, part, name string) error {
	if st, err := in.Lstat(name); err == nil && st.IsDir() {
		if err := in.RemoveAll(name); err != nil {
			return err
		}
	}
	return in.Rename(part, name)
}

func copyPart(in *os.Root, name string, f File) error {
	part := name + partSuffix
	flags := os.O_WRONLY
	if f.Offset == 0 {
		if err := in.RemoveAll(part); err != nil {
			return err
		}
		flags |= os.O_CREATE | os.O_EXCL
	}
	w, err := in.OpenFile(part, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if errors.Is(err, fs.ErrNotExist) && f.Offset > 0 {
		return fmt.Errorf("the part at %d comes before the first: %w", f.Offset, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return err
	}
	whole, err := writePart(w, f)
	if err = errors.Join(err, w.Close()); errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return errors.Join(err, in.Remove(part)) // it would keep the disk full
	}
	if err != nil || !whole {
		return err
	}
	return appear(in, part, name)
}

// writePart writes a part, and reports whether it was the last.
func writePart(w *os.File, f File) (whole bool, err error) {
	st, err := w.Stat()
	if err != nil {
		return false, err
	}
	if !st.Mode().IsRegular() { // somebody else has put it there
		return false, fmt.Errorf("the part before this one has become something else than a file: %w", errdefs.ErrFailedPrecondition)
	}
	if f.Offset > st.Size() {
		return false, fmt.Errorf("the part at %d leaves a gap after %d: %w", f.Offset, st.Size(), errdefs.ErrFailedPrecondition)
	}
	if _, err := w.WriteAt(f.Data, f.Offset); err != nil {
		return false, err
	}
	if f.Offset+int64(len(f.Data)) < f.Size {
		return false, nil
	}
	if err := w.Chown(f.UID, f.GID); err != nil {
		return false, err
	}
	return true, w.Chmod(mode(f.Mode))
}

// mode is the permissions of a mode of stat(2).
func mode(m uint32) fs.FileMode {
	out := fs.FileMode(m) & fs.ModePerm
	for bit, flag := range map[uint32]fs.FileMode{unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky} {
		if m&bit != 0 {
			out |= flag
		}
	}
	return out
}

// Usage is how full a file system is.
type Usage struct {
	Bytes, BytesFree, BytesUsed, Inodes, InodesFree uint64
}

// VolumeUsage returns how full the file system at a path of the host's choice is. Free is the space
// for ordinary users.
func (m *Machine) VolumeUsage(at string) (Usage, error) {
	f, err := openPlace(at, unix.O_PATH)
	if err != nil {
		return Usage{}, fmt.Errorf("usage of %s: %w", clip(at), err)
	}
	defer func() { _ = f.Close() }()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return Usage{}, fmt.Errorf("usage of %s: %w", at, err)
	}
	block := uint64(st.Bsize)
	return Usage{Bytes: st.Blocks * block, BytesFree: st.Bavail * block, BytesUsed: (st.Blocks - st.Bfree) * block, Inodes: st.Files, InodesFree: st.Ffree}, nil
}
