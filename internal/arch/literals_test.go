package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestNoMapLiteralHasVariablesForKeys: of two equal keys in a map literal only one entry is left,
// without an error. A secret whose user and group had the same number belonged to root. A slice of
// structs keeps both.
func TestNoMapLiteralHasVariablesForKeys(t *testing.T) {
	for _, s := range sources(t) {
		if strings.HasSuffix(s.rel, "_test.go") || strings.HasSuffix(filepath.Dir(s.rel), "test") {
			continue
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, filepath.Join("../..", s.rel), nil, 0) // with the objects of its names
		if err != nil {
			t.Fatal(err)
		}
		for _, pos := range variableKeys(f) {
			t.Errorf("%s: a map literal with variables for keys; range over a slice of structs instead", files.Position(pos))
		}
	}
}

func TestVariableKeysAreFound(t *testing.T) {
	for text, want := range map[string]int{
		`func f(a, b string) { _ = map[string]int{a: 1, b: 2} }`:               1,
		`func f(x X) { _ = map[string]int{x.A(): 1, "b": 2, x.B(): 3} }`:       1,
		`func f(x X) { _ = map[*int]int{&x.A: 1, &x.B: 2} }`:                   0, // addresses differ
		`func f(a string) { _ = map[string]int{a: 1} }`:                        0,
		`func f(a string) { _ = map[string]int{a: 1, "b": 2} }`:                0, // one variable: read it
		`const a = "a"; func f() { _ = map[string]int{a: 1, "b": 2, "c": 3} }`: 0,
		`func f() { _ = map[K]int{{1, 2}: 1, {1, 3}: 2} }`:                     0,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n"+text, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(variableKeys(f)); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
}

// variableKeys returns the positions of the map literals of a file of which two or more keys are
// calls or local variables.
func variableKeys(f *ast.File) (found []token.Pos) {
	ast.Inspect(f, func(n ast.Node) bool {
		c, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		if _, ok := c.Type.(*ast.MapType); !ok {
			return true
		}
		count := 0
		for _, e := range c.Elts {
			kv, ok := e.(*ast.KeyValueExpr)
			if !ok {
				continue
			}
			switch k := kv.Key.(type) {
			case *ast.CallExpr:
				count++
			case *ast.Ident:
				if k.Obj != nil && k.Obj.Kind == ast.Var {
					count++
				}
			}
		}
		if count > 1 {
			found = append(found, c.Pos())
		}
		return true
	})
	return found
}
