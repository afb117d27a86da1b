package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/invalid"
)

// A place is a path of the host's requests. It may be in a directory that a container has, too, and
// may exchange for a link at any time. So a place is opened without following links, and all work
// is done on the open file.

// splitPlace splits a place into its first component, about which only the machine's image
// decides, and the rest.
func splitPlace(at string) (base, rel string, err error) {
	if !filepath.IsAbs(at) || filepath.Clean(at) != at {
		return "", "", invalid.Errorf("path %q: an absolute path without '.' and '..' is wanted", clip(at))
	}
	if at == "/" {
		return "/", ".", nil
	}
	first, rest, deep := strings.Cut(at[1:], "/")
	if !deep {
		return "/", first, nil
	}
	return "/" + first, rest, nil
}

// clip shortens foreign text, for an error's text.
func clip(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}

// openPlace opens the file at a place.
func openPlace(at string, flags int) (*os.File, error) {
	base, rel, err := splitPlace(at)
	if err != nil {
		return nil, err
	}
	return beneath.Open(base, rel, flags, 0)
}

// place is a directory or a file, open (O_PATH) together with the directory that it is in.
type place struct {
	at      string
	dir, on *os.File
}

func (p *place) close() {
	_ = p.dir.Close() // they only name something
	_ = p.on.Close()
}

// makePlace makes a directory with those above it.
func makePlace(at string, mode fs.FileMode) (*place, error) {
	name := filepath.Base(at)
	dir, err := makeIn(at, func(dir *os.File) error {
		if err := unix.Mkdirat(int(dir.Fd()), name, uint32(mode.Perm())); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("make directory %s: %w", clip(at), err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	on, err := beneath.Child(dir, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return &place{at: at, dir: dir, on: on}, nil
}

// makeFile makes an empty file with the directories above it, unless it exists.
func makeFile(at string) (*place, error) {
	name := filepath.Base(at)
	dir, err := makeIn(at, func(dir *os.File) error {
		made, err := beneath.Child(dir, name, os.O_CREATE|os.O_RDONLY|unix.O_NONBLOCK, 0o644)
		if err == nil {
			_ = made.Close() // only made
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	on, err := beneath.Child(dir, name, unix.O_PATH, 0)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return &place{at: at, dir: dir, on: on}, nil
}

// makeIn makes a place by a function that gets the directory of the place, open (O_PATH), and returns the directory. It
// makes the directory again when the end of another storage removes it meanwhile.
func makeIn(at string, add func(dir *os.File) error) (dir *os.File, err error) {
	for range maxLooks {
		if dir, err = makeParent(at); err == nil {
			if err = add(dir); err == nil {
				return dir, nil
			}
			_ = dir.Close() // only named something
		}
		if !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	return nil, err
}

// makeParent makes the directory of a place, with those above it, and opens it (O_PATH).
func makeParent(at string) (*os.File, error) {
	base, rel, err := splitPlace(at)
	if err != nil {
		return nil, err
	}
	if rel == "." {
		return nil, invalid.Errorf("path %q: one below the machine's root is wanted", at)
	}
	if err := os.Mkdir(base, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return beneath.MkdirAll(base, filepath.Dir(rel), 0o755)
}

// byNumber is a path to the file f, independent of its name.
func byNumber(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// mount mounts something on a place. undo unmounts it, even if the path has changed, and removes
// the empty directory or file below it.
func (p *place) mount(source, fstype string, flags uintptr, data string) (undo func() error, err error) {
	if err := unix.Mount(source, byNumber(p.on), fstype, flags, data); err != nil {
		return nil, errors.Join(err, removeEmpty(p.at))
	}
	top, err := p.mounted()
	if err != nil {
		return nil, err
	}
	at := p.at
	return func() error {
		err := unix.Unmount(byNumber(top), unix.MNT_DETACH)
		_ = top.Close() // only named something
		if err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
		return removeEmpty(at)
	}, nil
}

// maxLooks bounds the searches for a mount while somebody renames its directory.
const maxLooks = 1000

// mounted opens the root of the mount on the place. It searches in the open directory, because
// those above may have been exchanged.
func (p *place) mounted() (top *os.File, err error) {
	below, err := mountOf(p.on)
	if err != nil {
		return nil, err
	}
	for range maxLooks {
		if top, err = beneath.Child(p.dir, filepath.Base(p.at), unix.O_PATH, 0); err != nil {
			continue
		}
		id, err := mountOf(top)
		if err == nil && (id != below || id == 0) {
			return top, nil
		}
		_ = top.Close() // only named something
	}
	return nil, fmt.Errorf("the mount of %s is not there: %w", p.at, errors.Join(err, unix.EBUSY))
}

// mountOf returns the number of the mount that f is in, 0 where the kernel does not tell.
func mountOf(f *os.File) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return 0, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return 0, nil
	}
	return st.Mnt_id, nil
}

// remountPlace changes the options of the mount at a place.
func remountPlace(at, fstype string, flags uintptr, data string) error {
	f, err := openPlace(at, unix.O_PATH)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return unix.Mount("", byNumber(f), fstype, flags|unix.MS_REMOUNT, data)
}

// removeEmpty removes an empty directory or file, the former place of a mount, and the empty directories of a container
// above it. Others stay.
func removeEmpty(at string) error {
	if filepath.Dir(at) == "/" {
		return nil // a part of the image
	}
	dir, err := openPlace(filepath.Dir(at), unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	name := filepath.Base(at)
	var st unix.Stat_t
	err = unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err != nil:
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		err = unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)
	case st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size == 0:
		err = unix.Unlinkat(int(dir.Fd()), name, 0)
	}
	if errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w", at, err)
	}
	if above := filepath.Dir(at); ofContainer(above) {
		return removeEmpty(above)
	}
	return nil
}

// containersDir has a directory for each container and, below it, the host's shares.
const containersDir = "/run/kata-containers"

// ofContainer reports whether a directory is for storages alone. Those of the sandbox and of the host's shares are not.
func ofContainer(at string) bool {
	rel, ok := beneath.Rel(containersDir, at)
	first, _, _ := strings.Cut(rel, "/")
	return ok && rel != "." && rel != "sandbox" && first != "shared"
}

// setGroup sets the group of the directory at a place, and of later files in it; -1 changes
// nothing.
func setGroup(at string, gid int) error {
	if gid < 0 {
		return nil
	}
	dir, err := openPlace(at, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if err := dir.Chown(-1, gid); err != nil {
		return err
	}
	st, err := dir.Stat()
	if err != nil {
		return err
	}
	return dir.Chmod(st.Mode() | fs.ModeSetgid)
}
