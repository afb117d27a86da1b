package compiled

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/subprocess"
)

// ChildArg is the first argument with which longshore-wasm compiles: it reads a module from its standard input, writes what comes of it to
// its standard output, and is confined to the directory that is its second argument.
const ChildArg = "compile-child"

// Bounds of a compilation and of the cache. The child limits its memory and processor time by itself, before it reads.
const (
	MaxModule    = 256 << 20 // bytes
	ChildSeconds = 60        // of the processor
	childTimeout = 3 * ChildSeconds * time.Second
	defaultLimit = 1 << 30 // bytes of all entries
	maxFailed    = 1024    // modules that are not tried again
	touchEvery   = time.Hour
	partPrefix   = ".compile-"
)

// Cache is a directory of entries. The least recently used ones are removed when there are too many.
type Cache struct {
	dir, program string
	limit        int64
	log          *slog.Logger
	// compiling is held by who compiles: one module at a time.
	compiling chan struct{}

	mu      sync.Mutex // guards build, version, sound, failed, confined
	build   identity   // of the program whose version is known
	version string
	sound   map[string]identity // entries that were checked
	failed  map[string]bool     // keys of what cannot be compiled
	// confined says by what the last child was confined.
	confined string
}

// identity tells a file from every other, and from itself before a change.
type identity struct {
	dev, ino uint64
	size     int64
	changed  unix.Timespec
}

func identityOf(st *unix.Stat_t) identity {
	return identity{uint64(st.Dev), st.Ino, st.Size, st.Ctim} //nolint:unconvert // some architectures differ
}

// Options configure a Cache.
type Options struct {
	Dir     string // absolute; it is made
	Program string // the path of longshore-wasm
	Limit   int64  // bytes of all entries; 0 is 1 GiB
	Logger  *slog.Logger
}

// New opens a cache, and removes what a compilation left that was interrupted.
func New(o Options) (*Cache, error) {
	c := &Cache{
		dir: o.Dir, program: o.Program, limit: cmp.Or(o.Limit, defaultLimit), log: o.Logger,
		compiling: make(chan struct{}, 1), sound: map[string]identity{}, failed: map[string]bool{},
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if err := ownDir(o.Dir); err != nil {
		return nil, fmt.Errorf("cache of compiled modules: %w", err)
	}
	entries, err := os.ReadDir(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("cache of compiled modules: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), partPrefix) {
			_ = os.RemoveAll(filepath.Join(o.Dir, e.Name()))
		}
	}
	return c, nil
}

// ownDir makes a directory that nobody else may write to or look into.
func ownDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("stat %s: %w", dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return fmt.Errorf("others may write to or read %s: it must be this user's own directory, with the mode 0700", dir)
	}
	return nil
}

// Key returns the key of a module's entry.
func (c *Cache) Key(module *os.File) (Key, error) {
	wazero, err := c.wazero()
	if err != nil {
		return Key{}, err
	}
	st, err := module.Stat()
	if err != nil {
		return Key{}, err
	}
	if !st.Mode().IsRegular() || st.Size() > MaxModule {
		return Key{}, fmt.Errorf("a module is a regular file of at most %d bytes", MaxModule)
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(module, 0, MaxModule)); err != nil {
		return Key{}, err
	}
	return KeyFor([sha256.Size]byte(sum.Sum(nil)), wazero), nil
}

// wazero returns the version of the program, which may be upgraded while the agent runs.
func (c *Cache) wazero() (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(c.program, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: c.program, Err: err}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if id := identityOf(&st); c.version == "" || c.build != id {
		v, err := VersionOf(c.program)
		if err != nil {
			return "", err
		}
		c.build, c.version = id, v
	}
	return c.version, nil
}

// Open returns the entry of a module, which is compiled if there is none. An error means that the module is to run without one: it says
// why, and is the same when asked again.
func (c *Cache) Open(ctx context.Context, module *os.File) (*os.File, error) {
	key, err := c.Key(module)
	if err != nil {
		return nil, err
	}
	if f := c.entry(key); f != nil {
		return f, nil
	}
	select {
	case c.compiling <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-c.compiling }()
	if f := c.entry(key); f != nil {
		return f, nil // somebody else has compiled it meanwhile
	}
	c.mu.Lock()
	failed := c.failed[key.Name()]
	c.mu.Unlock()
	if failed {
		return nil, errors.New("it could not be compiled before")
	}
	if err := c.compile(ctx, key, module); err != nil {
		if ctx.Err() == nil {
			c.fail(key)
		}
		return nil, err
	}
	if f := c.entry(key); f != nil {
		return f, nil
	}
	return nil, errors.New("what was compiled of it is not in the cache any more")
}

func (c *Cache) fail(key Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.failed) >= maxFailed {
		clear(c.failed)
	}
	c.failed[key.Name()] = true
}

// entry opens the entry of key if it is there and sound. One that is not is removed. The worker checks what it loads once more.
func (c *Cache) entry(key Key) *os.File {
	path := filepath.Join(c.dir, key.Name())
	f, err := os.OpenFile(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &st); err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0) {
		err = errors.New("it is not this user's own file")
	}
	id := identityOf(&st)
	c.mu.Lock()
	known := c.sound[key.Name()] == id
	c.mu.Unlock()
	if err == nil && !known {
		err = check(io.NewSectionReader(f, 0, st.Size), st.Size, key)
	}
	if err != nil {
		c.log.Warn("removed a compiled WebAssembly module that is not as it was written; it will be compiled again", "entry", path, "error", err)
		_ = f.Close()
		_ = os.RemoveAll(path)
		return nil
	}
	if now := time.Now(); now.Sub(time.Unix(st.Mtim.Unix())) > touchEvery {
		_ = os.Chtimes(path, now, now)
		_ = unix.Fstat(int(f.Fd()), &st)
		id = identityOf(&st)
	}
	c.mu.Lock()
	c.sound[key.Name()] = id
	c.mu.Unlock()
	return f
}

// compile has a confined child compile a module, and keeps what came of it. Preconditions: c.compiling is held.
func (c *Cache) compile(ctx context.Context, key Key, module *os.File) error {
	scratch, err := os.MkdirTemp(c.dir, partPrefix)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	out, err := os.OpenFile(filepath.Join(scratch, "out"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	child := filepath.Join(scratch, "child")
	if err := os.Mkdir(child, 0o700); err != nil {
		return err
	}
	if err := c.run(ctx, child, module, out); err != nil {
		return err
	}
	size, err := out.Seek(0, io.SeekEnd)
	if err == nil && size > MaxEntry-maxHeader-sha256.Size {
		err = fmt.Errorf("what comes of it has %d bytes", size)
	}
	if err != nil {
		return err
	}
	part := filepath.Join(scratch, "entry")
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = errors.Join(seal(f, key, io.NewSectionReader(out, 0, size), size), f.Close())
	if err == nil {
		err = os.Rename(part, filepath.Join(c.dir, key.Name()))
	}
	if err != nil {
		return err
	}
	_, err = c.remove(c.limit, func(e os.FileInfo) bool { return e.Name() != key.Name() })
	return err
}

func (c *Cache) run(ctx context.Context, dir string, module, out *os.File) error {
	ctx, cancel := context.WithTimeoutCause(ctx, childTimeout, errors.New("it takes too long"))
	defer cancel()
	cmd := subprocess.Command(ctx, c.program, ChildArg, dir)
	cmd.Env = []string{}
	cmd.Dir = dir
	in, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", module.Fd())) // with a position of its own
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	const most = 4096
	told := &subprocess.Head{Max: most}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, told
	err = subprocess.Run(ctx, cmd)
	by, text, _ := bytes.Cut(told.Bytes(), []byte("\n"))
	if err != nil {
		return fmt.Errorf("%w: %s", err, bytes.ToValidUTF8(bytes.TrimSpace(text), []byte("?")))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.confined = string(bytes.ToValidUTF8(by, []byte("?")))
	return nil
}

// Status is what is in a cache.
type Status struct {
	Entries int
	Bytes   int64
	// Confined says by what the last child was confined that compiled, "" if none has since the start.
	Confined string
}

// Status returns what is in the cache.
func (c *Cache) Status() (s Status) {
	entries, _ := os.ReadDir(c.dir)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			s.Entries++
			s.Bytes += info.Size()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Confined = c.confined
	return s
}

// Warm compiles the module at path, if there is no entry for it.
func (c *Cache) Warm(ctx context.Context, path string) error {
	module, err := os.OpenFile(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = module.Close() }()
	entry, err := c.Open(ctx, module)
	if err != nil {
		return err
	}
	return entry.Close()
}

// Prune removes the entries of all modules that are not to be kept, by SHA-256 in hexadecimal, and were not used for so long. It returns
// their size.
func (c *Cache) Prune(unused time.Duration, keep func(module string) bool) (freed uint64, err error) {
	before := time.Now().Add(-unused)
	return c.remove(0, func(e os.FileInfo) bool {
		module, ok := moduleOf(e.Name())
		return !ok || !keep(module) && !e.ModTime().After(before)
	})
}

// remove removes entries that may be, those first that were not used for the longest time, until all entries have at most limit bytes.
func (c *Cache) remove(limit int64, may func(os.FileInfo) bool) (freed uint64, err error) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return 0, err
	}
	var total int64
	var infos []os.FileInfo
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), partPrefix) {
			continue
		}
		if info, err := e.Info(); err == nil {
			total += info.Size()
			infos = append(infos, info)
		}
	}
	slices.SortFunc(infos, func(a, b os.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, info := range infos {
		if total <= limit {
			break
		}
		if !may(info) {
			continue
		}
		if e := os.RemoveAll(filepath.Join(c.dir, info.Name())); e != nil {
			err = errors.Join(err, e)
			continue
		}
		c.mu.Lock()
		delete(c.sound, info.Name())
		c.mu.Unlock()
		total -= info.Size()
		freed += uint64(info.Size())
	}
	return freed, err
}
