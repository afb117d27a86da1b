package etcd_test

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/hub/store/etcd/etcdtest"
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

func TestTheSuite(t *testing.T) {
	t.Parallel()
	storetest.Suite(t, func(t *testing.T) store.Opener { t.Helper(); return etcdtest.In(storetest.Dir(t)) })
}

// TestASealedRecord: no byte of it is in the database's files, it cannot be moved to another
// key, and without the passphrase the store does not open.
func TestASealedRecord(t *testing.T) {
	t.Parallel()
	dir := storetest.Dir(t)
	s := etcdtest.At(t, dir)
	secret := bytes.Repeat([]byte("planted-secret."), 5)
	commit(t, s, store.Write{Key: "secret", Value: secret, Secret: true}, store.Write{Key: "plain", Value: []byte("planted-plain-text")})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	secrets, texts := etcdtest.Has(t, dir, "planted-secret"), etcdtest.Has(t, dir, "planted-plain-text")
	if len(secrets) > 0 || len(texts) == 0 {
		t.Errorf("files that have each text: %v, %v", secrets, texts)
	}

	o := storetest.Options(etcdtest.In(dir))
	o.Passphrase = []byte("another one")
	if _, err := store.Open(t.Context(), o); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a wrong passphrase: %v", err)
	}
	o.Passphrase = nil
	if _, err := store.Open(t.Context(), o); !errdefs.IsInvalidArgument(err) {
		t.Errorf("no passphrase: %v", err)
	}
	s = etcdtest.At(t, dir)
	if r, err := s.Get(t.Context(), "secret"); err != nil || !bytes.Equal(r.Value, secret) {
		t.Errorf("after opening again: %q, %v", r.Value, err)
	}
}

// TestWhoMayEnter: the sockets are in a directory for its owner alone, nothing listens on the
// network, and a second hub learns that there is a first.
func TestWhoMayEnter(t *testing.T) {
	t.Parallel()
	dir := storetest.Dir(t)
	etcdtest.At(t, dir)
	for _, name := range []string{"client.sock", "peer.sock"} {
		conn, err := new(net.Dialer).DialContext(t.Context(), "unix", filepath.Join(dir, name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_ = conn.Close()
	}
	for _, name := range listening(t) {
		if !strings.HasPrefix(name, os.TempDir()+"/hub-") { // another test's
			t.Errorf("the store listens at %q", name)
		}
	}
	if _, err := store.Open(t.Context(), storetest.Options(etcdtest.In(dir))); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a second hub: %v", err)
	}
	open := storetest.Dir(t)
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(t.Context(), storetest.Options(etcdtest.In(open))); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a directory that others may enter: %v", err)
	}
	long := filepath.Join(storetest.Dir(t), strings.Repeat("x", 120))
	if _, err := store.Open(t.Context(), storetest.Options(etcdtest.In(long))); !errdefs.IsInvalidArgument(err) {
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
