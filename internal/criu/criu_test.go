package criu

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "criu")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCheckSaysWhy(t *testing.T) {
	none := &Probe{Path: filepath.Join(t.TempDir(), "criu")}
	if err := none.Check(t.Context()); !errdefs.IsNotFound(err) {
		t.Errorf("without criu: %v", err)
	}
	if err := (&Probe{Path: program(t, `[ "$1" = check ] && echo Looks good.`)}).Check(t.Context()); err != nil {
		t.Errorf("one that works: %v", err)
	}
	for script, want := range map[string]string{
		"echo Warn; echo 'Error (criu/vdso.c:381): vdso: Unexpected bounds' >&2; echo 'Error (b): more'; exit 1": "(criu/vdso.c:381): vdso: Unexpected bounds",
		"exit 3": "exit status 3",
	} {
		err := (&Probe{Path: program(t, script)}).Check(t.Context())
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "more") {
			t.Errorf("%s: %v", script, err)
		}
	}
}

func TestItIsAskedOnce(t *testing.T) {
	count := filepath.Join(t.TempDir(), "count")
	p := &Probe{Path: program(t, "echo x >> "+count+"; exit 1")}
	first, second := p.Check(t.Context()), p.Check(t.Context())
	if b, err := os.ReadFile(count); first == nil || second == nil || first.Error() != second.Error() || err != nil || string(b) != "x\n" {
		t.Errorf("%v, %v; ran %q, %v", first, second, b, err)
	}
}
