// Package storetest opens stores for tests. Start at New.
package storetest

import (
	"log/slog"
	"os"
	"testing"

	"github.com/longshore/longshore/internal/hub/store"
)

// Passphrase is that of each store.
const Passphrase = "a passphrase of tests"

// Dir makes a directory for a store, whose path is short enough for its sockets.
func Dir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "hub-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// New opens an empty store, which ends with the test.
func New(tb testing.TB) *store.Store {
	tb.Helper()
	return At(tb, Dir(tb))
}

// At opens the store of a directory, which ends with the test, or when the test closes it.
func At(tb testing.TB, dir string) *store.Store {
	tb.Helper()
	s, err := store.Open(tb.Context(), store.Options{Dir: dir, Passphrase: []byte(Passphrase), Iterations: 1, NoSync: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}
