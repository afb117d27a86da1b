package wasm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/confine"
)

const usage = `usage: longshore-wasm run                       run the job of descriptor 3
       longshore-wasm compile --cache DIR FILE  compile a module into a cache, and print its entry's path
`

// childArg is how compile starts the child that compiles.
const childArg = "compile-child"

// Main is the program longshore-wasm.
func Main(args []string) int {
	ctx := context.Background()
	switch {
	case len(args) == 1 && args[0] == "run":
		unix.CloseOnExec(JobNumber)
		f := os.NewFile(JobNumber, "job")
		j, err := ReadJob(f)
		_ = f.Close()
		if err != nil {
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
	case len(args) == 2 && args[0] == childArg:
		if err := compileChild(ctx, args[1], os.Stdin, os.Stdout); err != nil {
			_, _ = fmt.Fprintf(os.Stderr, "%v\n", err)
			return 1
		}
		return 0
	}
	_, _ = fmt.Fprint(os.Stderr, usage)
	return StatusNoJob
}

// compileInto has a child compile the module at path and keeps what came of it in the directory cache, which only its owner may read. An
// entry that is there and right is left as it is.
func compileInto(ctx context.Context, cache, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	module, err := io.ReadAll(io.LimitReader(f, maxModule+1))
	if err != nil || len(module) > maxModule {
		return "", fmt.Errorf("read %s: at most %d bytes are read: %w", path, maxModule, errors.Join(err))
	}
	key := KeyOf(module)
	if key.Wazero == "" {
		return "", errors.New("this program does not know the version of its compiler")
	}
	if err := ownDir(cache); err != nil {
		return "", err
	}
	scratch, err := os.MkdirTemp(cache, ".compile-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	entry := filepath.Join(cache, key.Name())
	if data, err := os.ReadFile(entry); err == nil && unpack(data, key, scratch) == nil {
		return entry, nil
	}
	compiled, err := inChild(ctx, scratch, module)
	if err != nil {
		return "", fmt.Errorf("compile %s: %w", path, err)
	}
	sealed, err := Seal(key, compiled)
	if err != nil {
		return "", fmt.Errorf("compile %s: %w", path, err)
	}
	part := filepath.Join(cache, filepath.Base(scratch)+".entry")
	defer func() { _ = os.Remove(part) }()
	if err := os.WriteFile(part, sealed, 0o600); err != nil {
		return "", err
	}
	return entry, os.Rename(part, entry)
}

// ownDir makes a directory that nobody else may write to or look into.
func ownDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("stat %s: %w", dir, err)
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return fmt.Errorf("others may write to or read %s: it must be this user's own, with the mode 0700", dir)
	}
	return nil
}

// inChild compiles in a child that is confined to its own directory below scratch.
func inChild(ctx context.Context, scratch string, module []byte) ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(scratch, "child-")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, childArg, dir)
	cmd.Env = []string{}
	cmd.Stdin = bytes.NewReader(module)
	const most = 4096
	out, told := &bounded{left: maxCompiled}, &bounded{left: most}
	cmd.Stdout, cmd.Stderr = out, told
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, bytes.ToValidUTF8(bytes.TrimSpace(told.Bytes()), []byte("?")))
	}
	return out.Bytes(), nil
}

// bounded keeps so many bytes, and refuses more.
type bounded struct {
	bytes.Buffer
	left int
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, errors.New("it writes too much")
	}
	return b.Buffer.Write(p)
}

func compileChild(ctx context.Context, dir string, in io.Reader, out io.Writer) error {
	if _, err := confine.Apply(confine.Leave{Dirs: []string{dir}}); err != nil {
		return fmt.Errorf("confine: %w", err)
	}
	module, err := io.ReadAll(io.LimitReader(in, maxModule))
	if err != nil {
		return err
	}
	return Compile(ctx, module, dir, out)
}
