package granted

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/grant"
	"github.com/longshore/longshore/internal/turns"
)

// A container with a WebAssembly module as its program is launched like every other one here, with longshore-wasm as
// its program: that process holds the grants and the module, and is confined in the same way. Its first descriptor is a
// job in place of the argument.

// workerProgram is installed beside the agent.
const workerProgram = "longshore-wasm"

// openModule opens a container's program if that is a WebAssembly module, and else returns nil. A module is named by its
// path, and ends in .wasm; it need not be executable.
func openModule(rootfs string, p *specs.Process) (*os.File, error) {
	name := p.Args[0]
	if !strings.HasSuffix(name, ".wasm") || !strings.Contains(name, "/") {
		return nil, nil //nolint:nilnil // it is no module
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join("/", p.Cwd, name)
	}
	fail := func(errno syscall.Errno, err error, class error) (*os.File, error) {
		return nil, &core.StartError{Errno: errno, Err: fmt.Errorf("run %s: %w: %w", name, err, class)}
	}
	root, err := os.OpenFile(rootfs, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	at, err := beneath.In(root, name, unix.O_PATH, 0)
	if errors.Is(err, os.ErrNotExist) {
		return fail(syscall.ENOENT, errors.New("no such module in the image"), errdefs.ErrNotFound)
	}
	if err != nil {
		return fail(syscall.EACCES, err, errdefs.ErrFailedPrecondition)
	}
	defer func() { _ = at.Close() }()
	if st, err := at.Stat(); err != nil || !st.Mode().IsRegular() {
		return fail(syscall.EACCES, errors.Join(errors.New("it is no regular file"), err), errdefs.ErrFailedPrecondition)
	}
	f, err := os.Open("/proc/self/fd/" + strconv.Itoa(int(at.Fd())))
	if err != nil {
		return fail(syscall.EACCES, err, errdefs.ErrFailedPrecondition)
	}
	head := make([]byte, 4)
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, 4), head); err != nil || string(head) != "\x00asm" {
		_ = f.Close()
		return nil, nil //nolint:nilnil // a program that is only called so
	}
	return f, nil
}

// WorkerPath returns the path of the program that runs modules.
func WorkerPath() (string, error) {
	self, err := os.Executable()
	return filepath.Join(filepath.Dir(self), workerProgram), err
}

// openWorker opens the program that runs modules.
func openWorker() (*os.File, error) {
	path, err := WorkerPath()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, unix.O_PATH, 0)
	if err != nil {
		return nil, fmt.Errorf("WebAssembly needs %s beside the agent: %w: %w", workerProgram, err, errdefs.ErrFailedPrecondition)
	}
	return f, nil
}

// Modules keeps compiled modules.
type Modules interface {
	// Open returns the compiled form of a module, and compiles the module if there is none. by is the container's owner, namespace and image.
	Open(ctx context.Context, module *os.File, by turns.Path) (*os.File, error)
}

// addModule opens the compiled form of a container's module. Without one, the worker compiles the module in the container's own limits.
func (r *Runtime) addModule(ctx context.Context, h *opened, c core.RuntimeCreate, module *os.File) error {
	h.module = module
	h.files = append(h.files, module)
	if r.o.Modules == nil {
		return nil
	}
	compiled, err := r.o.Modules.Open(ctx, module, turns.Path{string(c.Identity.Owner), c.Identity.Namespace, c.Identity.Image})
	switch {
	case err == nil:
		h.compiled = compiled
		h.files = append(h.files, compiled)
	case ctx.Err() != nil:
		return err
	default:
		r.o.Logger.InfoContext(ctx, "the container compiles its WebAssembly module at its start, in its own limits", "container", c.ID, "reason", err)
	}
	return nil
}

// moduleNumber is the worker's descriptor with the module: it comes after the grants. The next is its compiled form.
func moduleNumber(r *grant.Resolved) int { return grant.FirstNumber + len(r.Descriptors) }

// job returns the worker's input in place of the argument.
func (h *opened) job(p *specs.Process, r *grant.Resolved) ([]byte, error) {
	j := grant.WasmJob{
		Module: moduleNumber(r), Args: p.Args, Environment: r.Environment, Descriptors: r.Descriptors, Argdata: r.Argdata,
	}
	if h.compiled != nil {
		j.Compiled = j.Module + 1
	}
	return json.Marshal(j)
}

// ofWorker adds the module to the grants, and returns the worker's spec and descriptors.
func (h *opened) ofWorker(s *specs.Spec, r *grant.Resolved) (*specs.Spec, *grant.Resolved) {
	spec, process, all := *s, *s.Process, *r
	process.Args = []string{workerProgram, "run"}
	spec.Process = &process
	all.Descriptors = append(all.Descriptors[:len(all.Descriptors):len(all.Descriptors)], grant.Descriptor{Number: moduleNumber(r), Name: "module"})
	h.given = append(h.given, core.Given{File: h.module, Access: core.AccessRead})
	if h.compiled != nil {
		all.Descriptors = append(all.Descriptors, grant.Descriptor{Number: moduleNumber(r) + 1, Name: "compiled"})
		h.given = append(h.given, core.Given{File: h.compiled, Access: core.AccessRead})
	}
	return &spec, &all
}
