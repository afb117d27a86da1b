package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A comment on a mutex says "guards a, b", with fields of the same struct, or
// "serializes" with what only one goroutine may do at a time.
var (
	guardsFields   = regexp.MustCompile(`\bguards ((?:\w+, )*\w+)`)
	serializesWhat = regexp.MustCompile(`\bserializes \w`)
)

// isMutex reports whether the type of a field or variable is written as one of
// the mutexes of package sync.
func isMutex(typ ast.Expr) bool {
	s, ok := typ.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != "Mutex" && s.Sel.Name != "RWMutex" {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == "sync"
}

// guarded returns the names in a mutex's comment; ok is false when it neither
// guards nor serializes anything.
func guarded(doc, comment *ast.CommentGroup) (names []string, ok bool) {
	text := line(doc) + line(comment)
	if m := guardsFields.FindStringSubmatch(text); m != nil {
		return strings.Split(m[1], ", "), true
	}
	return nil, serializesWhat.MatchString(text)
}

// silentMutexes returns what is wrong with the comments on the mutexes of a file.
func silentMutexes(f *ast.File) (wrong []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.StructType:
			var fields []string
			for _, field := range n.Fields.List {
				for _, name := range field.Names {
					fields = append(fields, name.Name)
				}
			}
			for _, field := range n.Fields.List {
				if !isMutex(field.Type) {
					continue
				}
				if len(field.Names) != 1 {
					wrong = append(wrong, "an embedded mutex is locked by whoever has the struct: give it a name")
					continue
				}
				names, ok := guarded(field.Doc, field.Comment)
				if !ok {
					wrong = append(wrong, field.Names[0].Name+` says neither "guards" and fields nor "serializes" and what`)
				}
				for _, name := range names {
					if !slices.Contains(fields, name) {
						wrong = append(wrong, field.Names[0].Name+" guards "+name+", which is no field beside it")
					}
				}
			}
		case *ast.GenDecl:
			for _, s := range n.Specs {
				v, ok := s.(*ast.ValueSpec)
				if !ok || v.Type == nil || !isMutex(v.Type) {
					continue
				}
				doc := v.Doc
				if doc == nil {
					doc = n.Doc
				}
				if _, ok := guarded(doc, v.Comment); !ok {
					wrong = append(wrong, v.Names[0].Name+` says neither "guards" and variables nor "serializes" and what`)
				}
			}
		}
		return true
	})
	return wrong
}

// TestEveryMutexSaysWhatItGuards asks for a comment on each mutex outside tests.
func TestEveryMutexSaysWhatItGuards(t *testing.T) {
	for _, s := range sources(t) {
		if strings.HasSuffix(s.rel, "_test.go") {
			continue
		}
		for _, w := range silentMutexes(s.file) {
			t.Errorf("%s: %s", s.rel, w)
		}
	}
}

func TestSilentMutexesAreFound(t *testing.T) {
	const src = `package p
import "sync"
type good struct {
	mu sync.Mutex // guards a, b; and c of others
	a, b int
	// write serializes writes.
	write sync.RWMutex
}
type bad struct {
	mu sync.Mutex // one at a time
	rw sync.RWMutex // guards a, nothing
	a int
}
type embedded struct{ sync.Mutex }
func f() {
	var mu sync.Mutex // serializes Send
	var silent sync.Mutex
}
`
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", src, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"mu says neither", "rw guards nothing", "embedded", "silent says neither"}
	got := silentMutexes(f)
	if !slices.EqualFunc(got, want, strings.Contains) {
		t.Errorf("found %q, want %q", got, want)
	}
}

// lockedByCaller matches the name or the comment of a function whose caller holds
// the lock, and the comment of one that says why it needs none; of a type it stands
// for all methods.
var lockedByCaller = regexp.MustCompile(`Locked$|Preconditions: |\bmu (is|must be) held\b|\bmu held\b|\bmu is not needed: `)

// lockedCallback matches the comment of a function that calls the function which
// it is given while it holds the lock.
var lockedCallback = regexp.MustCompile(`calls \w+ with (\w+\.)?mu held`)

// lockChecker finds uses of guarded fields in functions that do not hold the lock.
// It follows the statements of one function at a time and knows a lock by how it
// is written, so that it finds what was forgotten, and not every race.
type lockChecker struct {
	info    *types.Info
	guards  map[*types.Var]string // field → the name of its mutex
	callees map[string]bool       // functions that call what they are given under the lock
	locked  map[string]bool       // types whose methods are called under the lock
	fresh   map[types.Object]bool // variables that nobody else has yet
	report  func(pos token.Pos, use, lock string)
}

func checkLocks(fset *token.FileSet, files []*ast.File, info *types.Info) (wrong []string) {
	c := &lockChecker{info: info, guards: map[*types.Var]string{}, callees: map[string]bool{}, locked: map[string]bool{}, fresh: map[types.Object]bool{}}
	c.report = func(pos token.Pos, use, lock string) {
		p := fset.Position(pos)
		wrong = append(wrong, p.String()+": "+use+" is used without "+lock)
	}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.StructType); ok {
				c.collect(s)
			}
			return true
		})
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				c.callees[d.Name.Name] = c.callees[d.Name.Name] || lockedCallback.MatchString(line(d.Doc))
			case *ast.GenDecl:
				if t, ok := d.Specs[0].(*ast.TypeSpec); ok && len(d.Specs) == 1 && lockedByCaller.MatchString(line(d.Doc)) {
					c.locked[t.Name.Name] = true
				}
			}
		}
	}
	for _, f := range files {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if ok && fn.Body != nil && !c.heldByCaller(fn) {
				c.block(fn.Body.List, locks{})
			}
		}
	}
	return wrong
}

// heldByCaller reports whether a function is called under the lock.
func (c *lockChecker) heldByCaller(fn *ast.FuncDecl) bool {
	doc := line(fn.Doc)
	return lockedByCaller.MatchString(fn.Name.Name) || fn.Recv != nil && c.locked[receiver(fn)] ||
		lockedByCaller.MatchString(doc) && !lockedCallback.MatchString(doc)
}

// line is a comment without its breaks.
func line(c *ast.CommentGroup) string { return strings.ReplaceAll(c.Text(), "\n", " ") }

// collect notes the fields that the mutexes of a struct guard.
func (c *lockChecker) collect(s *ast.StructType) {
	fields := map[string]*types.Var{}
	for _, f := range s.Fields.List {
		for _, name := range f.Names {
			if v, ok := c.info.Defs[name].(*types.Var); ok {
				fields[name.Name] = v
			}
		}
	}
	for _, f := range s.Fields.List {
		if !isMutex(f.Type) || len(f.Names) != 1 {
			continue
		}
		names, _ := guarded(f.Doc, f.Comment)
		for _, name := range names {
			if v := fields[name]; v != nil {
				c.guards[v] = f.Names[0].Name
			}
		}
	}
}

// locks are those held, as they are written: "s.mu".
type locks map[string]bool

func (l locks) clone() locks {
	out := locks{}
	for k, v := range l {
		out[k] = v
	}
	return out
}

// keep takes away what is not held in other too.
func (l locks) keep(other locks) {
	for k := range l {
		if !other[k] {
			delete(l, k)
		}
	}
}

// block walks statements and changes held to what is held after them. It reports
// whether the end of the block is never reached.
func (c *lockChecker) block(list []ast.Stmt, held locks) (ends bool) {
	for _, s := range list {
		if c.stmt(s, held) {
			return true
		}
	}
	return false
}

// branches walks alternatives of which one is taken, or none unless all is set.
func (c *lockChecker) branches(bodies [][]ast.Stmt, held locks, all bool) (ends bool) {
	before := held.clone()
	var after locks
	if !all {
		after = before.clone()
	}
	for _, body := range bodies {
		h := before.clone()
		if c.block(body, h) {
			continue
		}
		if after == nil {
			after = h
		} else {
			after.keep(h)
		}
	}
	if after == nil {
		return true
	}
	clear(held)
	for k := range after {
		held[k] = true
	}
	return false
}

func (c *lockChecker) stmt(s ast.Stmt, held locks) (ends bool) {
	switch s := s.(type) {
	case *ast.ExprStmt:
		if call, ok := s.X.(*ast.CallExpr); ok {
			if lock, what := c.lockCall(call); lock != "" {
				if strings.HasSuffix(what, "Unlock") {
					delete(held, lock)
				} else {
					held[lock] = true
				}
				return false
			}
			if x, ok := call.Fun.(*ast.Ident); ok && x.Name == "panic" {
				c.uses(call, held)
				return true
			}
		}
		c.uses(s.X, held)
	case *ast.DeferStmt:
		if lock, _ := c.lockCall(s.Call); lock == "" {
			c.uses(s.Call, held)
		}
	case *ast.GoStmt:
		c.uses(s.Call, locks{})
	case *ast.BlockStmt:
		return c.block(s.List, held)
	case *ast.LabeledStmt:
		return c.stmt(s.Stmt, held)
	case *ast.IfStmt:
		if s.Init != nil {
			c.stmt(s.Init, held)
		}
		c.uses(s.Cond, held)
		bodies := [][]ast.Stmt{s.Body.List}
		if s.Else != nil {
			bodies = append(bodies, []ast.Stmt{s.Else})
		}
		return c.branches(bodies, held, s.Else != nil)
	case *ast.ForStmt:
		if s.Init != nil {
			c.stmt(s.Init, held)
		}
		if s.Cond != nil {
			c.uses(s.Cond, held)
		}
		body := s.Body.List
		if s.Post != nil {
			body = append(slices.Clone(body), s.Post)
		}
		c.branches([][]ast.Stmt{body}, held, false)
	case *ast.RangeStmt:
		c.uses(s.X, held)
		c.branches([][]ast.Stmt{s.Body.List}, held, false)
	case *ast.SwitchStmt:
		if s.Init != nil {
			c.stmt(s.Init, held)
		}
		if s.Tag != nil {
			c.uses(s.Tag, held)
		}
		return c.clauses(s.Body, held)
	case *ast.TypeSwitchStmt:
		if s.Init != nil {
			c.stmt(s.Init, held)
		}
		c.stmt(s.Assign, held)
		return c.clauses(s.Body, held)
	case *ast.SelectStmt:
		return c.clauses(s.Body, held)
	case *ast.ReturnStmt:
		c.uses(s, held)
		return true
	case *ast.BranchStmt:
		return true
	case *ast.AssignStmt:
		c.uses(s, held)
		for i, l := range s.Lhs {
			if id, ok := l.(*ast.Ident); ok && s.Tok == token.DEFINE && i < len(s.Rhs) && makesNew(s.Rhs[i]) {
				c.fresh[c.info.Defs[id]] = true
			}
		}
	case *ast.DeclStmt:
		c.uses(s, held)
		if d, ok := s.Decl.(*ast.GenDecl); ok {
			for _, spec := range d.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok {
					for i, name := range v.Names {
						if len(v.Values) == 0 || i < len(v.Values) && makesNew(v.Values[i]) {
							c.fresh[c.info.Defs[name]] = true
						}
					}
				}
			}
		}
	case nil:
	default:
		c.uses(s, held)
	}
	return false
}

func (c *lockChecker) clauses(body *ast.BlockStmt, held locks) (ends bool) {
	var bodies [][]ast.Stmt
	all := false
	for _, s := range body.List {
		switch s := s.(type) {
		case *ast.CaseClause:
			for _, x := range s.List {
				c.uses(x, held)
			}
			all = all || s.List == nil
			bodies = append(bodies, s.Body)
		case *ast.CommClause:
			all = true // a select takes one, or waits
			b := s.Body
			if s.Comm != nil {
				b = append([]ast.Stmt{s.Comm}, b...)
			}
			bodies = append(bodies, b)
		}
	}
	return c.branches(bodies, held, all)
}

// makesNew reports whether an expression is an object that was just made.
func makesNew(x ast.Expr) bool {
	if u, ok := x.(*ast.UnaryExpr); ok && u.Op == token.AND {
		x = u.X
	}
	if call, ok := x.(*ast.CallExpr); ok {
		return strings.HasPrefix(strings.ToLower(calleeName(call)), "new")
	}
	_, ok := x.(*ast.CompositeLit)
	return ok
}

// lockCall returns the mutex and the method of a call that locks or unlocks one.
func (c *lockChecker) lockCall(call *ast.CallExpr) (lock, method string) {
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains([]string{"Lock", "RLock", "Unlock", "RUnlock"}, s.Sel.Name) {
		return "", ""
	}
	typ := c.info.TypeOf(s.X)
	if typ == nil {
		return "", ""
	}
	if name := strings.TrimPrefix(typ.String(), "*"); name != "sync.Mutex" && name != "sync.RWMutex" {
		return "", ""
	}
	return types.ExprString(s.X), s.Sel.Name
}

// uses looks for guarded fields in n and reports those whose lock is not held. A
// function that is written here and runs later holds nothing of ours.
func (c *lockChecker) uses(n ast.Node, held locks) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			under := held
			switch name := calleeName(n); {
			case name == "Go" || name == "AfterFunc":
				under = locks{}
			case c.callees[name]:
				under = nil
			}
			for _, a := range n.Args {
				if fn, ok := a.(*ast.FuncLit); ok {
					c.literal(fn, under)
				} else {
					c.uses(a, held)
				}
			}
			if fn, ok := n.Fun.(*ast.FuncLit); ok {
				c.literal(fn, held)
			} else {
				c.uses(n.Fun, held)
			}
			return false
		case *ast.FuncLit:
			c.literal(n, locks{})
			return false
		case *ast.SelectorExpr:
			c.field(n, held)
		}
		return true
	})
}

// literal walks a function that is called with held; nil stands for all locks.
func (c *lockChecker) literal(fn *ast.FuncLit, held locks) {
	if held != nil {
		c.block(fn.Body.List, held.clone())
	}
}

func (c *lockChecker) field(s *ast.SelectorExpr, held locks) {
	sel := c.info.Selections[s]
	if sel == nil || sel.Kind() != types.FieldVal {
		return
	}
	v, _ := sel.Obj().(*types.Var)
	mutex, ok := c.guards[v.Origin()]
	if !ok {
		return
	}
	if id, ok := ast.Unparen(s.X).(*ast.Ident); ok && c.fresh[c.info.Uses[id]] {
		return
	}
	if lock := types.ExprString(s.X) + "." + mutex; !held[lock] {
		c.report(s.Pos(), types.ExprString(s), lock)
	}
}

// calleeName is the last name of what is called.
func calleeName(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}
