package wasm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"

	"github.com/tetratelabs/wazero"
	"golang.org/x/sys/cpu"
)

// A compiled module is machine code, which a worker executes. So an entry of the cache says of what it was made, by which version and for
// which processor, and ends with a sum over all of it. The sum tells damage, not malice: only root can write to the cache, and the child
// that compiles cannot.
//
//	magic, a line of JSON (header), the files' bytes, SHA-256 of all before
const (
	entryMagic  = "longshore compiled wasm 1\n"
	maxHeader   = 64 << 10
	maxCompiled = 1 << 30
)

// Key says what compiled code is good for.
type Key struct {
	Module string `json:"module"` // SHA-256, in hexadecimal
	Wazero string `json:"wazero"` // its version
	CPU    string `json:"cpu"`    // the architecture, and a digest of the processor's features
}

type header struct {
	Key   Key         `json:"key"`
	Files []entryFile `json:"files"`
}

type entryFile struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

// KeyOf returns the key of what this program makes of a module on this processor.
func KeyOf(module []byte) Key {
	sum := sha256.Sum256(module)
	features := sha256.Sum256(fmt.Appendf(nil, "%+v %+v", cpu.X86, cpu.ARM64))
	return Key{Module: hex.EncodeToString(sum[:]), Wazero: wazeroVersion(), CPU: runtime.GOARCH + "-" + hex.EncodeToString(features[:8])}
}

// Name is the name of the key's entry in a cache.
func (k Key) Name() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", k.Module, k.Wazero, k.CPU))
	return hex.EncodeToString(sum[:])
}

// wazeroVersion returns the version of wazero of this program. A program that does not know it, as those of go test, is itself the version.
func wazeroVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "github.com/tetratelabs/wazero" && m.Replace == nil {
				return m.Version
			}
		}
	}
	sum := sha256.New()
	path, err := os.Executable()
	if err == nil {
		err = copyFile(sum, path)
	}
	if err != nil {
		return ""
	}
	return "program " + hex.EncodeToString(sum.Sum(nil))
}

// Compile compiles a module below the empty directory scratch, and writes what came of it: a header's list of files in one line, and
// their bytes. It is what the confined child does.
func Compile(ctx context.Context, module []byte, scratch string, w io.Writer) error {
	cache, err := wazero.NewCompilationCacheWithDir(scratch)
	if err != nil {
		return fmt.Errorf("compile: %w", err)
	}
	r := wazero.NewRuntimeWithConfig(ctx, runtimeConfig().WithCompilationCache(cache))
	_, err = r.CompileModule(ctx, module)
	if err = errors.Join(err, r.Close(ctx), cache.Close(ctx)); err != nil {
		return fmt.Errorf("compile: %w", err)
	}
	var files []entryFile
	err = filepath.WalkDir(scratch, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(scratch, path)
		files = append(files, entryFile{Name: name, Size: info.Size()})
		return err
	})
	if err != nil {
		return fmt.Errorf("compile: %w", err)
	}
	line, err := json.Marshal(files)
	if err == nil {
		_, err = w.Write(append(line, '\n'))
	}
	for _, f := range files {
		if err == nil {
			err = copyFile(w, filepath.Join(scratch, f.Name))
		}
	}
	return err
}

func copyFile(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = io.Copy(w, f)
	return err
}

// Seal makes an entry of what Compile wrote.
func Seal(key Key, compiled []byte) ([]byte, error) {
	line, body, ok := bytes.Cut(compiled, []byte("\n"))
	h := header{Key: key}
	if !ok || json.Unmarshal(line, &h.Files) != nil || len(h.Files) == 0 {
		return nil, errors.New("the compiler wrote nothing")
	}
	if err := h.fits(int64(len(body))); err != nil {
		return nil, err
	}
	head, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	if len(head) > maxHeader {
		return nil, errors.New("the compiler wrote too many files")
	}
	entry := append([]byte(entryMagic), head...)
	entry = append(append(entry, '\n'), body...)
	sum := sha256.Sum256(entry)
	return append(entry, sum[:]...), nil
}

// fits reports whether the files, which must all be below the directory, have so many bytes.
func (h *header) fits(size int64) error {
	for _, f := range h.Files {
		if f.Size < 0 || f.Size > size || !filepath.IsLocal(f.Name) {
			return errors.New("its list of files is wrong")
		}
		size -= f.Size
	}
	if size != 0 {
		return errors.New("its list of files is wrong")
	}
	return nil
}

// unpack checks an entry and writes its files below dir. It writes nothing if the entry is not for key, or not as it was sealed.
func unpack(entry []byte, key Key, dir string) error {
	if len(entry) < len(entryMagic)+sha256.Size || !bytes.HasPrefix(entry, []byte(entryMagic)) {
		return errors.New("it is no compiled module of this version")
	}
	body, sum := entry[:len(entry)-sha256.Size], entry[len(entry)-sha256.Size:]
	if got := sha256.Sum256(body); !bytes.Equal(got[:], sum) {
		return errors.New("it is damaged: its sum is another one")
	}
	line, files, ok := bytes.Cut(body[len(entryMagic):], []byte("\n"))
	var h header
	if !ok || len(line) > maxHeader || json.Unmarshal(line, &h) != nil {
		return errors.New("its header cannot be read")
	}
	if h.Key != key || key.Wazero == "" {
		return fmt.Errorf("it is of another module, version or processor: %+v", h.Key)
	}
	if err := h.fits(int64(len(files))); err != nil {
		return err
	}
	for _, f := range h.Files {
		path := filepath.Join(dir, f.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, files[:f.Size], 0o600); err != nil {
			return err
		}
		files = files[f.Size:]
	}
	return nil
}

// openCompiled returns a cache with the job's compiled module, or an empty one: then the module is compiled here. What is not right is not
// used, and no reason not to run the program.
func openCompiled(j *Job, module []byte) (wazero.CompilationCache, error) {
	if j.Compiled == 0 || j.Scratch == "" {
		return wazero.NewCompilationCache(), nil
	}
	f := os.NewFile(uintptr(j.Compiled), "compiled")
	if f == nil {
		return wazero.NewCompilationCache(), nil
	}
	defer func() { _ = f.Close() }()
	entry, err := io.ReadAll(io.LimitReader(f, maxCompiled))
	if err == nil {
		err = unpack(entry, KeyOf(module), j.Scratch)
	}
	if err != nil {
		return wazero.NewCompilationCache(), dropScratch(j)
	}
	return wazero.NewCompilationCacheWithDir(j.Scratch)
}

// dropScratch removes what unpack has written.
func dropScratch(j *Job) error {
	if j.Scratch == "" {
		return nil
	}
	entries, err := os.ReadDir(j.Scratch)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(j.Scratch, e.Name())))
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return err
}
