package fetch

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
)

// server answers "/NAME/SIZE" with SIZE bytes, but for the failures that are left, and counts the
// requests.
type server struct {
	*httptest.Server
	asked atomic.Int32
	fails atomic.Int32
	block chan struct{} // answers wait for it, when it is not nil
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		if s.block != nil {
			<-s.block
		}
		size, err := strconv.Atoi(filepath.Base(r.URL.Path))
		if s.fails.Add(-1) >= 0 || err != nil {
			w.Header().Set("Content-Length", strconv.Itoa(size+1)) // it breaks off
		}
		_, _ = w.Write(make([]byte, size))
	}))
	t.Cleanup(s.Close)
	return s
}

type cached struct {
	*testing.T
	Fetcher
	dir string
	web *server
}

func newCached(t *testing.T, size int64) *cached {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "cache")
	if err := os.MkdirAll(filepath.Join(dir, "of an agent before"), 0o700); err != nil {
		t.Fatal(err)
	}
	c, err := NewCache(dir, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &cached{t, Fetcher{Limit: 1 << 30, Cache: c}, dir, newServer(t)}
}

// get fetches a file of size bytes, and checks its size.
func (c *cached) get(name string, size int) error {
	value, yes, dir := fmt.Sprintf("%s/%s/%d", c.web.URL, name, size), true, box(c.T)
	if err := c.Fetch(c.Context(), dir, us(), []*mesosv1.CommandInfo_URI{{Value: &value, Cache: &yes}}); err != nil {
		return err
	}
	if st, err := os.Stat(filepath.Join(dir, strconv.Itoa(size))); err != nil || st.Size() != int64(size) {
		return fmt.Errorf("there is %v, %w", st, err)
	}
	return nil
}

// gets fetches it, and wants it to have come from there, or else from the cache.
func (c *cached) gets(name string, size int, fetched bool) {
	c.Helper()
	before := c.web.asked.Load()
	if err := c.get(name, size); err != nil {
		c.Errorf("%s: %v", name, err)
	}
	if got := c.web.asked.Load() > before; got != fetched {
		c.Errorf("%s: fetched: %v", name, got)
	}
}

// holds wants so many bytes to be kept, and in so many files.
func (c *cached) holds(bytes int64, files int) {
	c.Helper()
	list, err := os.ReadDir(c.dir)
	if used, _ := c.Cache.Used(); err != nil || used != bytes || len(list) != files {
		c.Errorf("%d bytes in %d files, %v, want %d in %d", used, len(list), err, bytes, files)
	}
}

// TestTheCache: each is fetched once, until there is no room for it any more.
func TestTheCache(t *testing.T) {
	c := newCached(t, 100)
	c.holds(0, 0)
	c.gets("a", 40, true)
	c.gets("b", 40, true)
	c.gets("a", 40, false)
	c.gets("c", 60, true) // in the place of b, which was not used for longer
	c.holds(100, 2)
	c.gets("a", 40, false)
	c.gets("b", 40, true) // in the place of c
	c.holds(80, 2)
	c.gets("large", 101, true)
	c.gets("large", 101, true)
	c.holds(0, 0)
	c.gets("full", 100, true)
	c.gets("full", 100, false)
	c.holds(100, 1)
	c.gets("none", 0, true)
	c.gets("none", 0, false)
	c.holds(100, 2)
}

// TestTheCacheHasNothingByHalf: a broken download is not kept, and a removed file is fetched again.
func TestTheCacheHasNothingByHalf(t *testing.T) {
	c := newCached(t, 100)
	c.web.fails.Store(1)
	if err := c.get("a", 40); err == nil || !strings.Contains(err.Error(), "unexpected EOF") {
		t.Errorf("%v", err)
	}
	c.holds(0, 0)
	c.gets("a", 40, true)
	list, err := os.ReadDir(c.dir)
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	if err := os.Remove(filepath.Join(c.dir, list[0].Name())); err != nil {
		t.Fatal(err)
	}
	c.gets("a", 40, true)
	c.holds(40, 1)
	c.Limit = 39
	if err := c.get("a", 40); err == nil || !strings.Contains(err.Error(), "more than face.mesos.max_fetch_bytes") {
		t.Errorf("above the limit, from the cache: %v", err)
	}
}

// TestManyWantTheSame: one fetches it, and all get it.
func TestManyWantTheSame(t *testing.T) {
	c := newCached(t, 1<<20)
	c.web.block = make(chan struct{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := c.get("a", 1<<19); err != nil {
				t.Error(err)
			}
		})
	}
	close(c.web.block)
	wg.Wait()
	if n := c.web.asked.Load(); n != 1 {
		t.Errorf("it was fetched %d times", n)
	}
	c.holds(1<<19, 1)
}

// TestWhatIsNotCached: without a cache, and where the URI does not ask for it.
func TestWhatIsNotCached(t *testing.T) {
	c := newCached(t, 0)
	c.gets("a", 1, true)
	c.gets("a", 1, true)
	if _, err := os.Stat(c.dir); !os.IsNotExist(err) {
		t.Errorf("the directory: %v", err)
	}
	c = newCached(t, 100)
	for range 2 {
		if err := c.Fetch(t.Context(), box(t), us(), []*mesosv1.CommandInfo_URI{uri(c.web.URL + "/a/1")}); err != nil {
			t.Error(err)
		}
	}
	if n := c.web.asked.Load(); n != 2 {
		t.Errorf("it was fetched %d times", n)
	}
	c.holds(0, 0)
}
