package wasm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"github.com/tetratelabs/wazero"
	experimentalsys "github.com/tetratelabs/wazero/experimental/sys"
	"github.com/tetratelabs/wazero/experimental/sysfs"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"

	"github.com/longshore/longshore/internal/grant"
	"github.com/longshore/longshore/internal/grant/compiled"
)

// Exit statuses of a worker beside those of its program. The first two are those that a shell uses, the last is that of a program
// which ended by SIGABRT: other runtimes for WebAssembly end so after a trap.
const (
	StatusNotRun   = 126 // the module cannot be run
	StatusNoJob    = 125 // the worker was not started as it must be
	StatusTrap     = 134
	statusExitMask = 0xff
)

// Run runs the job's program in this process and returns its exit status. It writes to messages why a program trapped or could not be run.
func Run(ctx context.Context, j *Job, messages io.Writer) int {
	tell := func(status int, format string, args ...any) int {
		const most = 4096
		text := strings.ToValidUTF8(fmt.Sprintf(format, args...), "?")
		_, _ = fmt.Fprintf(messages, "longshore-wasm: %s\n", text[:min(len(text), most)])
		return status
	}
	config, err := moduleConfig(j)
	if err != nil {
		return tell(StatusNoJob, "%v", err)
	}
	module, err := readModule(j.Module)
	if err != nil {
		return tell(StatusNotRun, "%v", err)
	}
	cache, release, known := openCompiled(j, module)
	defer func() { _ = cache.Close(context.WithoutCancel(ctx)) }()
	r := wazero.NewRuntimeWithConfig(ctx, runtimeConfig().WithCompilationCache(cache))
	defer func() { _ = r.Close(context.WithoutCancel(ctx)) }()
	host := r.NewHostModuleBuilder(wasi_snapshot_preview1.ModuleName)
	wasi_snapshot_preview1.NewFunctionExporter().ExportFunctions(host)
	exportAccept(host)
	if _, err := host.Instantiate(ctx); err != nil {
		return tell(StatusNotRun, "%v", err)
	}
	code, err := r.CompileModule(ctx, module)
	release()
	if err != nil {
		return tell(StatusNotRun, "the module cannot be compiled: %v", err)
	}
	big := len(module) > bigModule
	module = nil //nolint:ineffassign,wastedassign // so that it can be collected
	if big || !known {
		debug.FreeOSMemory() // free the memory of the compilation
	}
	_, err = r.InstantiateModule(withMemory(ctx), code, config)
	var exit *sys.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit.ExitCode() & statusExitMask)
	case strings.Contains(err.Error(), "wasm error:") || strings.Contains(err.Error(), "wasm stack trace:"):
		return tell(StatusTrap, "the program trapped: %v", err)
	}
	return tell(StatusNotRun, "the module cannot be run: %v", err)
}

// bigModule is how large a module is that is worth a collection of garbage, which takes longer than to load a small one.
const bigModule = 256 << 10

func runtimeConfig() wazero.RuntimeConfig {
	return wazero.NewRuntimeConfigCompiler().WithDebugInfoEnabled(false)
}

func readModule(number int) ([]byte, error) {
	f := os.NewFile(uintptr(number), "module")
	if f == nil {
		return nil, errors.New("read the module: it was not passed")
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, compiled.MaxModule+1))
	if err != nil {
		return nil, fmt.Errorf("read the module: %w", err)
	}
	if len(data) > compiled.MaxModule {
		return nil, fmt.Errorf("the module has more than %d bytes", compiled.MaxModule)
	}
	return data, nil
}

// moduleConfig gives the program its grants, and nothing else: no standard streams, and a clock and random bytes only
// if they are granted.
func moduleConfig(j *Job) (wazero.ModuleConfig, error) {
	root, mounts, err := openGrants(j)
	if err != nil {
		return nil, err
	}
	files := mount(wazero.NewFSConfig(), root, "/")
	for _, m := range mounts {
		files = mount(files, m.fs, m.path)
	}
	config := wazero.NewModuleConfig().WithName("").WithArgs(j.Args...).WithFSConfig(files).WithRandSource(noRandom{})
	for _, e := range j.Environment {
		name, value, _ := strings.Cut(e, "=")
		if name == "" || strings.ContainsRune(e, 0) {
			return nil, fmt.Errorf("the environment has %q", e)
		}
		config = config.WithEnv(name, value)
	}
	for _, d := range j.Descriptors {
		switch d.Grant.Kind {
		case grant.Random:
			config = config.WithRandSource(rand.Reader)
		case grant.Clock:
			config = config.WithSysWalltime().WithSysNanotime().WithSysNanosleep()
		case grant.Log:
			log := os.NewFile(uintptr(d.Number), d.Name)
			config = config.WithStdout(log).WithStderr(log)
		}
	}
	return config, nil
}

func mount(c wazero.FSConfig, fs experimentalsys.FS, path string) wazero.FSConfig {
	return c.(sysfs.FSConfig).WithSysFSMount(fs, path)
}

// noRandom is the source of random bytes of a program without that grant.
type noRandom struct{}

// Read implements io.Reader.
func (noRandom) Read([]byte) (int, error) { return 0, errors.New("random bytes were not granted") }
