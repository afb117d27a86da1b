package wasm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/confine"
	"github.com/longshore/longshore/internal/grant/compiled"
)

const usage = `usage: longshore-wasm run                       run the job of descriptor 3
       longshore-wasm compile --cache DIR FILE  compile a module into a cache, and print its entry's path
`

// Main is the program longshore-wasm.
func Main(args []string) int {
	ctx := context.Background()
	switch {
	case len(args) == 1 && args[0] == "run":
		err := endBySignal()
		unix.CloseOnExec(JobNumber)
		f := os.NewFile(JobNumber, "job")
		j, jobErr := ReadJob(f)
		_ = f.Close()
		if err = errors.Join(err, jobErr); err != nil {
			_, _ = fmt.Fprintf(os.Stderr, "longshore-wasm: %v\n", err)
			return StatusNoJob
		}
		return Run(ctx, j, os.Stderr)
	case len(args) == 4 && args[0] == "compile" && args[1] == "--cache":
		path, err := compileInto(ctx, args[2], args[3])
		if err != nil {
			_, _ = fmt.Fprintf(os.Stderr, "longshore-wasm: %v\n", err)
			return 1
		}
		_, _ = fmt.Fprintln(os.Stdout, path)
		return 0
	case len(args) == 2 && args[0] == compiled.ChildArg:
		if err := compileChild(ctx, args[1]); err != nil {
			_, _ = fmt.Fprintf(os.Stderr, "%v\n", err)
			if errno := syscall.Errno(0); errors.As(err, &errno) {
				return compiled.StatusLocal
			}
			return 1
		}
		return 0
	}
	_, _ = fmt.Fprint(os.Stderr, usage)
	return StatusNoJob
}

// endingSignals end a process that has no handlers for them.
var endingSignals = []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGQUIT, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2}

// compileInto compiles the module at path into the directory cache, and returns its entry's path. A sound existing
// entry stays.
func compileInto(ctx context.Context, dir, path string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	cache, err := compiled.New(compiled.Options{Dir: dir, Program: self})
	if err != nil {
		return "", err
	}
	module, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = module.Close() }()
	entry, err := cache.Open(ctx, module, nil)
	if err != nil {
		return "", fmt.Errorf("compile %s: %w", path, err)
	}
	return entry.Name(), entry.Close()
}

// compileChild compiles the module of the standard input. Before it reads that, it describes its confinement in a line
// of its standard error.
func compileChild(ctx context.Context, dir string) error {
	if err := boundChild(); err != nil {
		return err
	}
	by, err := confine.Apply(confine.Leave{Dirs: []string{dir}})
	if err != nil {
		return fmt.Errorf("confine: %w", err)
	}
	if _, err := fmt.Fprintln(os.Stderr, by); err != nil {
		return err
	}
	module, err := io.ReadAll(io.LimitReader(os.Stdin, compiled.MaxModule))
	if err != nil {
		return err
	}
	return Compile(ctx, module, dir, os.Stdout)
}
