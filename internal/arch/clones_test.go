package arch_test

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// maxCloneLines is how many lines of code may stand twice among the interfaces of
// the agent, one less than what fails.
const maxCloneLines = 11

// cloneRooms are held against each other and against themselves.
func cloneRooms() []string { return []string{"internal/face", "internal/control", "internal/ocicli"} }

// TestNoBlockStandsTwice fails for twelve equal lines of code in two places.
// White space, comments and lines of punctuation alone do not count, nor do
// imports.
func TestNoBlockStandsTwice(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]codeLine{}
	for _, room := range cloneRooms() {
		err := filepath.WalkDir(filepath.Join(root, room), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			src, err := os.ReadFile(path)
			if err != nil || generated.Match(src) {
				return err
			}
			rel, err := filepath.Rel(root, path)
			files[rel] = codeLines(src)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(files) < 50 {
		t.Fatalf("only %d files were read", len(files))
	}
	for _, c := range clones(files, maxCloneLines+1) {
		t.Errorf("%s:%d and %s:%d have at least %d equal lines: move them to a package of their own", c[0].file, c[0].line, c[1].file, c[1].line, maxCloneLines+1)
	}
}

func TestClonesAreFound(t *testing.T) {
	block := "a := first()\nif a != nil {\nreturn a // why\n}\nb := second()\n"
	files := map[string][]codeLine{
		"one.go": codeLines([]byte("package one\nimport (\n\"os\"\n\"io\"\n)\nfunc f() error {\n" + block + "return os.ErrExist\n}\n")),
		"two.go": codeLines([]byte("package two\nimport (\n\"os\"\n\"io\"\n)\nfunc g() error {\n\n  // said otherwise\n" + strings.ReplaceAll(block, "\n", "\n\t") + "return io.EOF\n}\n")),
	}
	if got := clones(files, 4); len(got) != 1 || got[0][0] != (place{"one.go", 7}) || got[0][1] != (place{"two.go", 9}) {
		t.Errorf("4 equal lines: found %v", got)
	}
	if got := clones(files, 5); len(got) != 0 {
		t.Errorf("5 equal lines: found %v", got)
	}
	twice := map[string][]codeLine{"one.go": codeLines([]byte("package one\nfunc f() {\n" + block + "}\nfunc g() {\n" + block + "}\n"))}
	if got := clones(twice, 4); len(got) != 1 || got[0][1] != (place{"one.go", 10}) {
		t.Errorf("one file: found %v", got)
	}
}

// codeLine is a line's tokens.
type codeLine struct {
	line int
	text string
}

// codeLines are a file's lines that count.
func codeLines(src []byte) []codeLine {
	set := token.NewFileSet()
	file := set.AddFile("", -1, len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, 0)
	words := map[int][]string{}
	imports := 0
	counts := map[int]bool{}
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			break
		}
		if tok == token.SEMICOLON && lit == "\n" {
			if imports == 1 {
				imports = 0 // a single import ends with its line
			}
			continue
		}
		switch {
		case tok == token.IMPORT:
			imports = 1
		case imports == 1 && tok == token.LPAREN:
			imports = 2
		case imports == 2 && tok == token.RPAREN:
			imports = 0
			continue
		}
		if imports > 0 {
			continue
		}
		if lit == "" {
			lit = tok.String()
		}
		word := tok.IsLiteral() || tok.IsKeyword()
		n := file.Line(pos)
		words[n] = append(words[n], lit)
		counts[n] = counts[n] || word
	}
	var lines []codeLine
	for _, n := range slices.Sorted(maps.Keys(words)) {
		if counts[n] {
			lines = append(lines, codeLine{n, strings.Join(words[n], " ")})
		}
	}
	return lines
}

type place struct {
	file string
	line int
}

// clones are the pairs of places from where at least least lines are equal: the
// first of each pair of runs.
func clones(files map[string][]codeLine, least int) [][2]place {
	type at struct {
		file  string
		index int
	}
	seen := map[string][]at{}
	begins := map[[2]at]bool{}
	var found [][2]place
	for _, name := range slices.Sorted(maps.Keys(files)) {
		lines := files[name]
		for i := 0; i+least <= len(lines); i++ {
			texts := make([]string, least)
			for k := range texts {
				texts[k] = lines[i+k].text
			}
			key, here := strings.Join(texts, "\n"), at{name, i}
			for _, there := range seen[key] {
				if there.file == name && i-there.index < least {
					continue // the run overlaps itself
				}
				begins[[2]at{there, here}] = true
				if begins[[2]at{{there.file, there.index - 1}, {name, i - 1}}] {
					continue
				}
				found = append(found, [2]place{{there.file, files[there.file][there.index].line}, {name, lines[i].line}})
			}
			seen[key] = append(seen[key], here)
		}
	}
	return found
}
