package apparmor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// fakeKernel returns a loader that uses a temporary directory and a parser that is a script. The script
// finds the directory in $kernel.
func fakeKernel(t *testing.T, script string) *Loader {
	t.Helper()
	dir := t.TempDir()
	l := &Loader{Name: "p", Kernel: filepath.Join(dir, "kernel"), Parser: filepath.Join(dir, "parser")}
	write(t, filepath.Join(l.Kernel, "profiles"), "other (enforce)\n")
	write(t, l.Parser, "#!/bin/sh\nkernel="+l.Kernel+"\n"+script)
	if err := os.Chmod(l.Parser, 0o755); err != nil {
		t.Fatal(err)
	}
	return l
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// loads is the script of a parser that stores its input in the directory.
const loads = `case $1 in
--version) echo "AppArmor parser version 4.1.0" ;;
*) cat >"$kernel/loaded"; echo 'p (enforce)' >>"$kernel/profiles"; echo run >>"$kernel/runs" ;;
esac
`

func runs(t *testing.T, l *Loader) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(l.Kernel, "runs"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Count(string(b), "\n")
}

// TestAMissingProfileIsLoaded removes the profile once: the next Ensure loads it again. Ensure does not
// run the parser while the kernel has the profile.
func TestAMissingProfileIsLoaded(t *testing.T) {
	l := fakeKernel(t, loads)
	write(t, filepath.Join(l.Kernel, "features", "namespaces", "mask"), "userns_create")
	for want := 1; want <= 2; want++ {
		for range 2 {
			if unable, err := l.Ensure(t.Context(), "p"); unable != "" || err != nil {
				t.Fatalf("unable: %s, error: %v", unable, err)
			}
		}
		if got := runs(t, l); got != want {
			t.Fatalf("%d runs of the parser, want %d", got, want)
		}
		write(t, filepath.Join(l.Kernel, "profiles"), "other (enforce)\n")
	}
	text, err := os.ReadFile(filepath.Join(l.Kernel, "loaded"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(text), "profile p flags=") || !strings.Contains(string(text), "\n  userns,\n") || strings.Contains(string(text), "deny mount") {
		t.Errorf("loaded:\n%s", text)
	}
}

// TestLoadReplacesTheProfile of an older version of the agent.
func TestLoadReplacesTheProfile(t *testing.T) {
	l := fakeKernel(t, loads)
	write(t, filepath.Join(l.Kernel, "profiles"), "p (enforce)\n")
	if unable, err := l.Load(t.Context()); unable != "" || err != nil || runs(t, l) != 1 {
		t.Errorf("unable: %s, error: %v, %d runs", unable, err, runs(t, l))
	}
}

// TestOtherProfilesAreNotOurs: the agent does not load them, and says so when they are missing.
func TestOtherProfilesAreNotOurs(t *testing.T) {
	l := fakeKernel(t, loads)
	for name, want := range map[string]error{"other": nil, "another": errdefs.ErrNotFound, ":ns:another": nil, "a//&b": nil} {
		if unable, err := l.Ensure(t.Context(), name); unable != "" || !errors.Is(err, want) {
			t.Errorf("%s: unable: %s, error: %v", name, unable, err)
		}
	}
	if err := os.Remove(filepath.Join(l.Kernel, "profiles")); err != nil {
		t.Fatal(err)
	}
	if unable, err := l.Ensure(t.Context(), "another"); unable != "" || err != nil {
		t.Errorf("without a list: unable: %s, error: %v", unable, err)
	}
	if got := runs(t, l); got != 0 {
		t.Errorf("%d runs of the parser", got)
	}
}

// TestANodeWithoutTheMeans removes the parser and the list of profiles: unable names the missing one.
func TestANodeWithoutTheMeans(t *testing.T) {
	l := fakeKernel(t, loads)
	l.Parser = ""
	t.Setenv("PATH", t.TempDir())
	if _, err := l.parser(); err == nil {
		t.Skip("this machine has an apparmor_parser")
	}
	if unable, err := l.Ensure(t.Context(), "p"); !strings.Contains(unable, "install the package apparmor") || err != nil {
		t.Errorf("without a parser: unable: %q, error: %v", unable, err)
	}
	if err := os.Remove(filepath.Join(l.Kernel, "profiles")); err != nil {
		t.Fatal(err)
	}
	if unable, err := l.Ensure(t.Context(), "p"); !strings.Contains(unable, "cannot read the loaded profiles") || err != nil {
		t.Errorf("without a list: unable: %q, error: %v", unable, err)
	}
}

// TestAFailureOfTheParser checks that the error has the parser's name and its message.
func TestAFailureOfTheParser(t *testing.T) {
	l := fakeKernel(t, "echo 'line 3: syntax error' >&2\nexit 1\n")
	unable, err := l.Ensure(t.Context(), "p")
	if unable != "" || err == nil || !strings.Contains(err.Error(), "line 3: syntax error") || !strings.Contains(err.Error(), l.Parser) {
		t.Errorf("unable: %q, error: %v", unable, err)
	}
}

// TestCallersShareOneRun of the parser, and one that gives up does not end it for the others.
func TestCallersShareOneRun(t *testing.T) {
	l := fakeKernel(t, `[ "$1" != --version ] || exit 0
echo run >>"$kernel/runs"
read -r go <"$kernel/go"
echo 'p (enforce)' >>"$kernel/profiles"
`)
	gate := filepath.Join(l.Kernel, "go")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	given, giveUp := context.WithCancelCause(t.Context())
	results := make(chan error, 4)
	for i := range cap(results) {
		ctx := t.Context()
		if i == 0 {
			ctx = given
		}
		joined := l.join(ctx, l.Parser)
		go func() {
			defer joined.Leave()
			results <- joined.Wait(ctx)
		}()
	}
	leave := errors.New("no time left")
	giveUp(leave)
	if err := <-results; !errors.Is(err, leave) {
		t.Fatalf("the caller that gave up: %v", err)
	}
	write(t, gate, "go\n")
	for range cap(results) - 1 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if got := runs(t, l); got != 1 {
		t.Errorf("%d runs of the parser", got)
	}
	if is, err := l.loaded("p"); !is || err != nil {
		t.Errorf("loaded: %v, %v", is, err)
	}
}
