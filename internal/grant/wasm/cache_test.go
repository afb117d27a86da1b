package wasm

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"

	"github.com/longshore/longshore/internal/grant/compiled"
	"github.com/longshore/longshore/internal/roottest"
)

// writing returns a module that writes a text.
func writing(text string) []byte {
	p := &program{}
	p.write(1, text)
	return p.module()
}

func keyOf(module []byte) compiled.Key {
	return compiled.KeyFor(sha256.Sum256(module), compiled.OwnVersion())
}

// compiledBy has longshore-wasm compile a module in its confined child.
func compiledBy(t *testing.T, cache string, module []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "module.wasm")
	if err := os.WriteFile(path, module, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), os.Args[0], "compile", "--cache", cache, path).CombinedOutput()
	if err != nil {
		t.Fatalf("compile: %v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// watched is an entry that counts how it is used.
type watched struct {
	entry
	found, added int
}

func (w *watched) Get(key [sha256.Size]byte) (io.ReadCloser, bool, error) {
	r, ok, err := w.entry.Get(key)
	if ok {
		w.found++
	}
	return r, ok, err
}

func (w *watched) Add([sha256.Size]byte, io.Reader) error {
	w.added++
	return nil
}

func TestACompiledModuleIsUsed(t *testing.T) {
	module, cache := writing("compiled"), filepath.Join(t.TempDir(), "cache")
	if keyOf(module).Wazero == "" {
		t.Fatal("the version of wazero is not known")
	}
	path := compiledBy(t, cache, module)
	entries, err := os.ReadDir(cache)
	if err != nil || len(entries) != 1 || filepath.Dir(path) != cache || entries[0].Name() != filepath.Base(path) || filepath.Base(path) != keyOf(module).Name() {
		t.Fatalf("the cache has %v, %v; the entry is %s", entries, err, path)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the entry has the mode %v, %v", st.Mode(), err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if again := compiledBy(t, cache, module); again != path {
		t.Errorf("the second time it is %s", again)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("an entry that is right was made again: %v", err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// wazero takes it: it asks for it, and compiles nothing.
	files, err := compiled.Open(data, keyOf(module))
	if err != nil {
		t.Fatal(err)
	}
	e := &watched{entry: entry{files}}
	r := wazero.NewRuntimeWithConfig(t.Context(), runtimeConfig().WithCompilationCache(cacheOf(e)))
	if _, err := r.CompileModule(t.Context(), module); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if e.found != 1 || e.added != 0 {
		t.Errorf("%d were found, %d were compiled", e.found, e.added)
	}
	w := newWorker(t, module)
	w.job.Compiled = w.pass(openFile(t, path, os.O_RDONLY))
	w.expect("compiled")
}

// TestAnEntryThatIsNotRightIsNeverExecuted gives workers entries with the code of another module: if one were used, the other's text would
// be written.
func TestAnEntryThatIsNotRightIsNeverExecuted(t *testing.T) {
	own, other, cache := writing("own"), writing("another text"), filepath.Join(t.TempDir(), "cache")
	read := func(module []byte) []byte {
		t.Helper()
		data, err := os.ReadFile(compiledBy(t, cache, module))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	right, foreign := read(own), read(other)
	type list struct {
		Key   compiled.Key        `json:"key"`
		Files []compiled.FileSize `json:"files"`
	}
	resealed := func(from []byte, change func(*list)) []byte {
		t.Helper()
		magic, rest, _ := bytes.Cut(from[:len(from)-sha256.Size], []byte("\n"))
		line, files, _ := bytes.Cut(rest, []byte("\n"))
		var h list
		if err := json.Unmarshal(line, &h); err != nil {
			t.Fatal(err)
		}
		change(&h)
		head, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		out := bytes.Join([][]byte{magic, head, files}, []byte("\n"))
		sum := sha256.Sum256(out)
		return append(out, sum[:]...)
	}
	flipped := bytes.Clone(right)
	flipped[len(flipped)/2] ^= 1
	older := append([]byte("longshore compiled wasm 1\n"), right[len("longshore compiled wasm 1\n"):]...)
	wrong := map[string][]byte{
		"of another module":    foreign,
		"of an older version":  resealed(foreign, func(h *list) { h.Key = keyOf(own); h.Key.Wazero = "v1.0.0" }),
		"of an older form":     older,
		"of another processor": resealed(foreign, func(h *list) { h.Key = keyOf(own); h.Key.CPU = "amd64-0" }),
		"with a flipped bit":   flipped,
		"truncated":            right[:len(right)-100],
		"empty":                nil,
		"with a longer list":   resealed(foreign, func(h *list) { h.Key = keyOf(own); h.Files = append(h.Files, compiled.FileSize{Name: "more", Size: 1}) }),
		"that leads out":       resealed(foreign, func(h *list) { h.Key = keyOf(own); h.Files[0].Name = "../" + h.Files[0].Name }),
		"of negative size": resealed(foreign, func(h *list) {
			h.Key = keyOf(own)
			h.Files = append(h.Files, compiled.FileSize{Name: "a", Size: -1}, compiled.FileSize{Name: "b", Size: 1})
		}),
	}
	for name, data := range wrong {
		if files, err := compiled.Open(data, keyOf(own)); err == nil {
			t.Errorf("an entry %s has the files %v", name, files)
		}
		path := filepath.Join(t.TempDir(), "entry")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		w := newWorker(t, own)
		w.job.Compiled = w.pass(openFile(t, path, os.O_RDONLY))
		w.expect("own")
		// The cache makes it again.
		if err := os.WriteFile(filepath.Join(cache, keyOf(own).Name()), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := read(own); !bytes.Equal(got, right) {
			t.Errorf("an entry %s stays", name)
		}
	}
	// Only the sum and the key keep such code out: without them it is executed, which this test would notice.
	lying := resealed(foreign, func(h *list) {
		h.Key = keyOf(own)
		files, err := compiled.Open(right, keyOf(own))
		if err != nil {
			t.Fatal(err)
		}
		h.Files[0].Name = files[0].Name
	})
	path := filepath.Join(t.TempDir(), "entry")
	if err := os.WriteFile(path, lying, 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorker(t, own)
	w.job.Compiled = w.pass(openFile(t, path, os.O_RDONLY))
	if status, out := w.end(w.start()); status != 0 || string(out) != "own"+strings.Repeat("\x00", len("another text")-len("own")) {
		t.Errorf("code of another module under the module's own name ended with %d and wrote %q: nothing would be noticed", status, out)
	}
}

func TestACacheThatOthersMayWriteToIsRefused(t *testing.T) {
	cache := t.TempDir()
	if err := os.Chmod(cache, 0o770); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "module.wasm")
	if err := os.WriteFile(path, writing("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), os.Args[0], "compile", "--cache", cache, path).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "others may write to or read") {
		t.Errorf("%v: %s", err, out)
	}
}

// cacheFor opens a cache with this program as its compiler.
func cacheFor(t *testing.T, dir string, limit int64) *compiled.Cache {
	t.Helper()
	c, err := compiled.New(compiled.Options{Dir: dir, Program: os.Args[0], Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// moduleFile writes a module to a file.
func moduleFile(t *testing.T, module []byte) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "module.wasm")
	if err := os.WriteFile(path, module, 0o600); err != nil {
		t.Fatal(err)
	}
	return openFile(t, path, os.O_RDONLY)
}

func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// TestTheCacheIsBounded: the least recently used entry goes, and so does one that an image's
// removal or a pruning names.
func TestTheCacheIsBounded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	first, second, third := writing("first"), writing("the second"), writing("the third one")
	open := func(c *compiled.Cache, module []byte, age time.Duration) int64 {
		t.Helper()
		f, err := c.Open(t.Context(), moduleFile(t, module), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		st, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(f.Name(), at, at); err != nil {
			t.Fatal(err)
		}
		return st.Size()
	}
	size := open(cacheFor(t, dir, 0), first, 30*time.Hour)
	c := cacheFor(t, dir, 2*size+size/2)
	open(c, second, 40*time.Hour)
	open(c, third, 30*time.Minute)
	if got := entries(t, dir); len(got) != 2 || slices.Contains(got, keyOf(second).Name()) {
		t.Errorf("it has %v", got)
	}
	open(c, first, 30*time.Hour) // it is used
	if err := os.MkdirAll(filepath.Join(dir, ".compile-left", "child"), 0o700); err != nil {
		t.Fatal(err)
	}
	if c = cacheFor(t, dir, 0); len(entries(t, dir)) != 2 {
		t.Errorf("what was left of a compilation is there: %v", entries(t, dir))
	}
	if _, err := c.Prune(24*time.Hour, func(string) bool { return false }); err != nil || !slices.Equal(entries(t, dir), []string{keyOf(third).Name()}) {
		t.Errorf("after a pruning it has %v, %v", entries(t, dir), err)
	}
	if freed, err := c.Prune(0, func(m string) bool { return m == keyOf(third).Module }); freed != 0 || err != nil {
		t.Errorf("%d bytes were freed, %v", freed, err)
	}
	if freed, err := c.Prune(0, func(string) bool { return false }); freed == 0 || err != nil || len(entries(t, dir)) != 0 {
		t.Errorf("%d bytes were freed, %v; it has %v", freed, err, entries(t, dir))
	}
}

// TestAModuleThatCannotBeCompiledIsTriedOnce: nothing of it is kept, and its containers do not wait for another try.
func TestAModuleThatCannotBeCompiledIsTriedOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	c := cacheFor(t, dir, 0)
	whole := writing("text")
	for name, module := range map[string][]byte{"garbage": []byte("\x00asm\x01\x00\x00\x00garbage"), "truncated": whole[:len(whole)-20], "empty": nil} {
		_, first := c.Open(t.Context(), moduleFile(t, module), nil)
		_, again := c.Open(t.Context(), moduleFile(t, module), nil)
		if first == nil || again == nil || strings.Contains(first.Error(), "before") || !strings.Contains(again.Error(), "before") || len(entries(t, dir)) != 0 {
			t.Errorf("%s: %v, then %v; the cache has %v", name, first, again, entries(t, dir))
		}
	}
	huge := moduleFile(t, nil)
	if err := os.Truncate(huge.Name(), compiled.MaxModule+1); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Open(t.Context(), huge, nil); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a huge module: %v", err)
	}
}

// TestWhoCompilesIsBoundAndConfined checks the child before it reads the module.
func TestWhoCompilesIsBoundAndConfined(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0], compiled.ChildArg, dir)
	cmd.Env = []string{}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	proc := fmt.Sprintf("/proc/%d/", cmd.Process.Pid)
	fields := func(file string) string {
		data, err := os.ReadFile(proc + file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(string(data)), " ")
	}
	roottest.Eventually(t, "the child has a filter of system calls", func() bool { return strings.Contains(fields("status"), "Seccomp: 2") })
	for _, want := range []string{"Max cpu time 60 60", "Max data size 1073741824 1073741824", "Max file size 536870912 536870912", "Max core file size 0 0"} {
		if got := fields("limits"); !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
	for _, want := range []string{"NoNewPrivs: 1", "CapEff: 0000000000000000", "CapPrm: 0000000000000000"} {
		if got := fields("status"); !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
	if got := fields("oom_score_adj"); got != "1000" {
		t.Errorf("its oom_score_adj is %s", got)
	}
	threads, err := os.ReadDir(proc + "task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		const nice = 18 // the number of the field in proc(5), less one
		if _, stat, _ := strings.Cut(fields("task/"+thread.Name()+"/stat"), ") "); strings.Fields(stat)[nice-2] != "19" {
			t.Errorf("thread %s of %d: %s", thread.Name(), len(threads), stat)
		}
	}
	_ = in.Close()
	if err := cmd.Wait(); err == nil {
		t.Error("it compiled nothing")
	}
}
