package arch_test

import (
	"fmt"
	"maps"
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
// The second may only be lowered.
const (
	packageRiddles = 8
	allRiddles     = 2
	enoughWords    = 500
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

// TestCommentsAreInPlainWords bounds the riddles in comments. Tests are left out.
func TestCommentsAreInPlainWords(t *testing.T) {
	words, found := map[string]int{}, map[string][]string{}
	all, hits := 0, 0
	for _, s := range sources(t) {
		if strings.HasSuffix(s.rel, "_test.go") {
			continue
		}
		dir := filepath.Dir(s.rel)
		for _, g := range s.file.Comments {
			n := len(strings.Fields(g.Text()))
			in := riddlesIn(g.Text())
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
}

func rate(hits, words int) string { return fmt.Sprintf("%.1f", 1000*float64(hits)/float64(words)) }

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
