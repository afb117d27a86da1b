package docker

import (
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The results of a test.
const (
	passed  = "pass"
	failed  = "fail"
	skipped = "skip"
)

// outcome is the result of each test of a suite, by its name.
type outcome map[string]string

// count returns the number of tests with this result. Tests with a slash after the package's name
// are subtests.
func (o outcome) count(result string) (tests, subtests int) {
	for name, r := range o {
		switch {
		case r != result:
		case isSubtest(name):
			subtests++
		default:
			tests++
		}
	}
	return tests, subtests
}

func isSubtest(name string) bool {
	_, test, _ := strings.Cut(name, " ")
	return strings.Contains(test, "/")
}

// row is a line of a table: a test of the suite that fails or is left out.
type row struct {
	name   string // as path.Match's patterns, "PACKAGE TEST"
	kind   string // fails, or out: it is not run
	ever   string // shall: we want it to pass one day; or never
	class  string // a word for the cause
	reason string
}

// table lists the tests of a suite that fail.
type table struct {
	passes int // at least so many tests pass
	rows   []row
}

// readTable reads a table. Its first line is "passes N". A row is "KIND EVER CLASS | PACKAGE TEST |
// REASON". Lines that begin with # are comments.
func readTable(text string) (table, error) {
	var t table
	for n, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if number, ok := strings.CutPrefix(line, "passes "); ok && t.passes == 0 {
			var err error
			if t.passes, err = strconv.Atoi(number); err != nil || t.passes < 1 {
				return table{}, fmt.Errorf("line %d: %q is no number of tests", n+1, number)
			}
			continue
		}
		parts := strings.SplitN(line, " | ", 3)
		words := strings.Fields(parts[0])
		if len(parts) != 3 || len(words) != 3 || !slices.Contains([]string{"fails", "out"}, words[0]) || !slices.Contains([]string{"shall", "never"}, words[1]) ||
			strings.TrimSpace(parts[2]) == "" {
			return table{}, fmt.Errorf("line %d: want fails or out, shall or never, a class | package test | the reason: %q", n+1, line)
		}
		r := row{kind: words[0], ever: words[1], class: words[2], name: parts[1], reason: parts[2]}
		if _, err := path.Match(r.name, ""); err != nil {
			return table{}, fmt.Errorf("line %d: pattern %q: %w", n+1, r.name, err)
		}
		t.rows = append(t.rows, r)
	}
	if t.passes == 0 {
		return table{}, fmt.Errorf(`the table lacks its first line, "passes N"`)
	}
	return t, nil
}

func (r row) matches(name string) bool {
	ok, err := path.Match(r.name, name)
	return ok && err == nil
}

// leftOut returns a regular expression for go test's -skip: the tests of a package, or of all, "*", that
// are not run. It is "" when all are run.
func (t table) leftOut(pkg string) string {
	var names []string
	for _, r := range t.rows {
		of, test, _ := strings.Cut(r.name, " ")
		if ok, err := path.Match(of, pkg); r.kind == "out" && err == nil && (ok || pkg == "*") {
			names = append(names, strings.ReplaceAll(regexp.QuoteMeta(test), `\*`, ".*"))
		}
	}
	if names == nil {
		return ""
	}
	return "^(" + strings.Join(names, "|") + ")$"
}

// faults compares a run with the table. It is a fault if a test without a row fails, if a test with a
// row passes, if a row's test does not fail, and if fewer tests pass than the table says.
func (t table) faults(o outcome) (list []string) {
	hit := make([]bool, len(t.rows))
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if isSubtest(name) {
			continue // its test has failed, too
		}
		known := false
		for i, r := range t.rows {
			if !r.matches(name) {
				continue
			}
			switch o[name] {
			case failed:
				hit[i], known = true, true
			case passed:
				list = append(list, fmt.Sprintf("%s passes, and has a row: %s", name, r.reason))
			}
		}
		if o[name] == failed && !known {
			list = append(list, name+" fails, and has no row")
		}
	}
	for i, r := range t.rows {
		if r.kind == "fails" && !hit[i] {
			list = append(list, "no test fails as the row says: "+r.name)
		}
	}
	if n, _ := o.count(passed); n < t.passes {
		list = append(list, fmt.Sprintf("%d tests pass, want at least %d", n, t.passes))
	}
	return list
}

// flaky bounds the failed tests that run once more. If more of them fail, they do not fail by chance.
const flaky = 8

// again runs each test that failed without a row once more, by itself: many tests wait for a time that is short on a busy machine.
// run runs the tests of a package that match a pattern.
func (t table) again(test *testing.T, o outcome, run func(pkg, pattern string) outcome) {
	test.Helper()
	var list []string
	for name, r := range o {
		if r == failed && !isSubtest(name) && !slices.ContainsFunc(t.rows, func(r row) bool { return r.matches(name) }) {
			list = append(list, name)
		}
	}
	if len(list) > flaky {
		return
	}
	slices.Sort(list)
	for _, name := range list {
		pkg, one, _ := strings.Cut(name, " ")
		test.Logf("%s failed, and runs once more", name)
		maps.Copy(o, run(pkg, "^"+one+"$"))
	}
}

// summary returns the counts of a run, and the number of failed tests of each class.
func (t table) summary(o outcome) string {
	var b strings.Builder
	for _, r := range []string{passed, failed, skipped} {
		tests, subtests := o.count(r)
		fmt.Fprintf(&b, "%s: %d tests, %d subtests\n", r, tests, subtests)
	}
	classes := map[string]int{}
	for name, r := range o {
		for _, row := range t.rows {
			if r == failed && !isSubtest(name) && row.matches(name) {
				classes[row.ever+" "+row.class]++
				break
			}
		}
	}
	for _, c := range slices.Sorted(maps.Keys(classes)) {
		fmt.Fprintf(&b, "%s: %d\n", c, classes[c])
	}
	return b.String()
}

// load reads a table of testdata.
func load(t *testing.T, name string) table {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	list, err := readTable(string(text))
	if err != nil {
		t.Fatalf("testdata/%s: %v", name, err)
	}
	return list
}

// judge fails the test for each fault of a run.
func (t table) judge(test *testing.T, o outcome) {
	test.Helper()
	test.Log(t.summary(o))
	for _, f := range t.faults(o) {
		test.Error(f)
	}
}

// TestTables reads each table, and checks that a run other than the table's is a fault.
func TestTables(t *testing.T) {
	entries, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".txt") {
			load(t, e.Name())
		}
	}
	list, err := readTable("# comment\npasses 2\n\nfails shall words | a TestOne | other words\nfails never build | b Test*Build | no builder\nout never daemon | a TestOwn* | starts dockerd\n")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		run  outcome
		want []string
	}{
		"as the table":   {outcome{"a TestOne": failed, "b TestABuild": failed, "b TestBuild": failed, "a TestTwo": passed, "a TestThree": passed, "a TestOne/x": failed, "a TestSkip": skipped}, nil},
		"a new failure":  {outcome{"a TestOne": failed, "b TestBuild": failed, "a TestTwo": passed, "a TestThree": passed, "b TestOne": failed}, []string{"b TestOne fails, and has no row"}},
		"a passing test": {outcome{"a TestOne": passed, "b TestBuild": failed, "a TestTwo": passed}, []string{"a TestOne passes, and has a row: other words", "no test fails as the row says: a TestOne"}},
		"too few":        {outcome{"a TestOne": failed, "b TestBuild": failed, "a TestTwo": passed, "a TestTwo/x": passed}, []string{"1 tests pass, want at least 2"}},
		"a missing one":  {outcome{"a TestOne": skipped, "b TestBuild": failed, "a TestTwo": passed, "a TestThree": passed}, []string{"no test fails as the row says: a TestOne"}},
	} {
		if got := list.faults(c.run); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got, want := list.leftOut("a"), "^(TestOwn.*)$"; got != want {
		t.Errorf("left out of a: %q, want %q", got, want)
	}
	if got := list.leftOut("b"); got != "" {
		t.Errorf("left out of b: %q", got)
	}
	o, ran := outcome{"a TestOne": failed, "a TestTwo": failed, "a TestThree": passed}, ""
	list.again(t, o, func(pkg, pattern string) outcome {
		ran += pkg + pattern
		return outcome{"a TestTwo": passed}
	})
	if ran != "a^TestTwo$" || o["a TestTwo"] != passed || o["a TestOne"] != failed {
		t.Errorf("again ran %q: %v", ran, o)
	}
	for _, bad := range []string{"", "fails shall x | a T | r", "passes x\n", "passes 1\nfails x", "passes 1\nfails maybe x | a T | r", "passes 1\nfails shall x | a T | ", "passes 1\nfails shall x | [ | r"} {
		if _, err := readTable(bad); err == nil {
			t.Errorf("the table %q is read", bad)
		}
	}
}
