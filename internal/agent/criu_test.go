package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func criuProgram(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "criu")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCRIUCheckSaysWhy(t *testing.T) {
	none := &criuProbe{path: filepath.Join(t.TempDir(), "criu")}
	if err := none.check(t.Context()); !errdefs.IsNotFound(err) {
		t.Errorf("without criu: %v", err)
	}
	if err := (&criuProbe{path: criuProgram(t, `[ "$1" = check ] && echo Looks good.`)}).check(t.Context()); err != nil {
		t.Errorf("one that works: %v", err)
	}
	for script, want := range map[string]string{
		"echo Warn; echo 'Error (criu/vdso.c:381): vdso: Unexpected bounds' >&2; echo 'Error (b): more'; exit 1": "(criu/vdso.c:381): vdso: Unexpected bounds",
		"exit 3": "exit status 3",
	} {
		err := (&criuProbe{path: criuProgram(t, script)}).check(t.Context())
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "more") {
			t.Errorf("%s: %v", script, err)
		}
	}
}

func TestCRIUIsAskedOnce(t *testing.T) {
	count := filepath.Join(t.TempDir(), "count")
	p := &criuProbe{path: criuProgram(t, "echo x >> "+count+"; exit 1")}
	first, second := p.check(t.Context()), p.check(t.Context())
	if b, err := os.ReadFile(count); first == nil || second == nil || first.Error() != second.Error() || err != nil || string(b) != "x\n" {
		t.Errorf("%v, %v; ran %q, %v", first, second, b, err)
	}
}
