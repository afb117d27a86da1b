package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// namedPath is a file or directory of ours in HACKING.md and docs/checklists.md, with the
// functions that are named after it.
var namedPath = regexp.MustCompile("`((?:api|cmd|hack|internal|test)/[\\w./-]+)`(?:\\s+\\(((?:`\\w+`(?:,\\s+)?)+)\\))?")

// TestHackingNamesWhatIsThere: who follows the life of a request finds each file, and
// each function in it.
func TestHackingNamesWhatIsThere(t *testing.T) {
	for doc, least := range map[string]int{"HACKING.md": 20, "docs/checklists.md": 15} {
		namesWhatIsThere(t, doc, least)
	}
}

// namesWhatIsThere fails if a document names a missing file or function, or fewer than least files.
func namesWhatIsThere(t *testing.T, doc string, least int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", doc))
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	for _, m := range namedPath.FindAllStringSubmatch(string(text), -1) {
		name := filepath.Join("../..", m[1])
		if strings.Contains(m[1], "/NAME") { // to be filled in
			continue
		}
		if _, err := os.Stat(name); err != nil {
			t.Errorf("%s names %s: %v", doc, m[1], err)
			continue
		}
		if filepath.Ext(name) != ".go" {
			continue
		}
		files++
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		declared := map[string]bool{}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				declared[fn.Name.Name] = true
			}
		}
		for fn := range strings.FieldsFuncSeq(m[2], func(r rune) bool { return strings.ContainsRune("`, \n", r) }) {
			if !declared[fn] {
				t.Errorf("%s: %s has no function %s", doc, m[1], fn)
			}
		}
	}
	if files < least {
		t.Errorf("%s names only %d files, at least %d were expected: a part of it is missing", doc, files, least)
	}
}
