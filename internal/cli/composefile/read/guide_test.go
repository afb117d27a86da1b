package read

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestTheGuideHasAllKeys compares the table of the guide with the keys that the translation knows. With LONGSHORE_UPDATE=1 it
// writes the table.
func TestTheGuideHasAllKeys(t *testing.T) {
	const path = "../../../../docs/guide/compose.md"
	guide, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- generated: the keys of internal/cli/composefile/read -->\n", "<!-- end -->\n"
	head, rest, ok := strings.Cut(string(guide), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s lacks the lines %q and %q", path, begin, end)
	}
	var b strings.Builder
	b.WriteString("| key | | |\n|---|---|---|\n")
	keys := Keys()
	slices.SortFunc(keys, func(a, b Key) int { return cmp.Compare(a.Path, b.Path) })
	for i, k := range keys {
		if i > 0 && keys[i-1].Path == k.Path {
			t.Errorf("%s is there twice", k.Path)
		}
		if k.Support == Refused && k.Note == "" {
			t.Errorf("%s is refused without saying what to write instead", k.Path)
		}
		row := strings.TrimRight(fmt.Sprintf("| `%s` | %s | %s", strings.ReplaceAll(k.Path, ".[]", "[]"), k.Support, k.Note), " ")
		b.WriteString(row + " |\n")
	}
	now := head + begin + b.String() + end + tail
	if now == string(guide) {
		return
	}
	if os.Getenv("LONGSHORE_UPDATE") == "" {
		t.Fatalf("%s is not what the translation knows: run this test with LONGSHORE_UPDATE=1", path)
	}
	if err := os.WriteFile(path, []byte(now), 0o600); err != nil {
		t.Fatal(err)
	}
}
