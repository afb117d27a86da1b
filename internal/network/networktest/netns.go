// Package networktest has helpers for tests of networks: network namespaces that are pinned to
// files, programs that run inside them, a key-value store in memory, and the contract suites that
// every core.Network (contract.go) and every driver (driver.go) must pass.
//
// It is for tests only.
package networktest

import (
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// KV is a key-value store in memory. The zero value is empty; Fail makes every Put fail.
type KV struct {
	mu   sync.Mutex // guards m
	m    map[string][]byte
	Fail error
}

var _ core.KV = (*KV)(nil)

// Get implements core.KV.
func (k *KV) Get(key string) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v, ok := k.m[key]
	if !ok {
		return nil, fmt.Errorf("key %q: %w", key, errdefs.ErrNotFound)
	}
	return slices.Clone(v), nil
}

// Put implements core.KV.
func (k *KV) Put(key string, value []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.Fail != nil {
		return k.Fail
	}
	if k.m == nil {
		k.m = map[string][]byte{}
	}
	k.m[key] = slices.Clone(value)
	return nil
}

// Delete implements core.KV.
func (k *KV) Delete(key string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.m, key)
	return nil
}

// All implements core.KV.
func (k *KV) All(prefix string) iter.Seq2[string, []byte] {
	k.mu.Lock()
	snapshot := maps.Clone(k.m)
	k.mu.Unlock()
	return func(yield func(string, []byte) bool) {
		for _, key := range slices.Sorted(maps.Keys(snapshot)) {
			if strings.HasPrefix(key, prefix) && !yield(key, snapshot[key]) {
				return
			}
		}
	}
}

// Namespace is a network namespace pinned to a file.
type Namespace struct {
	Path string

	mu    sync.Mutex // guards stops
	stops []func()
}

// NewNamespace makes a namespace. It is removed at the end of the test, if not before.
func NewNamespace(t testing.TB) *Namespace {
	t.Helper()
	dir, err := os.MkdirTemp("", "netns")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "net")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	})
	if err != nil {
		t.Fatalf("make network namespace: %v", err)
	}
	n := &Namespace{Path: path}
	t.Cleanup(func() {
		n.Close()
		_ = os.RemoveAll(dir)
	})
	return n
}

// Own is the namespace of the test itself. /proc/self would name that of the first thread, which may
// have been unable to return from another.
func Own() *Namespace { return &Namespace{Path: "/proc/thread-self/ns/net"} }

// Close ends the servers of Serve and unpins the namespace; the kernel removes its links some
// time later.
func (n *Namespace) Close() {
	n.mu.Lock()
	stops := n.stops
	n.stops = nil
	n.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
	_ = unix.Unmount(n.Path, unix.MNT_DETACH)
}

// Do runs f on a thread inside the namespace. f must not start goroutines that need the
// namespace; sockets that it opens stay inside.
func (n *Namespace) Do(t testing.TB, f func() error) {
	t.Helper()
	if err := n.Try(f); err != nil {
		t.Fatal(err)
	}
}

// Try is Do for an f that may fail.
func (n *Namespace) Try(f func() error) error {
	return onThread(func() error {
		fd, err := unix.Open(n.Path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = unix.Setns(fd, unix.CLONE_NEWNET)
		_ = unix.Close(fd)
		if err != nil {
			return err
		}
		return f()
	})
}

// onThread runs f on a thread that returns to its network namespace afterwards; a thread that
// cannot return is never used again.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			done <- err
			return
		}
		err = f()
		if unix.Setns(home, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		_ = unix.Close(home)
		done <- err
	}()
	return <-done
}
