package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// startsPrograms are the names of package path → function or type by which a program is started.
var startsPrograms = map[string][]string{
	"os/exec": {"Command", "CommandContext", "Cmd"},
	"os":      {"StartProcess"},
	"syscall": {"ForkExec", "StartProcess"},
}

// mayStartPrograms are the files that may do so, and why.
var mayStartPrograms = map[string]string{
	"internal/subprocess/subprocess.go":           "it is the helper",
	"internal/keeper/kernel/start.go":             "the keeper and the nest wait for processes by pidfd, and for no pipe",
	"internal/keeper/tinyinit/init.go":            "the init waits for its processes by wait4, and has no pipe",
	"internal/runtime/native/seccomp/gen/main.go": "a generator that is run by hand",
}

// TestProgramsAreStartedByOneHelper: a program that leaves a process which holds its pipes must
// not hold up the agent.
func TestProgramsAreStartedByOneHelper(t *testing.T) {
	used := map[string]bool{}
	for _, s := range sources(t) {
		if forTests(s.rel) {
			continue
		}
		for _, found := range starts(s.file) {
			if used[s.rel] = true; mayStartPrograms[s.rel] == "" {
				t.Errorf("%s: %s: start programs by internal/subprocess", s.rel, found)
			}
		}
	}
	for rel := range mayStartPrograms {
		if !used[rel] {
			t.Errorf("%s starts no program any more: take it off the list", rel)
		}
	}
}

// forTests reports whether a file is part of tests or of what the Makefile calls.
func forTests(rel string) bool {
	if strings.HasSuffix(rel, "_test.go") || strings.HasPrefix(rel, "test/") || strings.HasPrefix(rel, "hack/") || strings.HasPrefix(rel, "tools/") {
		return true
	}
	dir := filepath.Base(filepath.Dir(rel))
	return strings.HasPrefix(rel, "internal/") && strings.HasSuffix(dir, "test")
}

// starts returns where a file names what starts programs. *exec.Cmd as a type of a parameter, a
// field or a result is no start.
func starts(f *ast.File) (found []string) {
	names := map[string][]string{} // what the file calls a package → its functions
	for _, im := range f.Imports {
		path, _ := strconv.Unquote(im.Path.Value)
		if startsPrograms[path] == nil {
			continue
		}
		name := filepath.Base(path)
		if im.Name != nil {
			name = im.Name.Name
		}
		names[name] = startsPrograms[path]
	}
	pointers := map[ast.Expr]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.StarExpr:
			pointers[n.X] = true
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			if ok && slices.Contains(names[x.Name], n.Sel.Name) && !pointers[n] {
				found = append(found, x.Name+"."+n.Sel.Name)
			}
		}
		return true
	})
	return found
}

func TestStartsAreFound(t *testing.T) {
	const src = `package p
import ("os/exec"; run "os"; "syscall")
type holds struct { cmd *exec.Cmd }
func good(cmd *exec.Cmd) (*exec.Cmd, error) { _, err := exec.LookPath("x"); var e *exec.ExitError; run.Open("x"); return cmd, err }
func bad() {
	exec.Command("x")
	start := exec.CommandContext
	_ = &exec.Cmd{Path: "x"}
	run.StartProcess("x", nil, nil)
	syscall.ForkExec("x", nil, nil)
}
`
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"exec.Command", "exec.CommandContext", "exec.Cmd", "run.StartProcess", "syscall.ForkExec"}
	if got := starts(f); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}
