// Package programs keeps images that are one file each: a program, whose name is the digest of its
// content.
//
// It must not know what a program is, nor who runs it. Start at Store.
package programs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// prefix begins each name, before 64 lower-case hex digits.
const prefix = "sha256:"

// temporary begins the names of files that are still written.
const temporary = ".import-"

// maxSize bounds one program.
const maxSize = 4 << 30

// IsName reports whether s has the form of a program's name.
func IsName(s string) bool {
	digits, ok := strings.CutPrefix(s, prefix)
	return ok && len(digits) == hex.EncodedLen(sha256.Size) && strings.Trim(digits, "0123456789abcdef") == ""
}

// Program is one of a store's.
type Program struct {
	Name string
	Size int64
	Time time.Time // when it was put there
}

// Store is a directory that only root may write to. Files may also be put there by hand. A nil
// Store is empty.
type Store struct {
	dir string

	mu    sync.Mutex // guards known
	known map[string]stamp
}

// stamp tells one content of a file from a later one.
type stamp struct {
	dev, ino, size uint64
	changed        unix.Timespec
}

// Open makes the directory if it is not there, and removes what an import has left that was cut
// short.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("programs: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("programs: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), temporary) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("programs: remove an unfinished import: %w", err)
	}
	return &Store{dir: dir, known: map[string]stamp{}}, nil
}

// Dir returns the directory.
func (s *Store) Dir() string { return s.dir }

// Get returns one program. NotFound.
func (s *Store) Get(name string) (Program, error) {
	missing := fmt.Errorf("program %s: %w", name, errdefs.ErrNotFound)
	if s == nil || !IsName(name) {
		return Program{}, missing
	}
	st, err := os.Lstat(filepath.Join(s.dir, name))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !st.Mode().IsRegular() {
		return Program{}, missing
	}
	if err != nil {
		return Program{}, fmt.Errorf("program %s: %w", name, err)
	}
	return Program{Name: name, Size: st.Size(), Time: st.ModTime()}, nil
}

// Has reports whether there is a program of that name.
func (s *Store) Has(name string) bool {
	_, err := s.Get(name)
	return err == nil
}

// List returns all programs, by name. Files that are none are left out.
func (s *Store) List() ([]Program, error) {
	if s == nil {
		return nil, nil
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list programs: %w", err)
	}
	var all []Program
	for _, e := range entries {
		if p, err := s.Get(e.Name()); err == nil {
			all = append(all, p)
		}
	}
	return all, nil
}

// Verify reads a program and compares its content with its name. A file that has not changed since
// is not read again. DataLoss when the two differ; FailedPrecondition when the file cannot be executed.
func (s *Store) Verify(ctx context.Context, name string) error {
	if _, err := s.Get(name); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(s.dir, name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("program %s: %w", name, err)
	}
	defer func() { _ = f.Close() }()
	before, mode, err := stampOf(f)
	if err != nil {
		return fmt.Errorf("program %s: %w", name, err)
	}
	if mode&unix.S_IFMT != unix.S_IFREG || mode&0o111 == 0 {
		return fmt.Errorf("program %s: it is no executable file, run chmod 0555 on it: %w", name, errdefs.ErrFailedPrecondition)
	}
	s.mu.Lock()
	known := s.known[name] == before
	s.mu.Unlock()
	if known {
		return nil
	}
	h := sha256.New()
	if _, err := copyAll(ctx, h, f); err != nil {
		return fmt.Errorf("program %s: %w", name, err)
	}
	if got := prefix + hex.EncodeToString(h.Sum(nil)); got != name {
		return fmt.Errorf("program %s: its content is that of %s: %w", name, got, errdefs.ErrDataLoss)
	}
	if after, _, err := stampOf(f); err != nil || after != before {
		return fmt.Errorf("program %s: it was changed while it was read: %w", name, errdefs.ErrUnavailable)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[name] = before
	return nil
}

func stampOf(f *os.File) (stamp, uint32, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return stamp{}, 0, os.NewSyscallError("fstat", err)
	}
	return stamp{dev: st.Dev, ino: st.Ino, size: uint64(st.Size), changed: st.Ctim}, st.Mode, nil
}

// Import stores what r has and returns its name. It is success when that is there already.
func (s *Store) Import(ctx context.Context, r io.Reader) (_ Program, err error) {
	fail := func(err error) (Program, error) { return Program{}, fmt.Errorf("import program: %w", err) }
	if s == nil {
		return fail(fmt.Errorf("this node keeps no programs, set face.cri.alpha.enabled: %w", errdefs.ErrFailedPrecondition))
	}
	f, err := os.CreateTemp(s.dir, temporary)
	if err != nil {
		return fail(err)
	}
	defer func() {
		_ = f.Close()
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	h := sha256.New()
	n, err := copyAll(ctx, io.MultiWriter(f, h), r)
	if err == nil && n == 0 {
		err = fmt.Errorf("it is empty: %w", errdefs.ErrInvalidArgument)
	}
	if err == nil {
		err = errors.Join(f.Chmod(0o555), f.Sync())
	}
	if err != nil {
		return fail(err)
	}
	name := prefix + hex.EncodeToString(h.Sum(nil))
	if err = os.Rename(f.Name(), filepath.Join(s.dir, name)); err != nil {
		return fail(err)
	}
	if err = syncDir(s.dir); err != nil {
		return fail(err)
	}
	return s.Get(name)
}

// Remove removes a program. What runs of it keeps its file. NotFound.
func (s *Store) Remove(name string) error {
	if _, err := s.Get(name); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(s.dir, name)); err != nil {
		return fmt.Errorf("remove program %s: %w", name, err)
	}
	s.mu.Lock()
	delete(s.known, name)
	s.mu.Unlock()
	return syncDir(s.dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// copyAll copies until r ends or ctx does.
func copyAll(ctx context.Context, w io.Writer, r io.Reader) (n int64, err error) {
	buf := make([]byte, 256<<10)
	for {
		if ctx.Err() != nil {
			return n, context.Cause(ctx)
		}
		k, err := r.Read(buf)
		if k > 0 {
			if n += int64(k); n > maxSize {
				return n, fmt.Errorf("larger than %d bytes: %w", int64(maxSize), errdefs.ErrInvalidArgument)
			}
			if _, err := w.Write(buf[:k]); err != nil {
				return n, err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil:
			return n, err
		}
	}
}
