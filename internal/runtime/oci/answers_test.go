package oci

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore/longshore/internal/core"
)

func TestAProgramIsAskedAgainOnceItHasChanged(t *testing.T) {
	dir := t.TempDir()
	program, file := filepath.Join(dir, "crun"), filepath.Join(dir, "crun.features.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(program, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	stat := func() os.FileInfo {
		t.Helper()
		st, err := os.Stat(program)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	write("one")
	want := core.RuntimeFeatures{Path: program, Version: "crun 1", Seccomp: true}
	if _, ok := recall(file, identify(program, stat())); ok {
		t.Fatal("recalled what was never told")
	}
	if err := remember(file, identify(program, stat()), want); err != nil {
		t.Fatal(err)
	}
	got, ok := recall(file, identify(program, stat()))
	if d := cmp.Diff(want, got); !ok || d != "" {
		t.Fatalf("recalled %v: %s", ok, d)
	}
	write("another")
	if _, ok := recall(file, identify(program, stat())); ok {
		t.Error("recalled the answers of another program")
	}
}

func FuzzRecall(f *testing.F) {
	f.Add([]byte(`{"program":{"format":1,"path":"/crun"},"features":{"Version":"crun 1"}}`))
	f.Add([]byte(`{}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, b []byte) {
		file := filepath.Join(t.TempDir(), "a")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, ok := recall(file, program{Format: answersFormat, Path: "/nonesuch", Inode: 7}); ok && len(b) < 40 {
			t.Errorf("%q is taken for the answers of another program", b)
		}
	})
}
