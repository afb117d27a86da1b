package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// gone are the words that no name declares any more, as a part of it or as the whole,
// and what is said instead. ARCHITECTURE.md has the words that are.
var gone = map[string]string{
	"figure": "stats", "figures": "stats", "tally": "metrics", "gauge": "metrics",
	"coroner": "OOM log", "remnant": "lost object", "remnants": "lost objects",
	"joint": "attach", "memo": "cache", "kin": "process tree", "apart": "base namespace",
	"born": "created", "lull": "interval", "hum": "light", "pile": "garbage",
	"forsaken": "given up", "forsake": "give up", "litter": "garbage", "churn": "interval", "heed": "handle", "lone": "nest lost", "desk": "buffers", "furnish": "set up",
	"told": "sent, reported or logged", "shut": "unpublish or close", "drawer": "KV", "anew": "again", "whoever": "client",
}

// goneTypes are words that are fine in another place, and name no type any more.
var goneTypes = map[string]string{
	"book": "records", "line": "pipeline", "note": "change", "Asked": "StopRequest", "birth": "creation",
}

// gonePackages are words that are fine in another place, and name no package any more.
var gonePackages = map[string]string{
	"door": "api", "guard": "auth", "valid": "api", "keep": "sandbox", "project": "view", "words": "errtext", "terms": "convert", "lists": "listcache",
	"ask": "engine", "choice": "engine", "dirs": "engine", "fill": "engine", "lineage": "engine", "own": "engine", "stored": "engine", "waits": "engine",
}

// goneTexts are the words and phrases that no document has any more, paths of packages
// included.
var goneTexts = regexp.MustCompile(`(?i)\b(coroner|remnants?|tally|memo/|kin/|apart/|joint/|terms/|gauge/|figures/|engine/(?:ask|choice|dirs|fill|lineage|own|stored|waits)\b|drawers?\b|foreign bytes|half made|what runs goes on)`)

// standardGauge are the packages in which a gauge is what Prometheus calls one.
var standardGauge = []string{"internal/obs", "internal/face/cri/metric"}

// goneFrom lists what is said with words that are gone by the names that a file declares.
func goneFrom(dir string, f *ast.File) (found []string) {
	say := func(name, word, instead string) {
		found = append(found, name+": "+word+" is gone, say "+instead)
	}
	check := func(id *ast.Ident) {
		for _, part := range nameParts(id.Name) {
			if part == "gauge" && anyBelow(module+"/"+dir, standardGauge) {
				continue
			}
			if instead, ok := gone[part]; ok {
				say(id.Name, part, instead)
			}
		}
	}
	if instead, ok := gonePackages[f.Name.Name]; ok {
		say("package "+f.Name.Name, f.Name.Name, instead)
	}
	check(f.Name)
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			check(n.Name)
		case *ast.TypeSpec:
			check(n.Name)
			if instead, ok := goneTypes[n.Name.Name]; ok {
				say("type "+n.Name.Name, n.Name.Name, instead)
			}
		case *ast.ValueSpec:
			for _, id := range n.Names {
				check(id)
			}
		case *ast.Field:
			for _, id := range n.Names {
				check(id)
			}
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				return true
			}
			for _, x := range n.Lhs {
				if id, ok := x.(*ast.Ident); ok {
					check(id)
				}
			}
		}
		return true
	})
	slices.Sort(found)
	return slices.Compact(found)
}

// nameParts splits a name in camel case into its words, in lower case.
func nameParts(name string) (parts []string) {
	runes := []rune(name)
	start := 0
	for i := 1; i <= len(runes); i++ {
		if i == len(runes) || unicode.IsUpper(runes[i]) && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) || runes[i] == '_' {
			parts = append(parts, strings.ToLower(strings.Trim(string(runes[start:i]), "_")))
			start = i
		}
	}
	return parts
}

// TestWordsThatAreGone keeps one word for one thing: what has been renamed does not come
// back. The names of tests are sentences, and free.
func TestWordsThatAreGone(t *testing.T) {
	for _, s := range sources(t) {
		if strings.HasSuffix(s.rel, "_test.go") {
			continue
		}
		for _, f := range goneFrom(filepath.ToSlash(filepath.Dir(s.rel)), s.file) {
			t.Errorf("%s: %s", s.rel, f)
		}
	}
	docs := []string{"README.md", "ARCHITECTURE.md", "HACKING.md", "RATIONALE.md", "CONTRIBUTING.md", "SECURITY.md"}
	more, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(more) == 0 {
		t.Fatalf("docs: %v, %v", more, err)
	}
	for _, d := range docs {
		more = append(more, filepath.Join("../..", d))
	}
	for _, path := range more {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			if m := goneTexts.FindString(line); m != "" {
				t.Errorf("%s:%d: %s is gone: %s", path, i+1, m, line)
			}
		}
	}
}

// TestGoneWordsAreFound shows that the check finds what it looks for.
func TestGoneWordsAreFound(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", `package keep
type note struct { diskFigures int }
type Kind struct{}
func (k Kind) bornTwice(gauge int) { kinID := 1; _ = kinID; lineage := 2; _ = lineage }
`, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"bornTwice: born is gone, say created", "diskFigures: figures is gone, say stats", "gauge: gauge is gone, say metrics",
		"kinID: kin is gone, say process tree", "package keep: keep is gone, say sandbox", "type note: note is gone, say change",
	}
	if got := goneFrom("internal/x", f); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
	if got := goneFrom("internal/obs", f); slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "gauge") }) {
		t.Errorf("found %q where a gauge is Prometheus's", got)
	}
	if !goneTexts.MatchString("the Coroner port") || !goneTexts.MatchString("a durable drawer") || goneTexts.MatchString("what is taken apart") {
		t.Error("texts are not told apart")
	}
}
