package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/hub/store/storetest"
)

func commit(t *testing.T, s *store.Store, writes ...store.Write) int64 {
	t.Helper()
	rev, err := s.Commit(t.Context(), writes...)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func TestATransactionIsWholeOrNothing(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	first := commit(t, s, store.Write{Key: "a/1", Value: []byte("one"), If: store.Absent}, store.Write{Key: "a/2", Value: []byte("two")})
	if _, err := s.Commit(t.Context(), store.Write{Key: "a/3", Value: []byte("three")}, store.Write{Key: "a/1", Value: []byte("again"), If: store.Absent}); !errdefs.IsAborted(err) {
		t.Errorf("a record that must be absent is there: %v", err)
	}
	if _, err := s.Get(t.Context(), "a/3"); !errdefs.IsNotFound(err) {
		t.Errorf("a part of a refused transaction was stored: %v", err)
	}
	second := commit(t, s, store.Write{Key: "a/1", Value: []byte("uno"), If: first})
	if _, err := s.Commit(t.Context(), store.Write{Key: "a/1", Delete: true, If: first}); !errdefs.IsAborted(err) {
		t.Errorf("a record of another revision was deleted: %v", err)
	}
	if r, err := s.Get(t.Context(), "a/1"); err != nil || string(r.Value) != "uno" || r.Rev != second {
		t.Errorf("got %+v, %v", r, err)
	}
	list, rev, err := s.List(t.Context(), "a/")
	if err != nil || len(list) != 2 || list[0].Key != "a/1" || list[1].Key != "a/2" || rev < second {
		t.Errorf("listed %+v at %d, %v", list, rev, err)
	}
	commit(t, s, store.Write{Key: "a/1", Delete: true, If: second})
	if _, err := s.Get(t.Context(), "a/1"); !errdefs.IsNotFound(err) {
		t.Errorf("a deleted record: %v", err)
	}
}

func TestLimitsAreTold(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	if _, err := s.Commit(t.Context(), make([]store.Write, store.MaxWrites+1)...); !errdefs.IsInvalidArgument(err) {
		t.Errorf("too many writes: %v", err)
	}
	if _, err := s.Commit(t.Context(), store.Write{Key: "x", Value: make([]byte, store.MaxValue+1)}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("too large a value: %v", err)
	}
	var full []store.Write
	for i := range store.MaxWrites {
		full = append(full, store.Write{Key: fmt.Sprintf("n/%03d", i), Value: []byte("x"), If: store.Absent})
	}
	commit(t, s, full...)
	// More records than one page are listed as of one revision.
	for n := range 9 {
		for i := range full {
			full[i].Key = fmt.Sprintf("n/%d/%03d", n, i)
		}
		commit(t, s, full...)
	}
	list, _, err := s.List(t.Context(), "n/")
	if err != nil || len(list) != 10*store.MaxWrites {
		t.Errorf("listed %d records, %v", len(list), err)
	}
}

func TestAWatchHasEachTransactionOnce(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	start := commit(t, s, store.Write{Key: "w/0", Value: []byte("before")})
	var want, got []string
	for i := range 5 {
		rev := commit(t, s, store.Write{Key: fmt.Sprintf("w/%d", i), Value: []byte("v")}, store.Write{Key: "w/last", Value: []byte("v"), Secret: true}, store.Write{Key: "other", Value: []byte("v")})
		want = append(want, fmt.Sprintf("%d: w/%d=v w/last=v", rev, i))
	}
	rev := commit(t, s, store.Write{Key: "w/last", Delete: true})
	want = append(want, fmt.Sprintf("%d: -w/last", rev))
	done := errors.New("done")
	err := s.Watch(t.Context(), "w/", start, func(rev int64, changes []store.Change) error {
		var words []string
		for _, c := range changes {
			if c.Deleted {
				words = append(words, "-"+c.Key)
			} else {
				words = append(words, c.Key+"="+string(c.Value))
			}
		}
		got = append(got, fmt.Sprintf("%d: %s", rev, strings.Join(words, " ")))
		if len(got) == len(want) {
			return done
		}
		return nil
	})
	if !errors.Is(err, done) || strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the watch ended with %v after\n%s\nwant\n%s", err, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(done)
	if err := s.Watch(ctx, "w/", 0, nil); !errors.Is(err, done) {
		t.Errorf("a watch whose context has ended: %v", err)
	}
}

// TestASealedRecord: no byte of it is in the database's files, it cannot be moved to another
// key, and without the passphrase the store does not open.
func TestASealedRecord(t *testing.T) {
	t.Parallel()
	dir := storetest.Dir(t)
	s := storetest.At(t, dir)
	secret := bytes.Repeat([]byte("planted-secret."), 5)
	commit(t, s, store.Write{Key: "secret", Value: secret, Secret: true}, store.Write{Key: "plain", Value: []byte("planted-plain-text")})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		for _, text := range []string{"planted-secret", "planted-plain-text"} {
			if bytes.Contains(data, []byte(text)) {
				found[text]++
			}
		}
		return err
	})
	if err != nil || found["planted-secret"] > 0 || found["planted-plain-text"] == 0 {
		t.Errorf("files that have each text: %v, %v", found, err)
	}

	o := store.Options{Dir: dir, Passphrase: []byte("another one"), NoSync: true, Log: slog.New(slog.DiscardHandler)}
	if _, err := store.Open(t.Context(), o); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a wrong passphrase: %v", err)
	}
	o.Passphrase = nil
	if _, err := store.Open(t.Context(), o); !errdefs.IsInvalidArgument(err) {
		t.Errorf("no passphrase: %v", err)
	}
	s = storetest.At(t, dir)
	if r, err := s.Get(t.Context(), "secret"); err != nil || !bytes.Equal(r.Value, secret) {
		t.Errorf("after opening again: %q, %v", r.Value, err)
	}
}

// TestWhoMayEnter: the sockets are in a directory for its owner alone, nothing listens on the
// network, and a second hub is told that there is a first.
func TestWhoMayEnter(t *testing.T) {
	t.Parallel()
	dir := storetest.Dir(t)
	storetest.At(t, dir)
	for _, name := range []string{"client.sock", "peer.sock"} {
		conn, err := new(net.Dialer).DialContext(t.Context(), "unix", filepath.Join(dir, name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_ = conn.Close()
	}
	for _, name := range listening(t) {
		if !strings.HasPrefix(name, os.TempDir()+"/hub-") {
			t.Errorf("the store listens at %q", name)
		}
	}
	o := store.Options{Dir: dir, Passphrase: []byte(storetest.Passphrase), Iterations: 1, NoSync: true, Log: slog.New(slog.DiscardHandler)}
	if _, err := store.Open(t.Context(), o); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a second hub: %v", err)
	}
	o.Dir = storetest.Dir(t)
	if err := os.Chmod(o.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(t.Context(), o); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a directory that others may enter: %v", err)
	}
	o.Dir = filepath.Join(storetest.Dir(t), strings.Repeat("x", 120))
	if _, err := store.Open(t.Context(), o); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a path too long for a socket: %v", err)
	}
}

// listening are the names of the sockets at which this process listens: paths, names without a
// file, and the tables of those of the network.
func listening(t *testing.T) (names []string) {
	t.Helper()
	ours := map[string]bool{}
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, "socket:[") {
			ours[strings.Trim(to, "socket:[]")] = true
		}
	}
	// The columns of each table that have the state and the inode, and how listening is written.
	for table, c := range map[string]struct {
		state, inode int
		listens      string
	}{"unix": {3, 6, "00010000"}, "tcp": {3, 9, "0A"}, "tcp6": {3, 9, "0A"}} {
		data, err := os.ReadFile("/proc/self/net/" + table)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			f := strings.Fields(line)
			if len(f) <= c.inode || f[c.state] != c.listens || !ours[f[c.inode]] {
				continue
			}
			name := table
			if table == "unix" && len(f) > 7 {
				name = f[7]
			}
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		t.Error("nothing listens; the test looks in the wrong place")
	}
	return names
}
