package session

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/core"
)

// kept is a table over a file, as an agent has it that has just started.
func kept(t *testing.T, path string) *Table {
	t.Helper()
	tab := &Table{}
	err := tab.Keep(path, func(id string) bool { return strings.HasPrefix(id, "a.") }, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tab.Close() })
	return tab
}

func (t *Table) end(id string, code int) {
	t.Begin(id, &Session{})
	t.End(id, &core.Autopsy{Exit: core.Exit{Code: code}})
}

// TestEndsAreKept: over the agent's death, those of containers that are still there.
func TestEndsAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sessions")
	tab := kept(t, path)
	tab.end("a.1", 1)
	tab.end("a.2", 2)
	tab.end("gone.s", 3)
	tab.end("a.1", 4)
	tab.end("a.forgotten", 5)
	tab.Forget("a.forgotten")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(raw, `{"id":"a.cut","end":{"exi`...), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		again := kept(t, path)
		for id, want := range map[string]int{"a.1": 4, "a.2": 2} {
			if a, ok := again.Past(id); !ok || a.Exit.Code != want {
				t.Errorf("%s: %v, %v", id, a.Exit, ok)
			}
		}
		for _, id := range []string{"gone.s", "a.forgotten", "a.cut"} {
			if a, ok := again.Past(id); ok {
				t.Errorf("%s: %v", id, a.Exit)
			}
		}
		if len(again.order) != 2 {
			t.Errorf("remembered: %q", again.order)
		}
	}
	tab = kept(t, path)
	tab.Begin("a.1", &Session{}) // another of its name
	if _, ok := kept(t, path).Past("a.1"); ok {
		t.Error("the end of one that was there before is told of another")
	}
}

// TestTheFileOfEndsIsBounded: by what is remembered, whatever comes and goes.
func TestTheFileOfEndsIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sessions")
	tab := kept(t, path)
	for i := range 3 * fileLines {
		tab.end(fmt.Sprintf("a.%d", i), 7)
		if i%2 == 0 {
			tab.Forget(fmt.Sprintf("a.%d", i))
		}
	}
	raw, err := os.ReadFile(path)
	if n := bytes.Count(raw, []byte("\n")); err != nil || n > fileLines {
		t.Errorf("%d lines, %v", n, err)
	}
	again := kept(t, path)
	if len(again.order) != remembered || len(tab.order) != remembered || again.order[0] != tab.order[0] {
		t.Errorf("%d are remembered, of %d", len(again.order), len(tab.order))
	}
}

// TestEndsAreKeptInMemory: also when the file takes no more, which is told.
func TestEndsAreKeptInMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sessions")
	var tab Table
	told := 0
	if err := tab.Keep(path, func(string) bool { return true }, func(error) { told++ }); err != nil {
		t.Fatal(err)
	}
	_ = tab.file.Close()
	tab.end("a.1", 1)
	if a, ok := tab.Past("a.1"); told != 1 || !ok || a.Exit.Code != 1 {
		t.Errorf("told %d times, %v", told, ok)
	}
	var other Table
	if err := other.Keep(t.TempDir(), func(string) bool { return true }, func(error) { told++ }); err == nil {
		t.Error("a directory is taken for the file")
	}
	other.end("a.1", 1)
	if a, ok := other.Past("a.1"); told != 1 || !ok || a.Exit.Code != 1 {
		t.Errorf("without a file: told %d times, %v", told, ok)
	}
}
