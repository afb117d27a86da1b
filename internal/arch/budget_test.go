package arch_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
)

// The budgets of ARCHITECTURE.md. Generated files are exempt.
const (
	maxPackageLines = 5000
	maxDriverLines  = 3000 // of a driver of networks, and of the package that picks drivers
	maxFileLines    = 600
	maxMethods      = 40 // of an exported type, those promoted from embedded types included
	maxHidden       = 60 // the same of a type that is not exported: its methods are the steps of one package
	maxParams       = 6
)

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// interfaceServers are the types whose size comes from a generated service interface,
// and how many methods each may have.
var interfaceServers = map[string]int{
	"internal/face/cri.server":   60,
	"internal/face/kata.service": 52, // 42 calls
	"internal/hub/api.Server":    60,
}

type source struct {
	rel   string
	lines int
	file  *ast.File
}

// parsed has the result of parseTree for all tests, because reading and parsing the tree takes seconds.
var parsed = sync.OnceValues(parseTree)

// sources returns all Go files of the tree that are not generated. Tests must not change their trees.
func sources(t *testing.T) []source {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(all)
}

// parseTree parses all Go files of the tree that are not generated.
func parseTree() ([]source, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	var paths []string
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin" || d.Name() == "node_modules") && path != root:
			return filepath.SkipDir
		case filepath.Ext(path) == ".go":
			paths = append(paths, path)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	all := make([]source, len(paths))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, path := range paths {
		group.Go(func() error {
			src, err := os.ReadFile(path)
			if err != nil || generated.Match(src) {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, src, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(root, path)
			all[i] = source{rel, bytes.Count(src, []byte("\n")), f}
			return err
		})
	}
	err = group.Wait()
	return slices.DeleteFunc(all, func(s source) bool { return s.file == nil }), err
}

func TestBudgets(t *testing.T) {
	all := sources(t)
	pkgLines := map[string]int{}
	for _, s := range all {
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
		}
	}
	for dir, n := range pkgLines {
		most := maxPackageLines
		if dir == "internal/network" || slices.Contains(drivers, dir) {
			most = maxDriverLines
		}
		if n > most {
			t.Errorf("package %s has %d lines, at most %d", dir, n, most)
		}
	}
	m := methodsOf(all)
	types := maps.Clone(m.own) // and those with promoted methods only
	maps.Copy(types, m.embeds)
	for typ := range types {
		limit := maxMethods
		if !ast.IsExported(typ[strings.LastIndex(typ, ".")+1:]) {
			limit = maxHidden
		}
		if l, ok := interfaceServers[typ]; ok {
			limit = l
		}
		if n := len(m.set(typ)); n > limit {
			t.Errorf("type %s has %d methods with those of the types it embeds, at most %d: what it embeds may be a field with a name", typ, n, limit)
		}
	}
}

// minPackageLines is what a package has at least, unless small gives a reason.
const minPackageLines = 150

// small are the packages that have fewer lines, and why each is a package. Mains,
// packages for tests and generated ones need no reason.
var small = map[string]string{
	"api/cri/v1":                  "the rest is generated, and its constants and JSON belong to these messages",
	"api/hub/v1":                  "the hub's API is generated here from the description, which can only be embedded beside it",
	"internal/agent/trial":        "a client of the engine like a face, which the composition root is not",
	"internal/adjust/cdi":         "CDI's library is linked by the agent only",
	"internal/span":               "all layers make spans, and the keeper and the guest agent link no exporter",
	"internal/traces":             "OpenTelemetry's SDK is linked by the agent only",
	"internal/caller":             "faces set it and the audit trail reads it; the guest agent links neither HTTP nor the trail with it",
	"internal/trail/verbs":        "it needs the nouns of nodes, and the hub, which writes the same trail, has none",
	"internal/disk/limits":        "it needs the engine, and why disk, which the agent's API uses too, does not",
	"internal/engine/validate":    "the engine's main package is at its bound, and this needs none of it",
	"internal/engine/audit":       "reads one transaction and knows no engine, so that what it checks is not checked by the code that wrote it",
	"internal/engine/fallback":    "chooses runtimes without the engine, which is at its bound",
	"internal/enums":              "faces, the control API and the hub check requests by it, and share no other package",
	"internal/face":               "what every face is made of, without any protocol's libraries",
	"internal/face/cri/listcache": "generic: it does not know what the entries are",
	"internal/face/errtext":       "all faces shorten errors alike, also those without gRPC",
	"internal/face/grpcerr":       "the faces that speak gRPC and the control API share it; face itself has no gRPC",
	"internal/face/swarm/stepper": "a pure table of states, which a test walks as a whole",
	"internal/flight":             "image and its worker, which is another process, and the compiler of modules share it",
	"internal/guest/onefile":      "its init runs before those of most libraries, so it must import few",
	"internal/cli/ui":             "internal/cli is at its bound",
	"internal/cli/listing":        "templates of lists are tested beside those of documents, outside of the commands; present cannot import base, which imports it",
	"internal/invalid":            "faces, translators and the control API refuse arguments by it",
	"internal/keeper/roles":       "the mains of two programs share it",
	"internal/keeper/tinyinit":    "linked into the small binary, whose imports a test guards",
	"internal/decompress":         "a leaf: fromroot and face/docker read the same forms",
	"internal/keylock":            "the engine and three faces lock by key",
	"internal/passphrase":         "a worker of a Swarm and the hub read passphrases alike, and share nothing else",
	"internal/shortage":           "keeper, board, name server and agent keep what they have through the same errors, and share no other package",
	"internal/tlsconf":            "faces and metrics have the same TLS",
}

// TestSmallPackagesHaveAReason keeps budgets from splintering a package: what is small
// stands in the package that uses it.
func TestSmallPackagesHaveAReason(t *testing.T) {
	lines, isMain := map[string]int{}, map[string]bool{}
	for _, s := range sources(t) {
		if strings.HasSuffix(s.rel, "_test.go") {
			continue
		}
		dir := filepath.Dir(s.rel)
		lines[dir] += s.lines
		isMain[dir] = isMain[dir] || s.file.Name.Name == "main"
	}
	for dir, n := range lines {
		if n >= minPackageLines || isMain[dir] || dir == "internal/arch" || testSupport(dir) || strings.HasPrefix(dir, "test/") {
			continue
		}
		if small[dir] == "" {
			t.Errorf("package %s has %d lines: put it into the package that uses it, or say in the table small why not", dir, n)
		}
	}
	for dir := range small {
		if n, ok := lines[dir]; !ok || n >= minPackageLines {
			t.Errorf("package %s has %d lines and needs no reason: take it out of the table small", dir, n)
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
// good uses: nothing waits by the clock, nothing runs before main. The exception is the
// keeper in a guest's agent, which never comes to main.
func TestNoSleepNoInit(t *testing.T) {
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv == nil && n.Name.Name == "init" && s.rel != "internal/guest/onefile/onefile.go" {
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
