package keepertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
)

// Holder is a core.Holder in memory.
type Holder struct {
	mu   sync.Mutex // guards held
	held map[string][]*os.File
	// Old makes it a keeper of an earlier release, which cannot hold files.
	Old bool
}

var _ core.Holder = (*Holder)(nil)

// NewHolder returns an empty one. It closes its files at the end of the test.
func NewHolder(t *testing.T) *Holder {
	t.Helper()
	h := &Holder{held: map[string][]*os.File{}}
	t.Cleanup(func() {
		for _, files := range h.held {
			closeAll(files)
		}
	})
	return h
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// duplicates returns further descriptors of the same files.
func duplicates(files []*os.File) ([]*os.File, error) {
	var all []*os.File
	for _, f := range files {
		dup := -1
		raw, err := f.SyscallConn()
		if err == nil {
			err = errors.Join(raw.Control(func(fd uintptr) { dup, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }), err)
		}
		if err != nil {
			closeAll(all)
			return nil, err
		}
		all = append(all, os.NewFile(uintptr(dup), f.Name()))
	}
	return all, nil
}

// Hold implements core.Holder.
func (h *Holder) Hold(_ context.Context, name string, files []*os.File) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.Old:
		return fmt.Errorf("hold: %w", errdefs.ErrFailedPrecondition)
	case len(files) == 0 || len(files) > 4 || name == "" || len(name) > 255:
		return fmt.Errorf("hold: %w", errdefs.ErrInvalidArgument)
	case len(h.held) == 4096 && h.held[name] == nil:
		return fmt.Errorf("hold: %w", errdefs.ErrResourceExhausted)
	}
	own, err := duplicates(files)
	if err == nil {
		closeAll(h.held[name])
		h.held[name] = own
	}
	return err
}

// Held implements core.Holder.
func (h *Holder) Held(_ context.Context, name string) ([]*os.File, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held[name] == nil {
		return nil, fmt.Errorf("held: %w", errdefs.ErrNotFound)
	}
	return duplicates(h.held[name])
}

// Drop implements core.Holder.
func (h *Holder) Drop(_ context.Context, name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	closeAll(h.held[name])
	delete(h.held, name)
	return nil
}

// Names implements core.Holder.
func (h *Holder) Names(context.Context) ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.held)), nil
}

// RunHolder runs the contract of core.Holder. died, unless nil, kills the process that holds the
// files and waits for its successor.
func RunHolder(t *testing.T, h core.Holder, died func(t *testing.T)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*roottest.Patience())
	defer cancel()
	pipe := func() (r, w *os.File) {
		t.Helper()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = r.Close(), w.Close() })
		return r, w
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	names := func(want ...string) {
		t.Helper()
		if got, err := h.Names(ctx); err != nil || !slices.Equal(got, want) {
			t.Fatalf("the names are %q, want %q, %v", got, want, err)
		}
	}
	names()
	if _, err := h.Held(ctx, "a"); !errdefs.IsNotFound(err) {
		t.Errorf("held nothing: %v", err)
	}
	must(h.Drop(ctx, "a"))
	r, w := pipe()
	for _, c := range []struct {
		name  string
		files []*os.File
	}{{"a", nil}, {"", []*os.File{w}}, {strings.Repeat("x", 256), []*os.File{w}}, {"a", []*os.File{w, w, w, w, w}}} {
		if err := h.Hold(ctx, c.name, c.files); !errdefs.IsInvalidArgument(err) {
			t.Errorf("hold %d files as %.10q: %v", len(c.files), c.name, err)
		}
	}
	names()

	// A socket keeps packets that arrive while no process uses it, and its settings.
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(err)
	defer func() { _ = udp.Close() }()
	socket, err := udp.File()
	must(err)
	long := strings.Repeat("ä/:\x00", 51) // any text is a name
	must(h.Hold(ctx, "a", []*os.File{socket, w}))
	must(h.Hold(ctx, long, []*os.File{w}))
	names("a", long)
	to := udp.LocalAddr()
	for _, f := range []interface{ Close() error }{socket, udp, w} {
		must(f.Close())
	}
	if died != nil {
		died(t)
	}
	asks, err := net.Dial("udp4", to.String())
	must(err)
	defer func() { _ = asks.Close() }()
	_, err = asks.Write([]byte("question"))
	must(err)
	if died != nil {
		died(t)
	}
	names("a", long)
	for range 2 { // it is not taken away
		files, err := h.Held(ctx, "a")
		must(err)
		if len(files) != 2 {
			t.Fatalf("%d files", len(files))
		}
		closeAll(files)
	}
	files, err := h.Held(ctx, "a")
	must(err)
	again, err := net.FilePacketConn(files[0])
	must(err)
	buf := make([]byte, 100)
	if n, _, err := again.ReadFrom(buf); err != nil || string(buf[:n]) != "question" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	must(again.Close())
	_, err = files[1].Write([]byte("x"))
	must(err)
	closeAll(files)
	if n, err := r.Read(buf); err != nil || n != 1 {
		t.Errorf("read %d bytes of the pipe, %v", n, err)
	}

	// Nobody has the writing end when both names are dropped, one of them by another file in its place.
	other, _ := pipe()
	must(h.Hold(ctx, "a", []*os.File{other}))
	must(h.Drop(ctx, long))
	if n, err := r.Read(buf); n != 0 || err == nil {
		t.Errorf("the pipe is still held: %d bytes, %v", n, err)
	}
	names("a")
	must(h.Drop(ctx, "a"))
	names()
	if died != nil {
		died(t)
		names()
	}
}

// RunHolderLimits fills a Holder.
func RunHolderLimits(t *testing.T, h core.Holder) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = r.Close(), w.Close() }()
	EachHeld(t, 4096, func(i int) error { return h.Hold(t.Context(), fmt.Sprint("name ", i), []*os.File{w}) })
	if err := h.Hold(t.Context(), "one more", []*os.File{w}); !errdefs.IsResourceExhausted(err) {
		t.Errorf("one more: %v", err)
	}
	if err := h.Hold(t.Context(), "name 7", []*os.File{r, w}); err != nil {
		t.Errorf("in place of another: %v", err)
	}
	if names, err := h.Names(t.Context()); err != nil || len(names) != 4096 {
		t.Errorf("%d names, %v", len(names), err)
	}
}

// EachHeld calls fn for the numbers below n, from sixteen goroutines: where the machine is emulated, a request
// takes many milliseconds, and most of them are waits of one process for another.
func EachHeld(t *testing.T, n int, fn func(i int) error) {
	t.Helper()
	var group errgroup.Group
	group.SetLimit(16)
	for i := range n {
		group.Go(func() error {
			if err := fn(i); err != nil {
				return fmt.Errorf("request %d of %d: %w", i, n, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}
