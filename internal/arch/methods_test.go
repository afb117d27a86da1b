package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// methodSets has the methods that the types of this module declare, and the types
// that they embed. A type is named by its directory and name, "internal/engine.Client".
type methodSets struct {
	own    map[string][]string
	embeds map[string][]string
}

// methodsOf reads all declarations outside of tests. Generated types have no methods
// here: their size is their protocol's.
func methodsOf(all []source) methodSets {
	m := methodSets{map[string][]string{}, map[string][]string{}}
	for _, s := range all {
		if strings.HasSuffix(s.rel, "_test.go") {
			continue
		}
		dir := filepath.Dir(s.rel)
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil {
					typ := dir + "." + receiver(d)
					m.own[typ] = append(m.own[typ], d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if spec, ok := spec.(*ast.TypeSpec); ok {
						m.declare(s.file, dir, spec)
					}
				}
			}
		}
	}
	return m
}

// declare adds what a type embeds, and the methods that an interface lists.
func (m methodSets) declare(file *ast.File, dir string, spec *ast.TypeSpec) {
	typ := dir + "." + spec.Name.Name
	var fields *ast.FieldList
	switch t := spec.Type.(type) {
	case *ast.StructType:
		fields = t.Fields
	case *ast.InterfaceType:
		fields = t.Methods
	default:
		return
	}
	for _, f := range fields.List {
		if _, isFunc := f.Type.(*ast.FuncType); isFunc && len(f.Names) == 1 {
			if _, isInterface := spec.Type.(*ast.InterfaceType); isInterface {
				m.own[typ] = append(m.own[typ], f.Names[0].Name)
			}
		}
		if len(f.Names) > 0 {
			continue
		}
		if name := embedded(file, dir, f.Type); name != "" {
			m.embeds[typ] = append(m.embeds[typ], name)
		}
	}
}

// embedded names the type of an embedded field, if it is one of this module; "" else.
func embedded(file *ast.File, dir string, x ast.Expr) string {
	for {
		switch e := x.(type) {
		case *ast.StarExpr:
			x = e.X
		case *ast.IndexExpr:
			x = e.X
		case *ast.Ident:
			return dir + "." + e.Name
		case *ast.SelectorExpr:
			if pkg, ok := e.X.(*ast.Ident); ok {
				if from, ok := imported(file, pkg.Name); ok {
					return from + "." + e.Sel.Name
				}
			}
			return ""
		default:
			return ""
		}
	}
}

// imported finds the directory of the package of this module that a file calls name.
func imported(file *ast.File, name string) (dir string, ok bool) {
	for _, imp := range file.Imports {
		dir, ok := strings.CutPrefix(strings.Trim(imp.Path.Value, `"`), module+"/")
		if ok && (imp.Name == nil && filepath.Base(dir) == name || imp.Name != nil && imp.Name.Name == name) {
			return dir, true
		}
	}
	return "", false
}

// set is the method set of a type. Of an embedded type of another package it has what
// is exported.
func (m methodSets) set(typ string) map[string]bool {
	found := map[string]bool{}
	seen := map[string]bool{}
	var add func(typ string, exportedOnly bool)
	add = func(typ string, exportedOnly bool) {
		if seen[typ] {
			return
		}
		seen[typ] = true
		for _, name := range m.own[typ] {
			if !exportedOnly || ast.IsExported(name) {
				found[name] = true
			}
		}
		for _, e := range m.embeds[typ] {
			add(e, exportedOnly || e[:strings.LastIndexByte(e, '.')] != typ[:strings.LastIndexByte(typ, '.')])
		}
	}
	add(typ, false)
	return found
}

// TestPromotedMethodsCount shows that the budget sees through embedding.
func TestPromotedMethodsCount(t *testing.T) {
	parse := func(rel, src string) source {
		f, err := parser.ParseFile(token.NewFileSet(), rel, src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		return source{rel: rel, file: f}
	}
	m := methodsOf([]source{
		parse("internal/a/a.go", `package a
import other "`+module+`/internal/b"
type T struct { *inner; other.B; other.I; named other.Named }
func (t *T) One() {}
func (t *T) Two() {}
type inner struct{ deepest }
func (inner) two() {}
func (inner) Two() {}
type deepest struct{}
func (deepest) three() {}
`),
		parse("internal/b/b.go", `package b
type B[K any] struct{}
func (B[K]) Four() {}
func (B[K]) hidden() {}
type I interface { Five(); J }
type J interface { Six() }
type Named struct{}
func (Named) Seven() {}
`),
	})
	want := []string{"Five", "Four", "One", "Six", "Two", "three", "two"}
	if got := slices.Sorted(maps.Keys(m.set("internal/a.T"))); !slices.Equal(got, want) {
		t.Errorf("T has %v, want %v", got, want)
	}
}
