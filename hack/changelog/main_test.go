package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestChangesHaveTheForm reads the changes of this tree.
func TestChangesHaveTheForm(t *testing.T) {
	if _, err := read(filepath.Join("../..", changes)); err != nil {
		t.Error(err)
	}
}

func TestParse(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	for _, c := range []struct{ file, text, wrong string }{
		{"a-crash-2.fixed.md", "It crashes no more.\n", ""},
		{"a.security.md", "Two lines,\none sentence.\n", ""},
		{"a.md", "Text.\n", "NAME.KIND.md"},
		{"a.removed.md", "Text.\n", "NAME.KIND.md"},
		{"A.added.md", "Text.\n", "NAME.KIND.md"},
		{"a.added.md", "", "does not end"},
		{"a.added.md", "\n", "is empty"},
		{"a.added.md", "Text.", "does not end"},
		{"a.added.md", " Text.\n", "white space"},
		{"a.added.md", "Text.\n\nText.\n", "paragraph"},
		{"a.added.md", "- Text.\n", "begin with the sentence"},
		{"a.added.md", "# Text.\n", "begin with the sentence"},
		{"a.added.md", "Text\n", "full stop"},
		{"a.added.md", "Text\n  and more.\n", "indented"},
		{"a.added.md", long + ".\n", "more than"},
	} {
		got, err := parse(c.file, c.text)
		switch {
		case c.wrong == "" && (err != nil || got.text+"\n" != c.text || got.name+"."+got.kind+".md" != c.file):
			t.Errorf("%s, %q: %+v, %v", c.file, c.text, got, err)
		case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("%s, %q: %v, want %s", c.file, c.text, err, c.wrong)
		}
	}
}

// TestRun gathers twice: what came first stays, under one heading for each kind.
func TestRun(t *testing.T) {
	top := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(top, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	check := func(changes int, want string) {
		t.Helper()
		n, err := run(top, "", time.Time{})
		if err != nil || n != changes {
			t.Fatalf("%d changes, %v", n, err)
		}
		got, err := os.ReadFile(filepath.Join(top, changelog))
		if err != nil || string(got) != want {
			t.Errorf("%v, got\n%s\nwant\n%s", err, got, want)
		}
	}
	write("CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n- By hand.\n\n## 1.0\n\n### Fixed\n\n- Old.\n")
	write("docs/changes/README.md", "How to.\n")
	check(0, "# Changelog\n\n## Unreleased\n\n- By hand.\n\n## 1.0\n\n### Fixed\n\n- Old.\n")
	write("docs/changes/b.added.md", "B is there,\nand works.\n")
	write("docs/changes/a.added.md", "A is there.\n")
	write("docs/changes/c.security.md", "C is safe.\n")
	check(3, "# Changelog\n\n## Unreleased\n\n- By hand.\n\n### Added\n\n- A is there.\n- B is there,\n  and works.\n\n### Security\n\n- C is safe.\n\n## 1.0\n\n### Fixed\n\n- Old.\n")
	write("docs/changes/d.added.md", "D is there.\n")
	write("docs/changes/e.security.md", "E is safe.\n")
	check(2, "# Changelog\n\n## Unreleased\n\n- By hand.\n\n### Added\n\n- A is there.\n- B is there,\n  and works.\n- D is there.\n\n### Security\n\n- C is safe.\n- E is safe.\n\n## 1.0\n\n### Fixed\n\n- Old.\n")
	left, err := os.ReadDir(filepath.Join(top, changes))
	if err != nil || len(left) != 1 || left[0].Name() != readme {
		t.Errorf("left: %v, %v", left, err)
	}
	write("docs/changes/wrong.md", "Wrong.\n")
	write("docs/changes/f.fixed.md", "F is whole.\n")
	if _, err := run(top, "", time.Time{}); err == nil || !strings.Contains(err.Error(), "wrong.md") {
		t.Errorf("a change without a kind: %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(top, changes)); err != nil || len(left) != 3 {
		t.Errorf("what cannot be gathered is gone: %v, %v", left, err)
	}
}

func TestGatherWantsTheSection(t *testing.T) {
	if got, err := gather("# Changelog\n\n## 1.0\n", nil); err == nil {
		t.Errorf("got %q", got)
	}
	if !slices.IsSorted(kinds()) {
		t.Error("headings are in the order of the alphabet")
	}
}

// TestARelease names the section after the version, once, and leaves one for the next release.
func TestARelease(t *testing.T) {
	top := t.TempDir()
	log, file := filepath.Join(top, changelog), filepath.Join(top, changes, "a.added.md")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	const before = "# Changelog\n\n## Unreleased\n\n## 0.9.0 (2026-01-01)\n\n- Old.\n"
	for path, text := range map[string]string{log: before, file: "A is there.\n"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	day := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	for version, wrong := range map[string]string{"next": "no version", "1.0": "no version", "0.9.0": "already"} {
		if _, err := run(top, version, day); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("version %s: %v", version, err)
		}
		if text, err := os.ReadFile(log); err != nil || string(text) != before {
			t.Errorf("version %s has changed the file: %v, %s", version, err, text)
		}
	}
	if n, err := run(top, "1.0.0", day); err != nil || n != 1 {
		t.Fatalf("%d, %v", n, err)
	}
	const after = "# Changelog\n\n## Unreleased\n\n## 1.0.0 (2026-12-01)\n\n### Added\n\n- A is there.\n\n## 0.9.0 (2026-01-01)\n\n- Old.\n"
	if text, err := os.ReadFile(log); err != nil || string(text) != after {
		t.Errorf("%v, got\n%s", err, text)
	}
	if err := os.WriteFile(file, []byte("A is better.\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if n, err := run(top, "1.1.0", day); err != nil || n != 1 {
		t.Fatalf("the next release: %d, %v", n, err)
	}
	text, err := os.ReadFile(log)
	if err != nil || !strings.Contains(string(text), "## Unreleased\n\n## 1.1.0 (2026-12-01)\n\n### Added\n\n- A is better.\n\n## 1.0.0") {
		t.Errorf("the next release: %v, got\n%s", err, text)
	}
}
