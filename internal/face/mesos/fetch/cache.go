package fetch

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/longshore/longshore/internal/keylock"
)

// Cache keeps fetched files by URI up to a total size; the least recently used are
// removed first. It is emptied when the agent starts, as in Mesos. A nil *Cache keeps
// nothing.
type Cache struct {
	root *os.Root
	size int64
	uris keylock.Map[string] // locks URIs while they are fetched

	mu    sync.Mutex             // guards files, used, now
	files map[string]*cachedFile // by URI
	used  int64                  // bytes of files, and of those that are being fetched
	now   int64                  // counts uses
}

type cachedFile struct {
	name string
	size int64
	use  int64 // the value of Cache.now at the last use
}

// NewCache returns an empty cache of size bytes in dir. It deletes dir's content. Size 0 returns
// nil.
func NewCache(dir string, size int64) (*Cache, error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("clear the fetcher cache: %w", err)
	}
	if size == 0 {
		return nil, nil //nolint:nilnil // nil is a cache that keeps nothing
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the fetcher cache: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the fetcher cache: %w", err)
	}
	return &Cache{root: root, size: size, files: map[string]*cachedFile{}}, nil
}

// Close closes the directory.
func (c *Cache) Close() error {
	if c == nil {
		return nil
	}
	return c.root.Close()
}

// Used returns how many bytes are in use, and the size of the cache.
func (c *Cache) Used() (used, size int64) {
	if c == nil {
		return 0, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used, c.size
}

// errNoRoom is returned for a file larger than the cache.
var errNoRoom = errors.New("larger than the cache") //nolint:gochecknoglobals // an error value

// open returns the content of a URI, from the cache if possible. Concurrent callers for the same
// URI wait for the first. A file larger than the cache is not kept.
func (c *Cache) open(ctx context.Context, uri string) (io.ReadCloser, error) {
	if c == nil {
		return open(ctx, uri)
	}
	unlock, err := c.uris.Lock(ctx, uri)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if f := c.find(uri); f != nil {
		return f, nil
	}
	f, err := c.fetch(ctx, uri)
	if errors.Is(err, errNoRoom) {
		return open(ctx, uri)
	}
	return f, err
}

// find opens the cached file of a URI; nil if there is none.
func (c *Cache) find(uri string) io.ReadCloser {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.files[uri]
	if k == nil {
		return nil
	}
	f, err := c.root.Open(k.name)
	if err != nil { // the file was deleted
		c.dropLocked(uri)
		return nil
	}
	c.now++
	k.use = c.now
	return f
}

// fetch stores the content of a URI in the cache, and opens it. The URI must be locked.
func (c *Cache) fetch(ctx context.Context, uri string) (f *os.File, err error) {
	from, err := open(ctx, uri)
	if err != nil {
		return nil, err
	}
	defer func() { _ = from.Close() }()
	sum := sha256.Sum256([]byte(uri))
	name := hex.EncodeToString(sum[:])
	if f, err = c.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
		return nil, err
	}
	size := int64(0)
	defer func() {
		if err == nil {
			return
		}
		err = errors.Join(err, f.Close(), c.root.Remove(name))
		f = nil
		c.mu.Lock()
		defer c.mu.Unlock()
		c.used -= size
	}()
	for {
		n, err := io.CopyN(f, &ctxReader{ctx, from}, chunk)
		if n > 0 {
			if !c.reserve(n) {
				return f, errNoRoom
			}
			size += n
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return f, err
		}
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return f, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now++
	c.files[uri] = &cachedFile{name: name, size: size, use: c.now}
	return f, nil
}

// chunk is how many bytes are reserved at once.
const chunk = 1 << 20

// reserve reserves n bytes, and removes other files if necessary; false if the cache is
// too small. A removed file that is still being read uses disk space until it is
// closed.
func (c *Cache) reserve(n int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used += n
	if c.used <= c.size {
		return true
	}
	var uris []string
	for u := range c.files {
		uris = append(uris, u)
	}
	slices.SortFunc(uris, func(a, b string) int { return cmp.Compare(c.files[a].use, c.files[b].use) })
	for _, u := range uris {
		if c.dropLocked(u); c.used <= c.size {
			return true
		}
	}
	c.used -= n
	return false
}

// dropLocked removes a file; mu must be held.
func (c *Cache) dropLocked(uri string) {
	k := c.files[uri]
	if err := c.root.Remove(k.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return // it still uses disk space
	}
	delete(c.files, uri)
	c.used -= k.size
}

// ctxReader is a reader that fails when its context ends.
type ctxReader struct {
	ctx  context.Context //nolint:containedctx // for reading one file
	from io.Reader
}

// Read implements io.Reader.
func (r *ctxReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.from.Read(p)
}
