package store_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/hub/store/storetest"
)

// program writes a program that wraps keys.
func program(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kms")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestWhatWrapsTheKey: a passphrase or a program, and one after the other; earlier records are read
// after it, and the key's earlier wrapping opens nothing any more.
func TestWhatWrapsTheKey(t *testing.T) {
	t.Parallel()
	db := storetest.NewMemory()
	open := func(by store.Wrapping) (*store.Store, error) {
		o := storetest.Options(db.Open)
		o.Passphrase, o.Command = by.Passphrase, by.Command
		return store.Open(t.Context(), o)
	}
	hidden := program(t, `case $1 in wrap) printf box; tr '\000-\377' '\200-\377\000-\177' ;; unwrap) dd bs=1 count=3 of=/dev/null 2>/dev/null; tr '\000-\377' '\200-\377\000-\177' ;; esac`)
	ways := []store.Wrapping{{Command: hidden}, {Passphrase: []byte("one"), Iterations: 1}, {Passphrase: []byte("two"), Iterations: 1}, {Command: hidden}}
	s, err := open(ways[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), store.Write{Key: "k", Value: []byte("planted"), Secret: true}); err != nil {
		t.Fatal(err)
	}
	for i, next := range ways[1:] {
		next.Iterations = 1
		if err := s.Rekey(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := open(ways[i]); !errdefs.IsPermissionDenied(err) && !errdefs.IsFailedPrecondition(err) {
			t.Errorf("opened by what wrapped the key before: %v", err)
		}
		if s, err = open(next); err != nil {
			t.Fatal(err)
		}
		if r, err := s.Get(t.Context(), "k"); err != nil || string(r.Value) != "planted" {
			t.Errorf("read %q, %v", r.Value, err)
		}
	}
	// A program that cannot unwrap it gets no key.
	for want, text := range map[string]string{
		"does not wrap":           "cat",
		"wrote nothing":           "exit 0",
		"exit status 3":           "echo no key here >&2; exit 3",
		"wrote 5 bytes, not 32":   "printf short",
		"wrote more than 65536":   "head -c 70000 /dev/zero",
		"no such file or direct":  "",
		"either a passphrase or ": "none",
	} {
		by := store.Wrapping{Command: program(t, text)}
		switch text {
		case "":
			by.Command += "-missing"
		case "none":
			by.Command = ""
		}
		if err := s.Rekey(t.Context(), by); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = open(ways[len(ways)-1]); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
