// Package etcdtest opens etcds for tests: inside of the test's process, and clusters whose members are
// processes. Start at In and NewEtcd.
package etcdtest

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/hub/store/etcd"
	"github.com/longshore/longshore/internal/hub/store/storetest"
)

// In opens an etcd in a directory.
func In(dir string) store.Opener { return etcd.Options{Dir: dir, NoSync: true}.Open }

// At opens the store of a directory, which ends with the test, or when the test closes it.
func At(tb testing.TB, dir string) *store.Store {
	tb.Helper()
	return storetest.Open(tb, In(dir))
}

// New opens an empty store, which ends with the test.
func New(tb testing.TB) *store.Store {
	tb.Helper()
	return At(tb, storetest.Dir(tb))
}

// Has reports which files of a directory have a text in them.
func Has(tb testing.TB, dir, text string) (paths []string) {
	tb.Helper()
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(at)
		if bytes.Contains(data, []byte(text)) {
			paths = append(paths, at)
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return paths
}
