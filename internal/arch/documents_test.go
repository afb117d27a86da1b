package arch_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// The bounds of documents: columns of a line, and riddles in a thousand words, of a file with enough words to
// count and of a group of files.
const (
	documentColumns = 160
	documentRiddles = 5
)

// unrevised are documents that do not keep the bounds yet. Take a document off when it does; add none.
var unrevised = []string{}

// quoting are documents that quote riddles, to avoid them.
var quoting = []string{"STYLE.md"}

// document is a Markdown file below the top directory.
type document struct {
	rel, text string
}

func documents(t *testing.T) (found []document) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"testdata", "bin", "dist", "node_modules"}, d.Name())) {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		found = append(found, document{filepath.ToSlash(rel), string(text)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// longLines returns the numbers of the lines that have too many columns.
func (d document) longLines() (numbers []int) {
	n := 0
	for line := range strings.Lines(d.text) {
		n++
		if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > documentColumns {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

func (d document) words() int { return len(strings.Fields(d.text)) }

// riddles returns the sentences with riddles, one for each riddle.
func (d document) riddles() []string {
	if slices.Contains(quoting, d.rel) {
		return nil
	}
	return riddlesIn(d.text)
}

// obscure reports whether the file alone has too many riddles.
func (d document) obscure() bool {
	return d.words() >= enoughWords && 1000*len(d.riddles()) > documentRiddles*d.words()
}

// group is the part of the documents that a file is counted with. The changes become part of the changelog.
func (d document) group() string {
	dir := filepath.ToSlash(filepath.Dir(d.rel))
	if dir == "docs/changes" {
		return "."
	}
	if top, _, _ := strings.Cut(dir, "/"); top != "docs" {
		return top
	}
	return dir
}

// TestDocumentsAreInPlainWords bounds the length of lines and the riddles in documents.
func TestDocumentsAreInPlainWords(t *testing.T) {
	all := documents(t)
	if len(all) < 20 {
		t.Fatalf("only %d documents were found: the test reads the wrong directory", len(all))
	}
	words, found := map[string]int{}, map[string][]string{}
	excepted := slices.Clone(unrevised)
	for _, d := range all {
		long, riddled := d.longLines(), d.obscure()
		if i := slices.Index(excepted, d.rel); i >= 0 {
			excepted = slices.Delete(excepted, i, i+1)
			if len(long) == 0 && !riddled {
				t.Errorf("%s keeps the bounds: take it off unrevised", d.rel)
			}
			continue
		}
		if len(long) > 0 {
			t.Errorf("%s: lines %d have more than %d columns", d.rel, long, documentColumns)
		}
		if riddled {
			t.Errorf("%s: %s riddles in a thousand words, at most %d are allowed. Write subject, verb, object:\n\t%s",
				d.rel, rate(len(d.riddles()), d.words()), documentRiddles, strings.Join(d.riddles(), "\n\t"))
		}
		words[d.group()] += d.words()
		found[d.group()] = append(found[d.group()], d.riddles()...)
	}
	for _, rel := range excepted {
		t.Errorf("unrevised names %s, which is gone", rel)
	}
	for _, group := range slices.Sorted(maps.Keys(words)) {
		if n := words[group]; 1000*len(found[group]) > documentRiddles*n {
			t.Errorf("documents in %s: %s riddles in a thousand words, at most %d are allowed. Write subject, verb, object:\n\t%s",
				group, rate(len(found[group]), n), documentRiddles, strings.Join(found[group], "\n\t"))
		}
	}
}

// TestFaultsOfDocumentsAreFound is the control of TestDocumentsAreInPlainWords.
func TestFaultsOfDocumentsAreFound(t *testing.T) {
	full := strings.Repeat("ä", documentColumns)
	d := document{"docs/x.md", full + "\nshort\n" + full + "x\n" + full + "x"}
	if got := d.longLines(); !slices.Equal(got, []int{3, 4}) {
		t.Errorf("long lines are %d, want 3 and 4", got)
	}
	plain := strings.Repeat("word ", enoughWords)
	const riddle = "It is told what it does. "
	for text, want := range map[string]bool{plain: false, plain + riddle: false, plain + riddle + riddle: true, riddle + riddle: false} {
		if got := (document{"docs/x.md", text}).obscure(); got != want {
			t.Errorf("%d words with %d riddles: obscure is %v", len(strings.Fields(text)), strings.Count(text, "told"), got)
		}
	}
	if (document{"STYLE.md", plain + riddle + riddle}).obscure() {
		t.Error("the riddles that STYLE.md quotes count")
	}
	for rel, want := range map[string]string{
		"README.md": ".", "docs/changes/a.fixed.md": ".", "docs/why.md": "docs", "docs/guide/cli.md": "docs/guide", "test/e2e/cri/README.md": "test",
	} {
		if got := (document{rel, ""}).group(); got != want {
			t.Errorf("%s is in the group %s, want %s", rel, got, want)
		}
	}
}
