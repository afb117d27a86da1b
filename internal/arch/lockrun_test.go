package arch_test

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestGuardedFieldsAreUsedUnderTheirLock checks the comments on mutexes against
// the functions of their packages. A function whose caller holds the lock is named
// so (…Locked), or says so in its comment ("Preconditions: mu is held"); one that
// calls what it is given under the lock says "calls f with mu held".
func TestGuardedFieldsAreUsedUnderTheirLock(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-f",
		`{{.ImportPath}}|{{.Export}}|{{.Dir}}|{{if and .Module (not .DepOnly)}}{{join .GoFiles ","}}{{end}}`, module+"/...")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	exports := map[string]string{}
	var ours [][]string // path, directory, files
	for line := range strings.Lines(string(out)) {
		p := strings.Split(strings.TrimSpace(line), "|")
		exports[p[0]] = p[1]
		if p[3] != "" {
			ours = append(ours, []string{p[0], p[2], p[3]})
		}
	}
	fset := token.NewFileSet()
	imp := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	mutexes := 0
	for _, p := range ours {
		var files []*ast.File
		found := false
		for name := range strings.SplitSeq(p[2], ",") {
			f, err := parser.ParseFile(fset, filepath.Join(p[1], name), nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
			for _, c := range f.Comments {
				found = found || guardsFields.MatchString(c.Text())
			}
		}
		if !found {
			continue
		}
		mutexes++
		for _, w := range checkLocks(fset, files, typesOf(t, fset, imp, p[0], files)) {
			t.Error(w)
		}
	}
	if mutexes < 20 {
		t.Errorf("only %d packages with a mutex were found", mutexes)
	}
}

func typesOf(t *testing.T, fset *token.FileSet, imp types.Importer, path string, files []*ast.File) *types.Info {
	t.Helper()
	info := &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{},
	}
	if _, err := (&types.Config{Importer: imp}).Check(path, fset, files, info); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return info
}

func TestForgottenLocksAreFound(t *testing.T) {
	const src = `package p
import "sync"
type s struct {
	mu sync.Mutex // guards n
	n int
}
func (x *s) good() int { x.mu.Lock(); defer x.mu.Unlock(); return x.n }
func (x *s) early(b bool) { x.mu.Lock(); if b { x.mu.Unlock(); return }; x.n++; x.mu.Unlock() }
func (x *s) addLocked() { x.n++ }
// add adds. Preconditions: mu is held.
func (x *s) add() { x.n++ }
func fresh() *s { x := &s{}; x.n = 1; return x }
// with calls f with mu held.
func (x *s) with(f func()) { x.mu.Lock(); f(); x.mu.Unlock() }
func (x *s) callback() { x.with(func() { x.n++ }) }
func (x *s) never() { x.n = 10 }
func (x *s) late() { x.mu.Lock(); x.mu.Unlock(); x.n = 20 }
func (x *s) other(y *s) { x.mu.Lock(); defer x.mu.Unlock(); y.n = 30 }
func (x *s) branch(b bool) { if b { x.mu.Lock() }; x.n = 40 }
func (x *s) background() { x.mu.Lock(); go func() { x.n = 50 }(); x.mu.Unlock() }
func (x *s) loop() { x.mu.Lock(); for range 2 { x.n = 60; x.mu.Unlock() }; x.n = 70 }
`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", src, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	got := checkLocks(fset, []*ast.File{f}, typesOf(t, fset, importer.ForCompiler(fset, "source", nil), "p", []*ast.File{f}))
	var lines []string
	for _, w := range got {
		lines = append(lines, strings.Split(w, ":")[1])
	}
	if want := "16 17 18 19 20 21"; strings.Join(lines, " ") != want {
		t.Errorf("found in lines %v, want %s:\n%s", lines, want, strings.Join(got, "\n"))
	}
}
