// Package storetest opens stores for tests, in memory, and has the suite that each database of a store passes.
// Start at New and Suite.
package storetest

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/hub/store"
)

// Passphrase is that of each store.
const Passphrase = "a passphrase of tests"

// Patience bounds a hang.
const Patience = 2 * time.Minute

// Within is a context that ends a hang.
func Within(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	tb.Cleanup(cancel)
	return ctx
}

// Dir makes a directory for a hub, with a path short enough for its sockets.
func Dir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "hub-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Options are those of a store of tests.
func Options(open store.Opener) store.Options {
	return store.Options{Open: open, Wrapping: store.Wrapping{Passphrase: []byte(Passphrase), Iterations: 1}, Log: slog.New(slog.DiscardHandler)}
}

// New opens an empty store, in memory, which ends with the test.
func New(tb testing.TB) *store.Store {
	tb.Helper()
	return Open(tb, NewMemory().Open)
}

// Open opens the store of a database, which ends with the test, or when the test closes it.
func Open(tb testing.TB, open store.Opener) *store.Store {
	tb.Helper()
	s, err := store.Open(tb.Context(), Options(open))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}
