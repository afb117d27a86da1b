package arch_test

import (
	"go/ast"
	"strings"
	"testing"
)

// TestTheEngineUsesEachMethodOfImages keeps core.Images to the engine's needs: a method that only
// faces call belongs to core.ImageTransfers.
func TestTheEngineUsesEachMethodOfImages(t *testing.T) {
	methods, used := map[string]bool{}, map[string]bool{}
	for _, s := range sources(t) {
		if s.rel == "internal/core/ports.go" {
			ast.Inspect(s.file, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok || spec.Name.Name != "Images" {
					return true
				}
				for _, m := range spec.Type.(*ast.InterfaceType).Methods.List { //nolint:forcetypeassert // it is a port
					methods[m.Names[0].Name] = true
				}
				return false
			})
		}
		if !strings.HasPrefix(s.rel, "internal/engine/") || strings.HasSuffix(s.rel, "_test.go") || strings.HasPrefix(s.rel, "internal/engine/enginetest/") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if on, ok := call.X.(*ast.SelectorExpr); ok && on.Sel.Name == "Images" {
				used[call.Sel.Name] = true
			}
			return true
		})
	}
	if len(methods) < 8 {
		t.Fatalf("core.Images has the methods %v only", methods)
	}
	for m := range methods {
		if !used[m] {
			t.Errorf("the engine does not use core.Images.%s", m)
		}
	}
}
