// Package mirror keeps a copy of a small directory, or of one file, on another file
// system.
//
// It is for a host's shares: the guest's kernel gets no events of changes there, and programs that
// wait for them see those of the copy. Kubernetes changes such a directory (a ConfigMap's, a
// Secret's) by giving one link another target. The copy changes in the same way: what is new is
// copied whole, then links change, then what is gone is removed, so that a reader sees all of the
// old content or all of the new one. Start at Sync.
package mirror

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The limits of a mirror: entries, the directory itself being one, and bytes in its files and
// links.
const (
	MaxEntries = 16
	MaxBytes   = 1 << 20
)

var (
	// ErrTooLarge is a directory, or a file, that is more than a mirror takes.
	ErrTooLarge = errors.New("too large to be copied")
	// ErrBusy is a directory that changes while it is copied; the next Sync finds it settled.
	ErrBusy = errors.New("it changes while it is copied")
)

// Mirror is a copy of one directory or file. It is for one caller at a time.
type Mirror struct {
	from, to string
	open     func(dir string) (*os.Root, error)
	file     bool
	last     map[string]entry // as it was copied
	made     map[string]bool  // the possible entries of the copy
}

// entry is the state of a file, directory or link.
type entry struct {
	mode     fs.FileMode
	uid, gid uint32
	inode    uint64
	size     int64
	modified time.Time
	changed  syscall.Timespec
	target   string // of a link
}

// New returns a mirror that has copied nothing. Open opens a directory of the original's. The
// directory or file to must be in a directory without other writers; a file is written in place,
// because a mount of it would not see another one.
func New(from, to string, open func(dir string) (*os.Root, error)) (*Mirror, error) {
	above, err := open(filepath.Dir(from))
	if err != nil {
		return nil, err
	}
	defer func() { _ = above.Close() }()
	st, err := above.Lstat(filepath.Base(from))
	if err != nil {
		return nil, err
	}
	if !st.IsDir() && !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is neither a directory nor a plain file", from)
	}
	return &Mirror{from: from, to: to, open: open, file: !st.IsDir(), made: map[string]bool{}}, nil
}

// Sync updates the copy, and reports whether that changed it. After an error the next Sync
// continues.
func (m *Mirror) Sync() (changed bool, err error) {
	dir := m.from
	if m.file {
		dir = filepath.Dir(m.from)
	}
	from, err := m.open(dir)
	if err != nil {
		return false, err
	}
	defer func() { _ = from.Close() }()
	now, err := m.scan(from)
	if err != nil || m.last != nil && maps.Equal(now, m.last) {
		return false, err
	}
	// A directory that is read while its link changes may lack the link's target.
	again, err := m.scan(from)
	if err != nil {
		return false, err
	}
	if !maps.Equal(now, again) {
		return false, ErrBusy
	}
	if m.file {
		err = m.writeFile(from, now)
	} else {
		err = m.apply(from, now)
	}
	if err != nil {
		return false, err
	}
	m.last = now
	return true, nil
}

// scan returns the entries to copy, by their names in from.
func (m *Mirror) scan(from *os.Root) (map[string]entry, error) {
	s := scanner{root: from, found: map[string]entry{}}
	first := "."
	if m.file {
		first = filepath.Base(m.from)
	}
	if err := s.add(first); err != nil {
		return nil, err
	}
	return s.found, nil
}

type scanner struct {
	root  *os.Root
	found map[string]entry
	bytes int64
}

func (s *scanner) add(name string) error {
	st, err := s.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) && name != "." {
		return ErrBusy
	}
	if err != nil {
		return err
	}
	e := entryOf(st)
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		if e.target, err = s.root.Readlink(name); err != nil {
			return fmt.Errorf("%w: %w", ErrBusy, err)
		}
		s.bytes += int64(len(e.target))
	case st.Mode().IsRegular():
		s.bytes += st.Size()
	case !st.IsDir():
		return nil // a socket, a FIFO or a device has no content
	}
	if s.found[name] = e; len(s.found) > MaxEntries || s.bytes > MaxBytes {
		return ErrTooLarge
	}
	if !st.IsDir() {
		return nil
	}
	names, err := s.names(name)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := s.add(path.Join(name, n)); err != nil {
			return err
		}
	}
	return nil
}

// names lists a directory, up to one name more than a mirror takes.
func (s *scanner) names(dir string) ([]string, error) {
	f, err := s.root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	names, err := f.Readdirnames(MaxEntries + 1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

func entryOf(st fs.FileInfo) entry {
	e := entry{mode: st.Mode(), size: st.Size(), modified: st.ModTime()}
	if st.IsDir() { // its entries are compared by themselves
		e.size, e.modified = 0, time.Time{}
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		e.uid, e.gid, e.inode = sys.Uid, sys.Gid, sys.Ino
		if !st.IsDir() {
			e.changed = sys.Ctim
		}
	}
	return e
}

// apply makes a directory's copy equal to now.
func (m *Mirror) apply(from *os.Root, now map[string]entry) error {
	if err := os.Mkdir(m.to, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	to, err := os.OpenRoot(m.to)
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }()
	names := slices.Sorted(maps.Keys(now)) // a directory comes before its entries
	for _, kind := range []func(fs.FileMode) bool{fs.FileMode.IsDir, fs.FileMode.IsRegular, isLink} {
		for _, name := range names {
			e := now[name]
			if !kind(e.mode) || m.last[name] == e {
				continue
			}
			m.made[name] = true
			if err := put(from, to, name, e); err != nil {
				return fmt.Errorf("copy %s: %w", name, err)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.made)) {
		if _, there := now[name]; there {
			continue
		}
		if !replaced(now, name) {
			if err := to.RemoveAll(name); err != nil {
				return fmt.Errorf("remove %s: %w", name, err)
			}
		}
		delete(m.made, name)
	}
	return nil
}

// replaced reports whether a link or a file has replaced a parent directory of name; through a link
// name would be another file.
func replaced(now map[string]entry, name string) bool {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if e, there := now[dir]; there && !e.mode.IsDir() {
			return true
		}
	}
	return false
}

func isLink(m fs.FileMode) bool { return m&fs.ModeSymlink != 0 }

// put makes one entry of a copy.
func put(from, to *os.Root, name string, e entry) error {
	if e.mode.IsDir() {
		if st, err := to.Lstat(name); err == nil && !st.IsDir() {
			if err := to.Remove(name); err != nil {
				return err
			}
		}
		if err := to.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return setAttributes(to, name, e)
	}
	temporary := path.Join(path.Dir(name), ".new-"+strconv.FormatUint(rand.Uint64(), 36)) //nolint:gosec // no secret
	// Most often it has its name then.
	defer func() { _ = to.Remove(temporary) }()
	if isLink(e.mode) {
		if err := to.Symlink(e.target, temporary); err != nil {
			return err
		}
		if err := to.Lchown(temporary, int(e.uid), int(e.gid)); err != nil {
			return err
		}
	} else if err := copyFile(from, to, name, temporary, e); err != nil {
		return err
	}
	if st, err := to.Lstat(name); err == nil && st.IsDir() {
		if err := to.RemoveAll(name); err != nil {
			return err
		}
	}
	return to.Rename(temporary, name)
}

// setAttributes gives a file or directory its owner and its mode.
func setAttributes(to *os.Root, name string, e entry) error {
	if err := to.Lchown(name, int(e.uid), int(e.gid)); err != nil {
		return err
	}
	return to.Chmod(name, e.mode&(fs.ModePerm|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky))
}

func copyFile(from, to *os.Root, name, as string, e entry) (err error) {
	out, err := to.OpenFile(as, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = content(from, name, e, out)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := setAttributes(to, as, e); err != nil {
		return err
	}
	return to.Chtimes(as, e.modified, e.modified)
}

// content writes a file's content, and fails when that is not the one that e is of.
func content(from *os.Root, name string, e entry, out io.Writer) error {
	in, err := from.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	defer func() { _ = in.Close() }()
	if _, err := io.Copy(out, io.LimitReader(in, MaxBytes)); err != nil {
		return err
	}
	st, err := in.Stat()
	if err != nil {
		return err
	}
	if entryOf(st) != e {
		return ErrBusy
	}
	return nil
}

// writeFile makes the copy of a file equal to now.
func (m *Mirror) writeFile(from *os.Root, now map[string]entry) error {
	name := filepath.Base(m.from)
	e, ok := now[name]
	if !ok || !e.mode.IsRegular() {
		return fmt.Errorf("%s is no plain file any more", m.from)
	}
	var text strings.Builder
	if err := content(from, name, e, &text); err != nil {
		return err
	}
	f, err := os.OpenFile(m.to, os.O_WRONLY|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	// Without room for all of it the last copy stays whole.
	if err := reserve(f, int64(text.Len())); err != nil {
		return err
	}
	if _, err := f.WriteString(text.String()); err != nil {
		return err
	}
	if err := f.Truncate(int64(text.Len())); err != nil {
		return err
	}
	if err := f.Chown(int(e.uid), int(e.gid)); err != nil {
		return err
	}
	return f.Chmod(e.mode.Perm())
}

// reserve makes sure that size bytes can be written to a file, where its file system can tell. It does
// not change the file's size.
func reserve(f *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("reserve %d bytes: %w", size, err)
	}
	return nil
}
