package etcd_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/hub/store/etcd"
	"github.com/longshore/longshore/internal/hub/store/etcd/etcdtest"
	"github.com/longshore/longshore/internal/hub/store/storetest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

func options(dir string) etcd.Options { return etcd.Options{Dir: dir, NoSync: true} }

func everything(t *testing.T, s *store.Store) string {
	t.Helper()
	list, _, err := s.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, r := range list {
		fmt.Fprintf(&b, "%s=%s\n", r.Key, r.Value)
	}
	return b.String()
}

// TestBackupAndRestore: a running store's records, and those of one that does not run, are the same in
// another directory, which only the passphrase opens; a damaged backup and a directory that is in use
// leave everything as it was.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	dir := storetest.Dir(t)
	s := etcdtest.At(t, dir)
	commit(t, s, store.Write{Key: "secret", Value: []byte("planted-secret"), Secret: true}, store.Write{Key: "empty"}, store.Write{Key: "large", Value: bytes.Repeat([]byte("x"), 1<<20)})
	for n := range 10 {
		var writes []store.Write
		for i := range store.MaxWrites {
			writes = append(writes, store.Write{Key: fmt.Sprintf("n/%d/%03d", n, i), Value: fmt.Append(nil, n*i)})
		}
		commit(t, s, writes...)
	}
	want := everything(t, s)
	if _, err := s.Lend(t.Context(), "hub/alive/a", []byte("x"), time.Minute); err != nil {
		t.Fatal(err)
	}
	var online, offline bytes.Buffer
	if err := s.Backup(t.Context(), &online); err != nil || strings.Contains(online.String(), "planted-secret") {
		t.Fatalf("the backup has the secret, or: %v", err)
	}
	if err := options(dir).Backup(t.Context(), &offline); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("of a directory that is in use: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := options(dir).Backup(t.Context(), &offline); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"of a running hub": online.Bytes(), "of one that does not run": offline.Bytes()} {
		into := filepath.Join(storetest.Dir(t), "deep", "new")
		if name == "of a running hub" { // an empty directory is as good as none
			into = storetest.Dir(t)
		}
		if _, err := options(into).Restore(t.Context(), bytes.NewReader(data)); err != nil {
			t.Fatal(name, err)
		}
		if got := everything(t, etcdtest.At(t, into)); got != want {
			t.Errorf("%s: other records, %d bytes of them, want %d", name, len(got), len(want))
		}
		if _, err := options(into).Restore(t.Context(), bytes.NewReader(data)); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s, into a directory that is not empty: %v", name, err)
		}
		if info, err := os.Stat(into); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: the directory is %v, %v", name, info.Mode(), err)
		}
	}
	into := filepath.Join(storetest.Dir(t), "new")
	damaged := bytes.Clone(online.Bytes())
	damaged[len(damaged)/2] ^= 1
	for _, data := range [][]byte{damaged, online.Bytes()[:online.Len()-1]} {
		if _, err := options(into).Restore(t.Context(), bytes.NewReader(data)); !errdefs.IsDataLoss(err) {
			t.Errorf("a damaged backup: %v", err)
		}
	}
	if list, err := os.ReadDir(filepath.Dir(into)); err != nil || len(list) > 0 {
		t.Errorf("left behind: %v, %v", list, err)
	}
	if _, err := options(into).Restore(t.Context(), bytes.NewReader(online.Bytes())); err != nil {
		t.Fatal(err)
	}
	o := storetest.Options(options(into).Open)
	o.Passphrase = []byte("another one")
	if _, err := store.Open(t.Context(), o); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a wrong passphrase: %v", err)
	}
}

// TestTheUsersEtcd: hubs share it below a prefix, by TLS with a certificate, and continue when a
// member dies; a lent record is gone after its return; a backup fills it once.
func TestTheUsersEtcd(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.NewEtcd(t, 3)
	open := func(prefix string) *store.Store {
		o := options("")
		o.Remote = new(etcd.Remote)
		*o.Remote = cluster.Remote
		o.Remote.Prefix = prefix
		var s *store.Store
		for ctx := storetest.Within(t); ; {
			var err error
			if s, err = store.Open(ctx, storetest.Options(o.Open)); err == nil {
				break
			}
			if ctx.Err() != nil || !errdefs.IsUnavailable(err) {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	// Two hubs make the key of an empty store at once.
	stores := make(chan *store.Store, 2)
	for range 2 {
		go func() { stores <- open("/one") }()
	}
	a, b, other := <-stores, <-stores, open("/other")
	ctx := storetest.Within(t)
	rev := commit(t, a, store.Write{Key: "secret", Value: []byte("s"), Secret: true}, store.Write{Key: "x", Value: []byte("1"), If: store.Absent})
	commit(t, other, store.Write{Key: "x", Value: []byte("other")})
	if r, err := b.Get(ctx, "secret"); err != nil || string(r.Value) != "s" || r.Rev != rev || a.Alone() {
		t.Errorf("the other hub reads %+v, %v", r, err)
	}
	if _, err := b.Commit(ctx, store.Write{Key: "x", If: store.Present, Only: true}, store.Write{Key: "y", Value: []byte("1")}); err != nil {
		t.Errorf("a condition alone: %v", err)
	}
	if _, err := b.Commit(ctx, store.Write{Key: "z", If: store.Present, Only: true}, store.Write{Key: "y", Delete: true}); !errdefs.IsAborted(err) {
		t.Errorf("a condition that does not hold: %v", err)
	}
	loan, err := a.Lend(ctx, "hub/alive/a", []byte("here"), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan int, 10)
	following, stop := context.WithCancel(ctx)
	followed := make(chan error, 1)
	go func() {
		followed <- b.Follow(following, "hub/alive/", func(all []store.Record) error {
			seen <- len(all)
			return nil
		})
	}()
	if n := <-seen; n != 1 {
		t.Errorf("%d hubs", n)
	}
	for i := range 3 { // each of them dies, the one that leads too
		cluster.Kill(i)
		done := false
		for !done {
			_, err := a.Commit(ctx, store.Write{Key: fmt.Sprintf("after/%d", i), Value: []byte("v")})
			if done = err == nil; !done && (!errdefs.IsUnavailable(err) || ctx.Err() != nil) {
				t.Fatal(err)
			}
		}
		cluster.Start(i)
		for done = false; !done; {
			_, err := b.Get(ctx, fmt.Sprintf("after/%d", i))
			if done = err == nil; !done && (!errdefs.IsUnavailable(err) || ctx.Err() != nil) {
				t.Fatal(err)
			}
		}
	}
	if err := loan.Return(ctx); err != nil {
		t.Fatal(err)
	}
	for n := 1; n != 0; n = <-seen {
		t.Logf("%d hubs are there", n)
	}
	stop()
	<-followed
	var backup bytes.Buffer
	if err := a.Backup(ctx, &backup); err != nil {
		t.Fatal(err)
	}
	o := options("")
	o.Remote = new(etcd.Remote)
	*o.Remote = cluster.Remote
	o.Remote.Prefix = "/two"
	if _, err := o.Restore(ctx, bytes.NewReader(backup.Bytes())); err != nil {
		t.Fatal(err)
	}
	if got, want := everything(t, open("/two")), everything(t, a); got != want {
		t.Errorf("restored:\n%s\nwant\n%s", got, want)
	}
	if _, err := o.Restore(ctx, bytes.NewReader(backup.Bytes())); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("over records: %v", err)
	}
	for _, bad := range []etcd.Remote{
		{}, {Endpoints: []string{"http://127.0.0.1:1"}}, {Endpoints: cluster.Endpoints}, {Endpoints: cluster.Endpoints, Cert: cluster.Cert, Key: cluster.Key, CA: cluster.CA, Prefix: "a/../b"},
	} {
		o.Remote = &bad
		if _, err := store.Open(ctx, storetest.Options(o.Open)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
