package arch_test

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestDefencesHaveControls: a defence that a weakened build can switch off is
// asked about in the code, and an attempt of the attack suite names it, which is
// its control.
func TestDefencesHaveControls(t *testing.T) {
	used := map[string]map[string]bool{} // where the constants are named
	var defences []string
	for _, s := range sources(t) {
		place := "code"
		switch {
		case strings.HasPrefix(s.rel, filepath.Join("test", "attack")):
			place = "attack suite"
		case strings.HasSuffix(s.rel, "_test.go"):
			continue
		case strings.HasPrefix(s.rel, filepath.Join("internal", "weaken")):
			defences = append(defences, declared(s.file)...)
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "weaken" {
				if used[place] == nil {
					used[place] = map[string]bool{}
				}
				used[place][sel.Sel.Name] = true
			}
			return true
		})
	}
	for _, d := range defences {
		if !used["code"][d] {
			t.Errorf("weaken.%s switches nothing off", d)
		}
		if !used["attack suite"][d] {
			t.Errorf("weaken.%s is named by no attempt in test/attack", d)
		}
	}
}

// declared are a file's constants of type Defence.
func declared(f *ast.File) (names []string) {
	for _, d := range f.Decls {
		gen, ok := d.(*ast.GenDecl)
		if !ok || gen.Tok != token.CONST {
			continue
		}
		for _, spec := range gen.Specs {
			v, ok := spec.(*ast.ValueSpec)
			if !ok {
				continue
			}
			if typ, ok := v.Type.(*ast.Ident); ok && typ.Name == "Defence" {
				for _, n := range v.Names {
					names = append(names, n.Name)
				}
			}
		}
	}
	return names
}
