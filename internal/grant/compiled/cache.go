package compiled

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/flight"
	"github.com/longshore/longshore/internal/turns"
	"github.com/longshore/longshore/internal/weaken"
)

// Bounds of the cache.
const (
	MaxModule    = 256 << 20 // bytes
	defaultLimit = 1 << 30   // bytes of all entries
	maxFailed    = 1024      // modules that are not tried again
	touchEvery   = time.Hour
	partPrefix   = ".compile-"
)

// Cache is a directory of entries. The least recently used ones are removed when there are too many.
type Cache struct {
	dir, program string
	limit        int64
	log          *slog.Logger
	patience     time.Duration
	turns        *turns.Turns
	// compilations holds one compilation per key, which its callers share.
	compilations flight.Group[string, *compilation]
	compile      func(context.Context, *compilation) error

	mu      sync.Mutex // guards build, version, sound, failed, confined, alone
	build   identity   // of the program with the known version
	version string
	sound   map[string]identity // entries that were checked
	failed  map[string]bool     // keys of modules that cannot be compiled
	// confined describes the confinement of the last child.
	confined string
	alone    int // see Status.Alone
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
	Slots   int    // number of modules compiled at once; 0 is slotsHere
	// Patience is how long Open waits for a slot; 0 is 10 s.
	Patience time.Duration
	Logger   *slog.Logger
}

// New opens a cache, and removes the files of interrupted compilations.
func New(o Options) (*Cache, error) {
	c := &Cache{
		dir: o.Dir, program: o.Program, limit: cmp.Or(o.Limit, defaultLimit), log: o.Logger,
		patience: cmp.Or(o.Patience, defaultPatience), turns: turns.New(cmp.Or(o.Slots, slotsHere()), maxWaiting),
		sound: map[string]identity{}, failed: map[string]bool{},
	}
	c.compile = c.compileInChild
	if weaken.Off(weaken.CompileTurns) {
		c.turns, c.patience = turns.New(1, math.MaxInt), math.MaxInt64
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

// errFailed is returned for a module that has failed to compile before.
var errFailed = errors.New("it could not be compiled before")

// Open returns the entry of a module that a container is about to run, and compiles the module if there is no entry. by is the container's
// owner, namespace and image. After an error the container runs without an entry. The error is turns.ErrFull if there was no slot in time.
func (c *Cache) Open(ctx context.Context, module *os.File, by turns.Path) (*os.File, error) {
	return c.open(ctx, module, by, true)
}

// Warm compiles the module at path if there is no entry for it. Calls of Open have priority.
func (c *Cache) Warm(ctx context.Context, path string, by turns.Path) error {
	module, err := os.OpenFile(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = module.Close() }()
	entry, err := c.open(ctx, module, by, false)
	if err != nil {
		return err
	}
	return entry.Close()
}

func (c *Cache) open(ctx context.Context, module *os.File, by turns.Path, start bool) (*os.File, error) {
	if weaken.Off(weaken.CompileTurns) {
		by, start = nil, false
	}
	key, err := c.Key(module)
	if err != nil {
		return nil, err
	}
	if f := c.entry(key); f != nil {
		return f, nil
	}
	if c.hasFailed(key) {
		return nil, errFailed
	}
	work := c.compilations.Join(ctx, key.Name(), func() *compilation { return c.prepare(key, module) }, c.run)
	defer work.Leave()
	leave, err := work.State.turn.Ask(by, start)
	if err != nil {
		return nil, err
	}
	defer leave()
	if start {
		if err := c.awaitTurn(ctx, work); err != nil {
			return nil, err
		}
	}
	if err := work.Wait(ctx); err != nil {
		return nil, err
	}
	if f := c.entry(key); f != nil {
		return f, nil
	}
	return nil, errors.New("its compiled form is no longer in the cache")
}

func (c *Cache) hasFailed(key Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed[key.Name()]
}

func (c *Cache) fail(key Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.failed) >= maxFailed {
		clear(c.failed)
	}
	c.failed[key.Name()] = true
}

// entry opens the entry of key if it exists and is sound. It removes a damaged one. The worker checks the entry once
// more.
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

// Status is the state of a cache.
type Status struct {
	Entries int
	Bytes   int64
	// Compiling counts the modules being compiled, Waiting the requests that wait for a slot.
	Compiling, Waiting int
	// Alone counts the starts that got no slot in time.
	Alone int
	// Confined describes the confinement of the last compiling child, "" if there was none since the
	// start.
	Confined string
}

// Status returns the state of the cache.
func (c *Cache) Status() (s Status) {
	entries, _ := os.ReadDir(c.dir)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			s.Entries++
			s.Bytes += info.Size()
		}
	}
	s.Compiling, s.Waiting = c.turns.Usage()
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Confined, s.Alone = c.confined, c.alone
	return s
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
