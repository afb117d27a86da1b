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

// namedPath is a file or directory of ours in HACKING.md, with the functions that are
// named after it.
var namedPath = regexp.MustCompile("`((?:api|cmd|hack|internal|test)/[\\w./-]+)`(?:\\s+\\(((?:`\\w+`(?:,\\s+)?)+)\\))?")

// TestHackingNamesWhatIsThere: who follows the life of a request finds each file, and
// each function in it.
func TestHackingNamesWhatIsThere(t *testing.T) {
	text, err := os.ReadFile("../../HACKING.md")
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	for _, m := range namedPath.FindAllStringSubmatch(string(text), -1) {
		name := filepath.Join("../..", m[1])
		if strings.HasSuffix(m[1], "/NAME") { // to be filled in
			continue
		}
		if _, err := os.Stat(name); err != nil {
			t.Errorf("HACKING.md names %s: %v", m[1], err)
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
				t.Errorf("HACKING.md: %s has no function %s", m[1], fn)
			}
		}
	}
	if files < 20 {
		t.Errorf("only %d files are named: the life of a request is missing", files)
	}
}
