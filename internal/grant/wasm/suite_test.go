package wasm

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"

	"github.com/longshore/longshore/internal/grant"
)

// suiteEnv names a checkout of WebAssembly/wasi-testsuite with its prebuilt programs, the branch prod/testsuite-base.
const suiteEnv = "WASI_TESTSUITE"

// suiteCase is a suite program's input and expected result.
type suiteCase struct {
	Args   []string
	Env    map[string]string
	Root   string
	Exit   uint32 `json:"exit_code"`
	Stdout string
}

// TestTheSuiteOfWASI runs the preview 1 programs of the suite with a mount as their first preopen,
// once on our file system and once on wazero's: a program that passes there must pass here.
func TestTheSuiteOfWASI(t *testing.T) {
	suite := os.Getenv(suiteEnv)
	if suite == "" {
		t.Skipf("%s names no checkout of the suite", suiteEnv)
	}
	programs, err := filepath.Glob(filepath.Join(suite, "tests", "*", "testsuite", "wasm32-wasip1", "*.wasm"))
	if err != nil || len(programs) < 50 {
		t.Fatalf("%d programs in %s, %v", len(programs), suite, err)
	}
	ours, theirs := 0, 0
	for _, program := range programs {
		name, _ := filepath.Rel(filepath.Join(suite, "tests"), program)
		mine, wazeros := suiteRun(t, program, ourRoot), suiteRun(t, program, wazeroRoot)
		if mine == nil {
			ours++
		}
		if wazeros == nil {
			theirs++
		}
		switch {
		case mine != nil && wazeros == nil:
			t.Errorf("%s passes on wazero's file system, and here: %v", name, mine)
		case mine != nil:
			t.Logf("%s fails on both: %v", name, mine)
		case wazeros != nil:
			t.Logf("%s passes here only", name)
		}
	}
	t.Logf("%d of %d programs pass, %d on wazero's file system", ours, len(programs), theirs)
}

func wazeroRoot(_ *testing.T, dir string) wazero.FSConfig {
	return wazero.NewFSConfig().WithDirMount(dir, "/")
}

func ourRoot(t *testing.T, dir string) wazero.FSConfig {
	t.Helper()
	return mount(wazero.NewFSConfig(), &dirFS{fd: int(openFile(t, dir, os.O_RDONLY).Fd()), rights: grant.Read | grant.Write}, "/")
}

// suiteRun runs a program in a copy of its directory, and returns why it does not pass.
func suiteRun(t *testing.T, path string, root func(*testing.T, string) wazero.FSConfig) error {
	t.Helper()
	module, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var c suiteCase
	if text, err := os.ReadFile(strings.TrimSuffix(path, ".wasm") + ".json"); err == nil {
		if err := json.Unmarshal(text, &c); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	r := wazero.NewRuntimeWithConfig(t.Context(), runtimeConfig())
	defer func() { _ = r.Close(t.Context()) }()
	wasi_snapshot_preview1.MustInstantiate(t.Context(), r)
	var out, messages bytes.Buffer
	config := wazero.NewModuleConfig().WithName("").WithArgs(append([]string{filepath.Base(path)}, c.Args...)...).WithRandSource(rand.Reader).
		WithSysWalltime().WithSysNanotime().WithSysNanosleep().WithStdout(&out).WithStderr(&messages)
	for _, key := range slices.Sorted(maps.Keys(c.Env)) {
		config = config.WithEnv(key, c.Env[key])
	}
	if c.Root != "" {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(filepath.Dir(path), c.Root))); err != nil {
			t.Fatal(err)
		}
		config = config.WithFSConfig(root(t, dir))
	}
	_, err = r.InstantiateWithConfig(withMemory(t.Context()), module, config)
	status := uint32(0)
	var exit *sys.ExitError
	if errors.As(err, &exit) {
		status, err = exit.ExitCode(), nil
	}
	switch {
	case err != nil:
		why, _, _ := strings.Cut(err.Error(), "\n")
		return fmt.Errorf("%s, %s", last(messages.String()), why)
	case status != c.Exit || c.Stdout != "" && out.String() != c.Stdout:
		return fmt.Errorf("status %d, wrote %q, %s", status, out.String(), last(messages.String()))
	}
	return nil
}

func last(text string) string { return text[max(0, len(text)-300):] }
