package wasm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
)

// writing returns a module that writes a text.
func writing(text string) []byte {
	p := &program{}
	p.write(1, text)
	return p.module()
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

func countFiles(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			n++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestACompiledModuleIsUsed(t *testing.T) {
	module, cache := writing("compiled"), filepath.Join(t.TempDir(), "cache")
	if KeyOf(module).Wazero == "" {
		t.Fatal("the version of wazero is not known")
	}
	path := compiledBy(t, cache, module)
	entries, err := os.ReadDir(cache)
	if err != nil || len(entries) != 1 || filepath.Dir(path) != cache || entries[0].Name() != filepath.Base(path) {
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
	entry, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// wazero takes it: it compiles nothing, and so writes nothing beside it.
	dir := t.TempDir()
	if err := unpack(entry, KeyOf(module), dir); err != nil {
		t.Fatal(err)
	}
	had := countFiles(t, dir)
	ctx := context.Background()
	c, err := wazero.NewCompilationCacheWithDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := wazero.NewRuntimeWithConfig(ctx, runtimeConfig().WithCompilationCache(c))
	if _, err := r.CompileModule(ctx, module); err != nil {
		t.Fatal(err)
	}
	if now := countFiles(t, dir); now != had || had == 0 {
		t.Errorf("%d files were unpacked, and there are %d after it was loaded", had, now)
	}
	if err := r.Close(ctx); err != nil {
		t.Error(err)
	}
	w := newWorker(t, module)
	w.job.Compiled = w.pass(openFile(t, path, os.O_RDONLY))
	w.expect("compiled")
}

// TestAnEntryThatIsNotRightIsNeverExecuted gives workers entries with the code of another module: if one were used, the other's text would
// be written.
func TestAnEntryThatIsNotRightIsNeverExecuted(t *testing.T) {
	own, other, cache := writing("own"), writing("other"), filepath.Join(t.TempDir(), "cache")
	read := func(module []byte) []byte {
		t.Helper()
		data, err := os.ReadFile(compiledBy(t, cache, module))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	right, foreign := read(own), read(other)
	resealed := func(change func(*header)) []byte {
		t.Helper()
		line, files, _ := bytes.Cut(right[len(entryMagic):len(right)-sha256.Size], []byte("\n"))
		var h header
		if err := json.Unmarshal(line, &h); err != nil {
			t.Fatal(err)
		}
		change(&h)
		head, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		entry := append(append([]byte(entryMagic), head...), '\n')
		entry = append(entry, files...)
		sum := sha256.Sum256(entry)
		return append(entry, sum[:]...)
	}
	flipped := bytes.Clone(right)
	flipped[len(flipped)/2] ^= 1
	wrong := map[string][]byte{
		"of another module":    foreign,
		"of an older version":  resealed(func(h *header) { h.Key.Wazero = "v1.0.0" }),
		"of another processor": resealed(func(h *header) { h.Key.CPU = "amd64-0" }),
		"with a flipped bit":   flipped,
		"truncated":            right[:len(right)-100],
		"empty":                nil,
		"with a longer list":   resealed(func(h *header) { h.Files = append(h.Files, entryFile{"more", 1}) }),
		"that leads out":       resealed(func(h *header) { h.Files[0].Name = "../out" }),
		"of negative size":     resealed(func(h *header) { h.Files = append(h.Files, entryFile{"a", -1}, entryFile{"b", 1}) }),
	}
	for name, entry := range wrong {
		dir := t.TempDir()
		if err := unpack(entry, KeyOf(own), dir); err == nil || countFiles(t, dir) != 0 {
			t.Errorf("an entry %s was unpacked", name)
		}
		path := filepath.Join(t.TempDir(), "entry")
		if err := os.WriteFile(path, entry, 0o600); err != nil {
			t.Fatal(err)
		}
		w := newWorker(t, own)
		w.job.Compiled = w.pass(openFile(t, path, os.O_RDONLY))
		w.expect("own")
	}
	if err := unpack(right, KeyOf(own), t.TempDir()); err != nil {
		t.Errorf("the right one: %v", err)
	}
	// A damaged entry is made again.
	path := filepath.Join(cache, KeyOf(own).Name())
	if err := os.WriteFile(path, flipped, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := read(own); !bytes.Equal(got, right) {
		t.Error("a damaged entry stays")
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
