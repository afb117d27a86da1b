package arch_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// riddles are forms of words that make a comment hard to read: a pronoun that carries the sentence ("what it does",
// "of which"), passive fillers, and causatives ("has the agent take"). Some of them are good English. Go's packages
// net, os and net/http have 1.2 to 1.5 in a thousand words.
var riddles = []*regexp.Regexp{
	regexp.MustCompile(`(?i)\b(who|whom|whose|whoever|what|whatever|(of|by|to|in|for|from|on|with) which)\b`),
	regexp.MustCompile(`(?i)\b(is|are|was|were|be|been) (told|said|asked|given|looked|had|known|there)\b|\bgives? back\b|\bgo(es)? on\b|\btakes? (away|back)\b|\blooks? at\b|\banew\b`),
	regexp.MustCompile(`\b(has|have) (the |a |an |its |their )?[a-z' ]{1,40} (be|go|come|take|step|stepped|sent|told|made|looked|read|started|run)\b`),
}

// The bounds of riddles in a thousand words of comments: of a package with enough words to count, and of all.
const (
	packageRiddles = 8
	allRiddles     = 2
	enoughWords    = 500
)

// riddlesFile has the number of riddles in the comments of each directory that has any, tests included. No number in it
// may rise; updateEnv=1 writes the numbers that have fallen.
const (
	riddlesFile = "testdata/riddles.txt"
	updateEnv   = "LONGSHORE_UPDATE"
)

var sentence = regexp.MustCompile(`[.;:] `)

// riddlesIn returns the sentences of a comment that have riddles, one for each riddle.
func riddlesIn(text string) (found []string) {
	for _, s := range sentence.Split(strings.Join(strings.Fields(text), " "), -1) {
		for _, r := range riddles {
			for range r.FindAllString(s, -1) {
				found = append(found, s)
			}
		}
	}
	return found
}

// TestCommentsAreInPlainWords bounds the riddles in comments. The bounds of a package are those of its files that are no
// tests; the numbers of riddlesFile include tests.
func TestCommentsAreInPlainWords(t *testing.T) {
	words, found, with := map[string]int{}, map[string][]string{}, map[string][]string{}
	all, hits := 0, 0
	for _, s := range sources(t) {
		dir := filepath.ToSlash(filepath.Dir(s.rel))
		for _, g := range s.file.Comments {
			in := riddlesIn(g.Text())
			if len(in) > 0 {
				with[dir] = append(with[dir], in...)
			}
			if strings.HasSuffix(s.rel, "_test.go") {
				continue
			}
			n := len(strings.Fields(g.Text()))
			words[dir], found[dir] = words[dir]+n, append(found[dir], in...)
			all, hits = all+n, hits+len(in)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(words)) {
		if n := words[dir]; n >= enoughWords && 1000*len(found[dir]) > packageRiddles*n {
			t.Errorf("%s: %s riddles in a thousand words of comments, at most %d are allowed. Write subject, verb, object:\n\t%s",
				dir, rate(len(found[dir]), n), packageRiddles, strings.Join(found[dir], "\n\t"))
		}
	}
	if all < 100_000 {
		t.Errorf("%d words of comments were found: the test reads the wrong files", all)
	}
	if 1000*hits > allRiddles*all {
		t.Errorf("%s riddles in a thousand words of all comments, at most %d are allowed", rate(hits, all), allRiddles)
	}
	text, err := os.ReadFile(riddlesFile)
	if err != nil && os.Getenv(updateEnv) == "" {
		t.Fatal(err)
	}
	before, err := parseRiddles(string(text))
	if err != nil {
		t.Fatal(err)
	}
	now := map[string]int{}
	for dir, sentences := range with {
		now[dir] = len(sentences)
	}
	risen, fallen := compareRiddles(before, now)
	if os.Getenv(updateEnv) != "" && (len(before) == 0 || len(risen) == 0) {
		if err := os.WriteFile(riddlesFile, []byte(formatRiddles(now)), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, dir := range risen {
		t.Errorf("%s: %d riddles in its comments, %d before. Write subject, verb, object:\n\t%s", dir, now[dir], before[dir], strings.Join(with[dir], "\n\t"))
	}
	if len(fallen) > 0 {
		t.Errorf("the comments of %s have fewer riddles than %s says: run the test with %s=1", strings.Join(fallen, ", "), riddlesFile, updateEnv)
	}
}

// parseRiddles reads lines of a number and a directory.
func parseRiddles(text string) (map[string]int, error) {
	counts := map[string]int{}
	for line := range strings.Lines(text) {
		n, dir := 0, ""
		if _, err := fmt.Sscanf(line, "%d %s", &n, &dir); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", riddlesFile, line, err)
		}
		counts[dir] = n
	}
	return counts, nil
}

func formatRiddles(counts map[string]int) string {
	var b strings.Builder
	for _, dir := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "%d %s\n", counts[dir], dir)
	}
	return b.String()
}

// compareRiddles returns the directories that have more and those that have fewer riddles now.
func compareRiddles(before, now map[string]int) (risen, fallen []string) {
	for _, dir := range slices.Sorted(maps.Keys(now)) {
		if now[dir] > before[dir] {
			risen = append(risen, dir)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(before)) {
		if now[dir] < before[dir] {
			fallen = append(fallen, dir)
		}
	}
	return risen, fallen
}

func rate(hits, words int) string { return fmt.Sprintf("%.1f", 1000*float64(hits)/float64(words)) }

// TestRisingRiddlesAreFound is the control of the comparison with riddlesFile.
func TestRisingRiddlesAreFound(t *testing.T) {
	before, err := parseRiddles("2 a\n3 b\n1 gone\n")
	if err != nil || formatRiddles(before) != "2 a\n3 b\n1 gone\n" {
		t.Fatalf("%v, %v", before, err)
	}
	risen, fallen := compareRiddles(before, map[string]int{"a": 3, "b": 2, "new": 1})
	if !slices.Equal(risen, []string{"a", "new"}) || !slices.Equal(fallen, []string{"b", "gone"}) {
		t.Errorf("risen %q, fallen %q", risen, fallen)
	}
	if _, err := parseRiddles("none\n"); err == nil {
		t.Error("a line without a number is accepted")
	}
}

// TestRiddlesAreFound is the control of TestCommentsAreInPlainWords.
func TestRiddlesAreFound(t *testing.T) {
	for text, want := range map[string]int{
		"withdraw removes the task's pending report.":              0,
		"told is what the managers have said.":                     1,
		"a path of which a workload owns a part; it is given back": 2,
		"withdraw has a task's end be sent.":                       1,
	} {
		if got := len(riddlesIn(text)); got != want {
			t.Errorf("%q has %d riddles, %d were found", text, want, got)
		}
	}
}
