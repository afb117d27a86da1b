package dbfile_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/dbfile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// file is a database in a directory of its own.
type file struct {
	path string
	log  bytes.Buffer
}

func newFile(t *testing.T) *file {
	t.Helper()
	return &file{path: filepath.Join(memoryDir(t), "x.db")}
}

// memoryDir makes a directory in memory, where there is one: bbolt syncs each file that it
// creates.
func memoryDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "longshore-dbfile-")
	if err != nil {
		return tb.TempDir()
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (f *file) options() dbfile.Options {
	return dbfile.Options{
		Path: f.path, Volatile: true, Loss: "all is lost", Logger: slog.New(slog.NewTextHandler(&f.log, nil)),
		Skip:  func(bucket string) bool { return bucket == "skipped" },
		Valid: func(_ []string, _, value []byte) bool { return bytes.HasPrefix(value, []byte("value ")) },
	}
}

func (f *file) open(t *testing.T) *dbfile.DB {
	t.Helper()
	db, err := dbfile.Open(f.options())
	must(t, err)
	return db
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fill makes a file of several levels of pages, with buckets in buckets, and deletes some of it.
func fill(t *testing.T, db *dbfile.DB) {
	t.Helper()
	for round := range 8 {
		must(t, db.Update(func(tx *dbfile.Tx) error {
			for i := range 60 {
				must(t, tx.Put(fmt.Sprintf("key %d %d", round, i), []byte(fmt.Sprintf("value %d %s", i, strings.Repeat("x", 10*i))), "many"))
			}
			must(t, tx.Put("big", []byte("value "+strings.Repeat("big", 5000*(round+1))), "outer", "inner"))
			must(t, tx.Put("name", []byte(fmt.Sprint("value ", round)), "outer", "small", "smallest"))
			if round > 0 {
				for i := range 50 {
					must(t, tx.Delete(fmt.Sprintf("key %d %d", round-1, i), "many"))
				}
			}
			_, err := tx.NextSequence("counted")
			must(t, err)
			return tx.Put("gone", []byte("value"), "skipped")
		}))
	}
}

// all returns the database's content.
func all(t *testing.T, db *dbfile.DB) map[string]string {
	t.Helper()
	got := map[string]string{}
	var walk func(path string, b *bbolt.Bucket) error
	walk = func(path string, b *bbolt.Bucket) error {
		got[path+"#"] = fmt.Sprint(b.Sequence())
		return b.ForEach(func(k, v []byte) error {
			if v == nil {
				return walk(path+"/"+string(k), b.Bucket(k))
			}
			got[path+"/"+string(k)] = string(v)
			return nil
		})
	}
	must(t, db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			if string(name) == "skipped" {
				return nil
			}
			return walk(string(name), b)
		})
	}))
	return got
}

func differs(a, b map[string]string) string {
	for k, v := range a {
		if b[k] != v {
			return fmt.Sprintf("%q is %.40q and %.40q", k, v, b[k])
		}
	}
	for k := range b {
		if _, ok := a[k]; !ok {
			return fmt.Sprintf("%q is new", k)
		}
	}
	return ""
}

// damages returns functions that spoil a file.
func damages(r *rand.Rand) map[string]func(b []byte) []byte {
	flip := func(b []byte, at int) []byte {
		b[at] ^= 1 << r.IntN(8)
		return b
	}
	list := map[string]func([]byte) []byte{
		"empty":         func([]byte) []byte { return nil },
		"short":         func(b []byte) []byte { return b[:100] },
		"two pages":     func(b []byte) []byte { return b[:8192] },
		"half":          func(b []byte) []byte { return b[:len(b)/2] },
		"a page less":   func(b []byte) []byte { return b[:len(b)-4096] },
		"all zero":      func(b []byte) []byte { return make([]byte, len(b)) },
		"its metas":     func(b []byte) []byte { clear(b[:8192]); return b },
		"first meta":    func(b []byte) []byte { clear(b[:4096]); return b },
		"second meta":   func(b []byte) []byte { clear(b[4096:8192]); return b },
		"zero in half":  func(b []byte) []byte { clear(b[len(b)/2 : len(b)/2+8192]); return b },
		"other content": func(b []byte) []byte { return []byte(strings.Repeat("no database\n", 5000)) },
	}
	for i := range 60 {
		list[fmt.Sprintf("bit %d", i)] = func(b []byte) []byte { return flip(b, r.IntN(len(b))) }
	}
	// The heads of pages and their elements are where a flipped bit hurts most.
	for i := range 120 {
		list[fmt.Sprintf("head %d", i)] = func(b []byte) []byte { return flip(b, r.IntN(len(b)/4096)*4096+r.IntN(48)) }
	}
	return list
}

// spoil damages one of the file's two parts and reports whether that changed it.
func spoil(t *testing.T, path string, how func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, how(b), 0o600))
}

func TestADamagedFileIsMadeAgainFromItsCopy(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	whole := newFile(t)
	db := whole.open(t)
	fill(t, db)
	held := all(t, db)
	must(t, db.Close())
	for name, how := range damages(rand.New(rand.NewPCG(seed, 0))) {
		for _, suffix := range []string{"", ".copy"} {
			t.Run(name+suffix, func(t *testing.T) {
				f, want := newFile(t), held
				for _, s := range []string{"", ".copy"} {
					b, err := os.ReadFile(whole.path + s)
					must(t, err)
					must(t, os.WriteFile(f.path+s, b, 0o600))
				}
				spoil(t, f.path+suffix, how)
				for range 2 {
					db := f.open(t)
					if at := differs(want, all(t, db)); at != "" {
						t.Fatal(at)
					}
					// It can be written to, and remembers that.
					must(t, db.Update(func(tx *dbfile.Tx) error { return tx.Put("later", []byte("value later"), "many") }))
					want = all(t, db)
					must(t, db.Close())
				}
				if suffix == "" && f.log.Len() > 0 {
					if _, err := os.Stat(f.path + ".damaged"); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

// TestRepairBringsBackWhatCanBeRead: file and copy are both damaged. Entries outside of the two
// damaged places are back after the repair.
func TestRepairBringsBackWhatCanBeRead(t *testing.T) {
	f := newFile(t)
	db := f.open(t)
	fill(t, db)
	want := all(t, db)
	must(t, db.Close())
	b, err := os.ReadFile(f.path)
	must(t, err)
	var pages []int // leaf pages that hold keys of "many"
	for at := 0; at < len(b); at += 4096 {
		if b[at+8] == 2 && bytes.Contains(b[at:at+4096], []byte("key 7 4")) {
			pages = append(pages, at)
		}
	}
	if len(pages) == 0 {
		t.Fatal("no page to damage")
	}
	clear(b[pages[len(pages)-1]:][:4096])
	must(t, os.WriteFile(f.path, b, 0o600))
	spoil(t, f.path+".copy", func(b []byte) []byte { b[len(b)/2] ^= 1; return b })

	_, err = dbfile.Open(f.options())
	for _, want := range []string{f.path, "longshore repair", "all is lost", "x.db.copy is damaged too"} {
		if !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	told, err := dbfile.Repair(f.options(), true)
	if err != nil || told.Damage == "" {
		t.Errorf("%+v, %v", told, err)
	}
	if _, err := dbfile.Open(f.options()); !errdefs.IsDataLoss(err) {
		t.Errorf("a dry run has changed the file: %v", err)
	}
	done, err := dbfile.Repair(f.options(), false)
	if err != nil || done.Whole || done.Entries != told.Entries || len(done.Places) == 0 {
		t.Errorf("%+v, %v", done, err)
	}
	db = f.open(t)
	got := all(t, db)
	must(t, db.Close())
	missing := 0
	for k, v := range want {
		switch {
		case got[k] == v:
		case strings.HasPrefix(k, "many/key 7 4"), strings.HasPrefix(k, "many/key 7 5"), strings.HasPrefix(k, "many/key 7 3"):
			missing++
		default:
			t.Errorf("%q is lost, and was in no damaged place", k)
		}
	}
	t.Logf("%d of %d entries lost", missing, len(want))
	if told, err = dbfile.Repair(f.options(), true); err != nil || told.Damage != "" {
		t.Errorf("after the repair: %+v, %v", told, err)
	}
}

// TestACopyThatIsBehindIsWrittenAnew: the agent was killed between the two writes, or one that
// keeps no copies has written to the file.
func TestACopyThatIsBehindIsWrittenAnew(t *testing.T) {
	f := newFile(t)
	db := f.open(t)
	fill(t, db)
	must(t, db.Close())
	raw, err := bbolt.Open(f.path, 0o600, nil)
	must(t, err)
	must(t, raw.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte("many")).Put([]byte("other"), []byte("value other")) }))
	must(t, raw.Close())
	db = f.open(t)
	want := all(t, db)
	must(t, db.Close())
	if want["many/other"] != "value other" {
		t.Error("what the other has written is lost")
	}
	must(t, os.Truncate(f.path, 0))
	db = f.open(t)
	defer db.Close()
	if at := differs(want, all(t, db)); at != "" {
		t.Error(at)
	}
}

// TestACopyIsContinued: a database that is opened again appends to its copy, and the copy restores all transactions. A copy
// with a large frame is written again, because one damaged place would cost all entries of that.
func TestACopyIsContinued(t *testing.T) {
	f := newFile(t)
	must(t, f.open(t).Close())
	inode := func() uint64 {
		t.Helper()
		var st unix.Stat_t
		must(t, unix.Stat(f.path+".copy", &st))
		return st.Ino
	}
	first := inode()
	for i := range 20 {
		db := f.open(t)
		must(t, db.Update(func(tx *dbfile.Tx) error { return tx.Put(fmt.Sprint("k", i%7), fmt.Appendf(nil, "value %d", i), "b") }))
		must(t, db.Close())
		if inode() != first {
			t.Fatalf("start %d has written the copy again", i)
		}
	}
	db := f.open(t)
	want := all(t, db)
	must(t, db.Close())
	must(t, os.Remove(f.path))
	db = f.open(t)
	if got := all(t, db); !maps.Equal(got, want) {
		t.Errorf("the copy restored %v, not %v", got, want)
	}
	must(t, db.Update(func(tx *dbfile.Tx) error {
		for i := range 300 {
			must(t, tx.Put(fmt.Sprint("large", i), []byte("value "+strings.Repeat("x", 300)), "b"))
		}
		return nil
	}))
	must(t, db.Close())
	large := inode()
	must(t, f.open(t).Close())
	if inode() == large {
		t.Error("a copy with a large frame was not written again")
	}
}

func TestAFileThatIsGoneComesBack(t *testing.T) {
	f := newFile(t)
	db := f.open(t)
	fill(t, db)
	want := all(t, db)
	must(t, db.Close())
	must(t, os.Remove(f.path))
	db = f.open(t)
	if at := differs(want, all(t, db)); at != "" {
		t.Error(at)
	}
	must(t, db.Close())
	must(t, dbfile.Remove(f.path))
	if left, _ := filepath.Glob(f.path + "*"); len(left) > 0 {
		t.Error(left)
	}
	db = f.open(t)
	defer db.Close()
	if len(all(t, db)) > 0 {
		t.Error("a removed file came back")
	}
}

// TestTheCopyStaysSmall: replaced values do not stay in the copy for ever.
func TestTheCopyStaysSmall(t *testing.T) {
	f := newFile(t)
	o := f.options()
	db, err := dbfile.Open(o)
	must(t, err)
	value := []byte("value " + strings.Repeat("x", 64<<10))
	for range 100 {
		must(t, db.Update(func(tx *dbfile.Tx) error { return tx.Put("k", value, "b") }))
	}
	want := all(t, db)
	must(t, db.Close())
	st, err := os.Stat(f.path + ".copy")
	must(t, err)
	if st.Size() > 2<<20 {
		t.Errorf("the copy has %d bytes", st.Size())
	}
	must(t, os.Truncate(f.path, 0))
	db = f.open(t)
	defer db.Close()
	if at := differs(want, all(t, db)); at != "" {
		t.Error(at)
	}
}

// FuzzFile opens and repairs files and copies of any content: neither panics, and a file that is
// accepted can be read and written.
func FuzzFile(f *testing.F) {
	dir := memoryDir(f)
	o := dbfile.Options{Path: filepath.Join(dir, "seed.db")}
	db, err := dbfile.Open(o)
	if err != nil {
		f.Fatal(err)
	}
	err = db.Update(func(tx *dbfile.Tx) error { return tx.Put("key", []byte("value"), "outer", "inner") })
	if err != nil {
		f.Fatal(err)
	}
	if err := db.Close(); err != nil {
		f.Fatal(err)
	}
	var seed [2][]byte
	for i, suffix := range []string{"", ".copy"} {
		if seed[i], err = os.ReadFile(o.Path + suffix); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(seed[0], seed[1])
	f.Add(seed[0], []byte(nil))
	f.Add([]byte(nil), seed[1])
	f.Fuzz(func(t *testing.T, data, copied []byte) {
		o := dbfile.Options{Path: filepath.Join(memoryDir(t), "x.db"), Volatile: true}
		must(t, os.WriteFile(o.Path, data, 0o600))
		must(t, os.WriteFile(o.Path+".copy", copied, 0o600))
		db, err := dbfile.Open(o)
		if err != nil {
			if !errdefs.IsDataLoss(err) {
				t.Fatal(err)
			}
			if _, err := dbfile.Repair(o, false); err != nil {
				t.Fatal(err)
			}
			if db, err = dbfile.Open(o); err != nil {
				t.Fatal(err)
			}
		}
		must(t, db.Update(func(tx *dbfile.Tx) error { return tx.Put("key", []byte("value"), "new") }))
		must(t, db.Close())
	})
}

// TestOnlyDamagedPlacesAreLost damages a file and its copy: an entry that is sound in one of the
// two comes back, and the newer of both.
func TestOnlyDamagedPlacesAreLost(t *testing.T) {
	f := newFile(t)
	o := f.options()
	db, err := dbfile.Open(o)
	must(t, err)
	const entries = 500
	value := func(i, version int) []byte {
		return []byte(fmt.Sprintf("value %d %d ", i, version) + strings.Repeat("x", 300))
	}
	put := func(from, to, version int) {
		must(t, db.Update(func(tx *dbfile.Tx) error {
			for i := from; i < to; i++ {
				must(t, tx.Put(fmt.Sprintf("k%03d", i), value(i, version), "b"))
			}
			return nil
		}))
	}
	put(0, entries, 1)
	must(t, db.Close())
	db, err = dbfile.Open(o) // rewrites the copy
	must(t, err)
	st, err := os.Stat(f.path + ".copy")
	must(t, err)
	put(100, 101, 2) // the first frame behind that
	put(200, 201, 2)
	must(t, db.Close())
	copied, err := os.ReadFile(f.path + ".copy")
	must(t, err)
	file, err := os.ReadFile(f.path)
	must(t, err)
	repair := func(file, copied []byte) (map[string]string, dbfile.Report) {
		t.Helper()
		must(t, os.WriteFile(f.path, file, 0o600))
		must(t, os.WriteFile(f.path+".copy", copied, 0o600))
		if db, err := dbfile.Open(o); err == nil {
			_ = db.Close()
			t.Fatal("both are damaged, and it opens")
		}
		r, err := dbfile.Repair(o, false)
		must(t, err)
		db := f.open(t)
		defer db.Close()
		got := all(t, db)
		delete(got, "/b#") // the bucket itself
		delete(got, "b#")
		return got, r
	}
	// The file is gone but for its length, and a bit of the copy has flipped.
	one := slices.Clone(copied)
	one[st.Size()/2] ^= 1
	got, r := repair(make([]byte, len(file)), one)
	if lost := entries - len(got); lost < 1 || lost > 10 || r.Whole {
		t.Errorf("%d entries are lost with one place of the copy: %+v", lost, r)
	}
	// A page of the file is zeroed, and the copy lacks the change of k100: the file's is newer.
	changed := slices.Clone(copied)
	changed[st.Size()+100] ^= 1
	page := bytes.Index(file, []byte("value 400 1")) / os.Getpagesize() * os.Getpagesize()
	holed := slices.Clone(file)
	clear(holed[page : page+os.Getpagesize()])
	got, _ = repair(holed, changed)
	if len(got) != entries {
		t.Errorf("%d of %d entries are there", len(got), entries)
	}
	for i, version := range map[int]int{100: 2, 200: 2, 300: 1, 400: 1} {
		found := false
		for key, v := range got {
			found = found || strings.HasSuffix(key, fmt.Sprintf("k%03d", i)) && v == string(value(i, version))
		}
		if !found {
			t.Errorf("k%03d has not version %d", i, version)
		}
	}
}
