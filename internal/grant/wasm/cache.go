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
	"reflect"
	"runtime"
	"runtime/debug"
	"strconv"
	"unsafe"

	"github.com/tetratelabs/wazero"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/grant/compiled"
)

// Compile compiles a module below the empty directory scratch, and writes the result: a list of files in one line, and
// their bytes. The confined child calls it.
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
	var files []compiled.FileSize
	err = filepath.WalkDir(scratch, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(scratch, path)
		files = append(files, compiled.FileSize{Name: name, Size: info.Size()})
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

// Limits of a child that compiles. Go reserves more than it uses.
const (
	childSoftMemory = 640 << 20
	childNice       = 19
	firstToGo       = "1000" // oom_score_adj
)

// boundChild limits the resources of this process: memory, processor time, and one processor at the lowest priority. The kernel kills it
// first when memory runs out. Without that it would inherit the score of the agent, which the kernel kills last.
func boundChild() error {
	debug.SetMemoryLimit(childSoftMemory)
	runtime.GOMAXPROCS(1)
	for resource, limit := range map[int]uint64{
		unix.RLIMIT_DATA: compiled.ChildMemory, unix.RLIMIT_CPU: compiled.ChildSeconds, unix.RLIMIT_FSIZE: compiled.MaxEntry, unix.RLIMIT_CORE: 0,
	} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("limit a resource: %w", err)
		}
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(firstToGo), 0); err != nil {
		return fmt.Errorf("limit memory: %w", err)
	}
	return lowerPriority()
}

// lowerPriority sets the nice value of all threads, because Linux has one per thread. A new thread inherits that of its creator, so the
// loop ends when no thread needs a change.
func lowerPriority() error {
	for changed := true; changed; {
		changed = false
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("lower the priority: %w", err)
		}
		for _, t := range threads {
			id, err := strconv.Atoi(t.Name())
			if err != nil {
				return fmt.Errorf("lower the priority: %w", err)
			}
			const kernelNice = 20 // the system call returns 20 minus the priority
			if has, err := unix.Getpriority(unix.PRIO_PROCESS, id); err != nil || has == kernelNice-childNice {
				continue // it has ended, or has been changed
			}
			if err := unix.Setpriority(unix.PRIO_PROCESS, id, childNice); err != nil {
				return fmt.Errorf("lower the priority: %w", err)
			}
			changed = true
		}
	}
	return nil
}

// fileCache is wazero's own interface of a cache of compiled code.
type fileCache interface {
	Get(key [sha256.Size]byte) (content io.ReadCloser, ok bool, err error)
	Add(key [sha256.Size]byte, content io.Reader) error
	Delete(key [sha256.Size]byte) error
}

// entry is a file cache of wazero's that has a checked entry, and keeps nothing.
type entry struct{ files []compiled.File }

// Get returns the code that wazero knows by key.
func (e *entry) Get(key [sha256.Size]byte) (io.ReadCloser, bool, error) {
	for _, f := range e.files {
		if filepath.Base(f.Name) == hex.EncodeToString(key[:]) {
			return io.NopCloser(bytes.NewReader(f.Data)), true, nil
		}
	}
	return nil, false, nil
}

// Add drops code that wazero has compiled by itself.
func (e *entry) Add([sha256.Size]byte, io.Reader) error { return nil }

// Delete forgets code that wazero finds to be another version's.
func (e *entry) Delete([sha256.Size]byte) error {
	e.files = nil
	return nil
}

// cacheOf returns a cache with e's content. wazero reads files below a directory only, and a worker has no directory:
// so it sets wazero's field, which has an interface type without types of wazero's own. A test fails if a version of
// wazero lacks the field.
func cacheOf(e fileCache) wazero.CompilationCache {
	cache := wazero.NewCompilationCache()
	field := reflect.ValueOf(cache).Elem().FieldByName("fileCache")
	reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem().Set(reflect.ValueOf(e))
	return cache
}

// openCompiled returns a cache with the job's compiled module, or an empty one: then the module is compiled here. A
// damaged one is not used, and the program runs without it. wazero reads the memory that release frees until the module
// is loaded. Known reports whether there is code.
func openCompiled(j *Job, module []byte) (cache wazero.CompilationCache, release func(), known bool) {
	data, release := readCompiled(j)
	key := compiled.KeyFor(sha256.Sum256(module), compiled.OwnVersion())
	files, err := compiled.Open(data, key)
	if err != nil {
		return wazero.NewCompilationCache(), release, false
	}
	return cacheOf(&entry{files}), release, true
}

// readCompiled reads the entry into memory of its own, which the program shall not find in its heap.
func readCompiled(j *Job) (data []byte, release func()) {
	release = func() {}
	if j.Compiled == 0 {
		return nil, release
	}
	f := os.NewFile(uintptr(j.Compiled), "compiled")
	if f == nil {
		return nil, release
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil || st.Size() <= 0 || st.Size() > compiled.MaxEntry {
		return nil, release
	}
	data, err = unix.Mmap(-1, 0, int(st.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, release
	}
	release = func() { _ = unix.Munmap(data) }
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, release
	}
	return data, release
}
