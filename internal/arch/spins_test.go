package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// spinRounds is from how many rounds a loop that gives up after a count is taken
// for one that waits.
const spinRounds = 1000

// TestNobodySpins: what waits is woken by an event, by a fake clock
// (testing/synctest) or, where the kernel tells nobody, by roottest.Eventually. A
// loop that asks until it is so takes the processor from what it waits for.
func TestNobodySpins(t *testing.T) {
	for _, s := range sources(t) {
		for _, w := range spins(s.file) {
			t.Errorf("%s: %s", s.rel, w)
		}
	}
}

// spins returns the loops of a file that wait without sleeping.
func spins(f *ast.File) (found []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if isCall(n, "runtime", "Gosched") {
				found = append(found, "runtime.Gosched; wait for the event")
			}
		case *ast.ForStmt:
			switch {
			case isWait(n):
				found = append(found, "a loop without a body waits for its condition")
			case asksContext(n):
				found = append(found, "a loop asks whether the test's context has ended: it spins until then")
			case givesUp(n.Cond) && leaves(n.Body):
				found = append(found, "a loop counts to give up waiting")
			case hasIdleDefault(n.Body):
				found = append(found, "a select with an empty default spins")
			}
		case *ast.RangeStmt:
			if isMany(n.X) && leaves(n.Body) {
				found = append(found, "a loop counts to give up waiting")
			}
		}
		return true
	})
	return found
}

// isWait reports whether a loop has nothing but a condition, which others are to
// change: for !ok() {}.
func isWait(n *ast.ForStmt) bool {
	if n.Post != nil || len(n.Body.List) > 0 {
		return false
	}
	switch c := n.Cond.(type) {
	case *ast.UnaryExpr:
		return c.Op == token.NOT
	case *ast.BinaryExpr:
		return c.Op == token.EQL || c.Op == token.NEQ
	}
	return false
}

func isCall(c *ast.CallExpr, x, method string) bool {
	s, ok := c.Fun.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != method {
		return false
	}
	id, ok := s.X.(*ast.Ident)
	return ok && id.Name == x
}

// asksContext reports whether a loop's own condition or statements call
// t.Context().Err().
func asksContext(n *ast.ForStmt) (asks bool) {
	look := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit, *ast.SelectStmt:
			return false
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Err" {
				c, ok := s.X.(*ast.CallExpr)
				asks = asks || ok && isCall(c, "t", "Context")
			}
		}
		return true
	}
	if n.Cond != nil {
		ast.Inspect(n.Cond, look)
	}
	ast.Inspect(n.Body, look)
	return asks
}

// isMany reports whether an expression is written as a number from spinRounds on.
func isMany(x ast.Expr) bool {
	lit, ok := x.(*ast.BasicLit)
	if !ok || lit.Kind != token.INT {
		return false
	}
	n, err := strconv.ParseInt(lit.Value, 0, 64)
	return err == nil && n >= spinRounds
}

// givesUp reports whether a condition is a count alone: i < 1000.
func givesUp(cond ast.Expr) bool {
	b, ok := cond.(*ast.BinaryExpr)
	return ok && (b.Op == token.LSS || b.Op == token.LEQ) && isMany(b.Y)
}

// leaves reports whether a loop's body ends the loop before its count does.
func leaves(body *ast.BlockStmt) (yes bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit, *ast.ForStmt, *ast.RangeStmt, *ast.SelectStmt, *ast.SwitchStmt:
			return false // a break there leaves something else
		case *ast.ReturnStmt:
			yes = true
		case *ast.BranchStmt:
			yes = yes || n.Tok == token.BREAK
		}
		return true
	})
	return yes
}

// hasIdleDefault reports whether a loop is nothing but a select that goes on without
// having done anything.
func hasIdleDefault(body *ast.BlockStmt) bool {
	if len(body.List) != 1 {
		return false
	}
	sel, ok := body.List[0].(*ast.SelectStmt)
	return ok && slices.ContainsFunc(sel.Body.List, func(s ast.Stmt) bool {
		c, ok := s.(*ast.CommClause)
		return ok && c.Comm == nil && len(c.Body) == 0
	})
}

func TestSpinsAreFound(t *testing.T) {
	const src = `package p
func good(t *testing.T) {
	for range 20000 { attack() }
	for i := range 3000 { list = append(list, i) }
	for range 999 { if ok() { break } }
	for ctx.Err() == nil { events(ctx) }
	for { select { case <-stop: return; default: work() } }
	for range 1000 { for { break } }
	for { select { case <-stop: return; case <-tick: } }
	for range views { select { case v <- m: default: } }
	for _, err := next(); err == nil; _, err = next() {}
	for o.next() {}
}
func bad(t *testing.T) {
	for range 1000 { if ok() { return } }
	for i := 0; i < 10_000; i++ { if ok() { break } }
	for !ok() {}
	for t.Context().Err() == nil { ask() }
	for { if ok() { break }; if t.Context().Err() != nil { return } }
	for { select { case <-done: return; default: } }
	runtime.Gosched()
}
`
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"counts", "counts", "without a body", "asks whether", "asks whether", "empty default", "Gosched"}
	if got := spins(f); !slices.EqualFunc(got, want, strings.Contains) {
		t.Errorf("found %q, want %q", got, want)
	}
}
