package arch_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The budgets of ARCHITECTURE.md. Generated files are exempt.
const (
	maxPackageLines = 6000
	maxFileLines    = 600
	maxMethods      = 40
	maxParams       = 6
)

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// interfaceServers have their size from a generated service interface: its
// methods do not count, and ten more are allowed.
var interfaceServers = map[string]int{
	"internal/face/cri.server": 60,
}

type source struct {
	rel   string
	lines int
	file  *ast.File
}

func sources(t *testing.T) []source {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	var found []source
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") && path != root {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if generated.Match(src) {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		found = append(found, source{rel, bytes.Count(src, []byte("\n")), f})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestBudgets(t *testing.T) {
	pkgLines, methods := map[string]int{}, map[string]int{}
	for _, s := range sources(t) {
		if s.lines > maxFileLines {
			t.Errorf("%s has %d lines, at most %d", s.rel, s.lines, maxFileLines)
		}
		if strings.HasSuffix(s.rel, "_test.go") {
			continue
		}
		dir := filepath.Dir(s.rel)
		pkgLines[dir] += s.lines
		for _, d := range s.file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := fn.Type.Params.NumFields(); n > maxParams {
				t.Errorf("%s: %s has %d parameters, at most %d", s.rel, fn.Name.Name, n, maxParams)
			}
			if fn.Recv != nil {
				methods[dir+"."+receiver(fn)]++
			}
		}
	}
	for dir, n := range pkgLines {
		if n > maxPackageLines {
			t.Errorf("package %s has %d lines, at most %d", dir, n, maxPackageLines)
		}
	}
	for typ, n := range methods {
		limit := maxMethods
		if l, ok := interfaceServers[typ]; ok {
			limit = l
		}
		if n > limit {
			t.Errorf("type %s has %d methods, at most %d", typ, n, limit)
		}
	}
}

func receiver(fn *ast.FuncDecl) string {
	x := fn.Recv.List[0].Type
	for {
		switch e := x.(type) {
		case *ast.StarExpr:
			x = e.X
		case *ast.IndexExpr:
			x = e.X
		case *ast.Ident:
			return e.Name
		default:
			return "?"
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	documented, all := map[string]bool{}, map[string]bool{}
	for _, s := range sources(t) {
		if strings.HasSuffix(s.rel, "_test.go") {
			continue
		}
		dir := filepath.Dir(s.rel)
		all[dir] = true
		if s.file.Doc != nil {
			documented[dir] = true
		}
	}
	for dir := range all {
		if !documented[dir] {
			t.Errorf("package %s has no package comment", dir)
		}
	}
}

// TestNoSleepNoInit keeps two habits that a linter cannot tell apart from their
// good uses: nothing waits by the clock, nothing runs before main.
func TestNoSleepNoInit(t *testing.T) {
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv == nil && n.Name.Name == "init" {
					t.Errorf("%s: init()", s.rel)
				}
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && n.Sel.Name == "Sleep" {
					t.Errorf("%s: time.Sleep; wait for the event", s.rel)
				}
			}
			return true
		})
	}
}
